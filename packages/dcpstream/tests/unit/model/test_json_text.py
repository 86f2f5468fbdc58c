"""Bytes that are JSON, and others."""

from __future__ import annotations

from dcpstream.model.json_text import is_json
from tests.kit.cases import each_case


def test_a_number_of_any_length() -> None:
    assert is_json(b"1" * 5000), "it is not made"


@each_case("data", [b"", b"NaN", b"[Infinity]", b"{", b"x", b"\xff", b'"\xff"', b"[" * 100_000, b"{} {}"])
def test_no_json(data: bytes) -> None:
    assert not is_json(data)
