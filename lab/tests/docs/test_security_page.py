"""The page about security: every claim names a test that is there, and the how-to names every role and limit."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from dcpstream_node.engine.access.roles import KINDS
from dcpstream_node.shell.limits import Limits

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/explanation/security.md").read_text(encoding="utf-8")
HOW_TO = (ROOT / "docs/how-to/protect-a-node.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`((?:packages/[\w-]+/|lab/)?tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)))


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[name or file for file, name in NAMED])
def test_the_test_of_a_claim_is_there(file: str, name: str) -> None:
    content = (ROOT / file).read_text(encoding="utf-8")
    assert not name or f"def {name}(" in content


def test_every_claim_has_a_test() -> None:
    claims = PAGE.partition("## Claims and their tests")[2].partition("## How memory")[0]
    rows = [line for line in claims.splitlines() if line.startswith("| ") and not line.startswith(("| claim", "| ---"))]
    assert len(rows) > 20
    assert [row for row in rows if not any(f"`{file}" in row for file, _ in NAMED)] == []


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_every_role_is_described(kind) -> None:
    places = ", ".join(("bucket", "scope", "collection")[: kind.depth])
    assert f"| `{kind.name}` | {places} |".replace("|  |", "| |") in HOW_TO


@pytest.mark.parametrize("field", fields(Limits), ids=lambda field: field.name)
def test_every_limit_is_described_with_its_default(field) -> None:
    assert f"| `{field.name}` | {field.default:,.0f} |" in HOW_TO
