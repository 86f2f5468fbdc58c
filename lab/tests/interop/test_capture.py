"""Tests of reading tshark's lines."""

from __future__ import annotations

import sys

import pytest

from lab.interop import capture
from lab.interop.building import Missing


def test_frames_are_counted_and_malformed_packets_named() -> None:
    found = capture.read(
        "1|31,32||\n2|||\n3|0x01|0x0000|\n4|1,160|0,0x0001|Malformed\n5|1,0|0,1|Malformed\n6|||Malformed\n"
    )
    assert found.opcodes == {31: 1, 32: 1, 1: 3, 160: 1, 0: 1}
    assert found.malformed == ["5 (opcodes 1,0, statuses 0,1)", "6 (opcodes , statuses )"]


def test_who_may_not_capture_misses_the_judge(tmp_path) -> None:
    code = "import sys; print('you have no permission', file=sys.stderr)"
    with pytest.raises(Missing, match="no right to capture on loopback: you have no permission"):
        capture.Capture([sys.executable, "-c", code], 1, tmp_path / "x")
