"""The page that compares the source with others names only options and columns that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "spark-compared.md"
KNOWN_WORDS = {"the", "same"}


def ours() -> list[str]:
    """The names in the second column of the page's tables."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 3 and cells[1] not in {"there", "---"}:
            found += [name.split("=")[0].strip(' "') for name in re.findall(r"`([^`]+)`", cells[2])]
    return found


def test_every_name_of_ours_exists() -> None:
    from dcpstream.arrow.schema import COLUMNS
    from dcpstream_spark.options import OPTIONS

    known = {option.name for option in OPTIONS} | set(COLUMNS)
    values = {"earliest", "latest", "delete", "insert", "update_postimage", "scope.*", "true"}
    names = ours()
    assert len(names) > 60
    calls = ("format(", "trigger(")
    unknown = {name for name in names if name not in known | values and not name.startswith(calls)}
    assert not unknown
