"""Wrap the prose of the Markdown pages at 120 columns, like the code.

    python lab/tools/wrap_markdown.py [--check] [FILE...]    all pages of the project if no file is named

Paragraphs and list items are wrapped. Tables, headings, code, HTML and everything else stays as it is. A line break
never falls into a code span, so that a search for a command finds it, and a line never starts with something that
Markdown would take for a list, a heading or a quotation.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 120

FENCE = re.compile(r"\s*(```+|~~~+)")
ITEM = re.compile(r"(?P<indent>\s*)(?P<mark>[-*+]|\d+[.)])(?P<gap>\s+)")
# Lines that are no prose: headings, tables, quotations, HTML and comments, link definitions, admonitions, rules.
FIXED = re.compile(r"\s*(#{1,6}\s|\||>|<[!/a-zA-Z]|\[[^\]]+\]:\s|!!!|\?\?\?|---+\s*$|===+\s*$)")
# Words, where a code span with the characters that touch it is one word.
WORD = re.compile(r"(?:`+[^`]+`+|\S)+")
# What would change its meaning at the start of a line.
RISKY_START = re.compile(r"([-*+>|]|#{1,6}|\d+[.)])$|[>|<=]|!!!|:$")


def wrapped(text: str, width: int = WIDTH) -> str:
    """The same page with its paragraphs and list items wrapped."""
    return "\n".join(_lines(text.split("\n"), width))


def _lines(lines: list[str], width: int) -> Iterator[str]:
    paragraph: list[str] = []
    fence = ""
    in_comment = False
    for line in lines:
        found = FENCE.match(line)
        in_comment = in_comment or line.lstrip().startswith("<!--")
        if fence or found or in_comment or not line.strip() or FIXED.match(line):
            yield from _wrap(paragraph, width)
            paragraph = []
            yield line if fence or found else line.rstrip()
            if found:
                fence = "" if fence and found[1].startswith(fence) else fence or found[1]
            in_comment = in_comment and "-->" not in line
        elif ITEM.match(line) and not (paragraph and not ITEM.match(paragraph[0]) and _is_no_list(line)):
            yield from _wrap(paragraph, width)
            paragraph = [line]
        else:
            paragraph.append(line)
            if line.endswith(("  ", "\\")):
                yield from _wrap(paragraph, width)
                paragraph = []
    yield from _wrap(paragraph, width)


def _is_no_list(line: str) -> bool:
    """Whether a line within a paragraph only looks like an item: a list may interrupt a paragraph only at 1."""
    found = ITEM.match(line)
    return found is not None and found["mark"][0].isdigit() and found["mark"] not in {"1.", "1)"}


def _wrap(paragraph: list[str], width: int) -> Iterator[str]:
    if not paragraph:
        return
    found = ITEM.match(paragraph[0])
    first = found[0] if found else paragraph[0][: -len(paragraph[0].lstrip())]
    rest = " " * len(first)
    ending = "  " if paragraph[-1].endswith("  ") else ""  # a line break that is meant
    text = " ".join([paragraph[0][len(first) :], *paragraph[1:]])
    line, prefix = "", first
    for word in WORD.findall(text):
        if line and len(prefix) + len(line) + 1 + len(word) > width and not RISKY_START.match(word):
            yield prefix + line
            line, prefix = word, rest
        else:
            line = f"{line} {word}" if line else word
    yield prefix + line + ending


def pages(root: Path = ROOT) -> list[Path]:
    """All pages of the project that people read."""
    found = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "examples").rglob("*.md")]
    return sorted(found)


def main(arguments: list[str] | None = None) -> int:
    """Wrap, or with --check name the pages that are not wrapped; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a page is not wrapped")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    chosen = parser.parse_args(arguments)
    found = 0
    for path in chosen.files or pages():
        text = path.read_text(encoding="utf-8")
        if (new := wrapped(text)) == text:
            continue
        found += 1
        if chosen.check:
            print(f"{path}: not wrapped at {WIDTH} columns; run: python lab/tools/wrap_markdown.py {path}")
        else:
            path.write_text(new, encoding="utf-8")
    return 1 if chosen.check and found else 0


if __name__ == "__main__":
    sys.exit(main())
