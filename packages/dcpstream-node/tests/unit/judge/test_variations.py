"""Variations: data with reasons, each for what it says and nothing else."""

from __future__ import annotations

from dcpstream_node.judge.scenarios import SCENARIOS
from dcpstream_node.judge.variations import VARIATIONS, reason_of
from lab.layout import ROOT

MARKER = "DCP_SNAPSHOT_MARKER request vb=171 opaque=0x1 extras=.. start=9 end=9 flags=1"


def test_every_variation_has_a_reason_and_a_scenario_that_is_there() -> None:
    for each in VARIATIONS:
        assert each.reason
        assert any(name.startswith(each.scenario) for name in SCENARIOS), each


def test_the_page_has_every_reason() -> None:
    page = (ROOT / "docs" / "reference" / "judge.md").read_text("utf-8")
    assert [each.reason for each in VARIATIONS if each.reason not in page] == []


def test_a_variation_is_of_one_release_scenario_and_connection() -> None:
    assert reason_of("8.0", "s14_sync_writes", "sw#2", MARKER)
    used = "DCP_STREAM_REQ | DCP_MUTATION by_seqno=3 lock=0 nru=8 key=k | DCP_MUTATION by_seqno=3 lock=0 nru=7 key=k"
    assert reason_of("8.0", "s12_datatypes", "dt#13", used)
    assert not reason_of("7.2", "s12_datatypes", "dt#13", used)
    assert not reason_of("8.0", "s15_close_stream", "sw#2", MARKER)
    assert not reason_of("8.0", "s14_sync_writes", "admin#2", MARKER)
