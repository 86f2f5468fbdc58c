"""Transcripts: lines of frames, and the place where a scenario stopped."""

from __future__ import annotations

from dcpstream_node.judge.packets import packet
from dcpstream_node.judge.transcript import HEX_BYTES_MAX, Line, hex_fields, line_bytes


def sent(op: int, connection: str = "a#1", **fields: object) -> Line:
    return {"dir": "c2s", "conn": connection, "hex": packet(op).hex(), "note": "", **fields}


def test_long_repeats_are_counted() -> None:
    raw = b"head" + b"x" * (HEX_BYTES_MAX + 1)
    assert hex_fields(raw) == {"hex": b"head".hex(), "repeat": {"hex": "78", "count": HEX_BYTES_MAX + 1}}
    assert line_bytes(hex_fields(raw)) == raw
    assert hex_fields(b"xx") == {"hex": "7878"}
