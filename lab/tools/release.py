"""Check that a tag may be released, and write the release's notes.

    python lab/tools/release.py v0.1.0 [--notes FILE]

The three packages must have the version of the tag, need each other in that version, and the changelog must have a
section of it with a date. The notes are that section. Exit status 1 names everything that does not agree.
"""

from __future__ import annotations

import argparse
import datetime as dt
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
TAG = re.compile(r"v(\d+)\.(\d+)\.(\d+)((?:a|b|rc)\d+)?")
VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
SECTION = re.compile(r"^## (\S+), (.+)$", re.MULTILINE)


def problems_of(tag: str, root: Path) -> list[str]:
    """A sentence for each reason why `tag` cannot be released from the checkout at `root`."""
    match = TAG.fullmatch(tag)
    if match is None:
        return [f"the tag is {tag!r}; a release has a tag such as v0.1.0 or v0.2.0rc1"]
    version, (major, minor) = tag[1:], match.group(1, 2)
    next_version = f"0.{int(minor) + 1}" if major == "0" else str(int(major) + 1)
    found = []
    for project in sorted(path.parent for path in root.glob("packages/*/pyproject.toml")):
        (init,) = (project / "src").glob("dcpstream*/__init__.py")
        declared = VERSION.search(init.read_text(encoding="utf-8"))
        has = declared and declared.group(1)
        if has != version:
            found.append(f"{init.relative_to(root)} has version {has}, the tag {version}")
        needs = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
        wanted = f">={major}.{minor},<{next_version}"
        for need in needs:
            name, limits = re.match(r"([a-z-]+)(?:\[[^]]*\])?(.*)", need).groups()  # type: ignore[union-attr]
            if name.startswith("dcpstream") and limits != wanted:
                found.append(f"{project.name} needs {need}; with version {version} it must need {name}{wanted}")
    section = _section(version, root)
    if section is None:
        found.append(f"docs/changelog.md has no section '## {version}, DATE'")
    else:
        try:
            dt.date.fromisoformat(section[0])
        except ValueError:
            found.append(f"docs/changelog.md: {version} has no date such as 2026-11-28, but {section[0]!r}")
    return found


def notes_of(version: str, root: Path) -> str:
    """The changelog's section of a version, without its heading."""
    section = _section(version, root)
    return "" if section is None else section[1]


def _section(version: str, root: Path) -> tuple[str, str] | None:
    """The date of a version in the changelog, and the text of its section."""
    text = (root / "docs" / "changelog.md").read_text(encoding="utf-8")
    heads = list(SECTION.finditer(text))
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        if head.group(1) == version:
            return head.group(2), text[head.end() : following.start() if following else len(text)].strip() + "\n"
    return None


def main() -> int:
    """Check, write the notes. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tag")
    parser.add_argument("--notes", type=Path, help="write the changelog's section of the version here")
    options = parser.parse_args()
    found = problems_of(options.tag, ROOT)
    for problem in found:
        print(problem, file=sys.stderr)
    if not found and options.notes:
        options.notes.write_text(notes_of(options.tag[1:], ROOT), encoding="utf-8")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
