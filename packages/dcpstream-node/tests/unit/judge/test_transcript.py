"""Transcripts: lines of frames, and the place where a scenario stopped."""

from __future__ import annotations

from dcpstream_node.judge.packets import Op, packet
from dcpstream_node.judge.transcript import HEX_BYTES_MAX, Line, cut, from_text, hex_fields, line_bytes, to_text


def sent(op: int, connection: str = "a#1", **fields: object) -> Line:
    return {"dir": "c2s", "conn": connection, "hex": packet(op).hex(), "note": "", **fields}


def test_long_repeats_are_counted() -> None:
    raw = b"head" + b"x" * (HEX_BYTES_MAX + 1)
    assert hex_fields(raw) == {"hex": b"head".hex(), "repeat": {"hex": "78", "count": HEX_BYTES_MAX + 1}}
    assert line_bytes(hex_fields(raw)) == raw
    assert hex_fields(b"xx") == {"hex": "7878"}


def test_lines_are_those_of_a_file() -> None:
    lines = [sent(Op.GET), sent(Op.SET)]
    assert from_text(to_text(lines)) == lines


def test_a_cut_is_before_a_request_of_the_connection() -> None:
    lines = [sent(Op.GET), sent(Op.GET, "b#2"), sent(Op.SET), sent(Op.DELETE)]
    assert cut(lines, "a#1", 1) == lines[:2]
    assert cut(lines, "b#2", 0) == lines[:1]
    assert cut(lines, "a#1", 3) == lines


def test_attempts_and_waiting_do_not_count() -> None:
    """Two runs of one scenario wait for different times; the request after that has the same number."""
    once = [sent(Op.STAT, optional=True), sent(Op.DEL_VBUCKET, poll="p"), sent(Op.SET_VBUCKET)]
    often = [sent(Op.STAT, optional=True)] * 3 + [sent(Op.DEL_VBUCKET, poll="p")] * 4 + [sent(Op.SET_VBUCKET)]
    assert cut(once, "a#1", 1) == once[:2]
    assert cut(often, "a#1", 1) == often[:7]
