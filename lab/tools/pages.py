"""Write the generated pages of the documentation, or check that they say what the code says now."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from lab.tools.wrap_markdown import wrapped

ROOT = Path(__file__).resolve().parents[2]


def publish(pages: Mapping[Path, str], make_target: str = "make reference") -> int:
    """Write pages that have changed; with `--check` on the command line only name them.

    Args:
        pages: text by file; its prose is wrapped first.
        make_target: what writes these pages.

    Returns:
        The exit status: 1 if a page is stale and was not written.
    """
    stale = 0
    for path, page in pages.items():
        name, text = path.relative_to(ROOT), wrapped(page)
        if path.exists() and path.read_text(encoding="utf-8") == text:
            print(f"{name}: up to date")
        elif "--check" in sys.argv:
            stale += 1
            print(f"{name}: stale, run {make_target}")
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    return 1 if stale else 0
