"""JSON with a checksum: what is taken, and what is not."""

from __future__ import annotations

import json

import pytest

from dcpstream_node.directory.checksummed_json import from_text, to_text
from tests.kit.cases import each_case

NAMES = frozenset({"version", "users"})
CONTENT = {"version": 1, "users": {"ann": {"name": "Änn", "roles": ["admin"]}}}


@each_case(
    ("text", "why"),
    [
        (to_text(CONTENT).replace("admin", "admio"), "checksum does not fit"),
        (to_text(CONTENT).replace('"checksum"', '"checksuo"'), "not the values users, version alone"),
        (to_text({"version": 1}), "not the values"),
        (to_text(CONTENT | {"groups": {}}), "not the values"),
        (json.dumps(CONTENT), "checksum does not fit"),
        ("[1]", "no JSON object"),
        ("[" * 100_000, "too many brackets"),
        ("{", "Expecting property name"),
        ("", "Expecting value"),
    ],
)
def test_what_is_not_what_was_written_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        from_text(text, NAMES)
