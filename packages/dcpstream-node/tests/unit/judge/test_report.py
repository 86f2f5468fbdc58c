"""Reports: text, JSON and JUnit XML of the same verdicts."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

from dcpstream_node.judge.comparison import Comparison, Difference
from dcpstream_node.judge.playing import Play, Verdict
from dcpstream_node.judge.report import as_dict, junit, lines_of, summary, total_of
from dcpstream_node.judge.scenarios import SCENARIOS
from dcpstream_node.judge.steps import Transcript

SEEN = Difference(
    "a#1", "changed", "GET k", "80", "GET response SUCCESS", "GET response \x01", "status", "8100", "8101"
)
VARIES = Difference("a#1", "missing", "GET k", varies="it is timing")


def verdict(*differences: Difference, stopped: str = "", steps: int = 5, setup: int = 1) -> Verdict:
    transcript = Transcript("s01", 0, {})
    comparison = Comparison(transcript, transcript, list(differences), steps=steps, setup=setup, equal=4)
    scenario = SCENARIOS["s01_hello_sasl_select"]
    return Verdict(
        scenario=scenario,
        comparison=comparison,
        seconds=1.5,
        stopped=stopped,
        steps_whole=9,
        play=Play(lines=[], seconds=1.5),
    )


EQUAL = verdict()
DIFFERS = verdict(SEEN, VARIES)
SO_FAR = verdict(stopped="SET_VBUCKET is refused")
LEFT_OUT = verdict(stopped="no such user", setup=5)


def test_text_has_request_expected_and_got() -> None:
    lines = lines_of(DIFFERS)
    assert lines[0].startswith("s01_hello_sasl_select        differs")
    assert lines[0].endswith("5 steps, 4 equal, 1 different, 1 vary")
    assert [line.split(maxsplit=1) for line in lines[1:6]] == [
        ["a#1:", "changed"],
        ["request:", "GET k"],
        ["expected:", "GET response SUCCESS"],
        ["got:", "GET response \x01"],
        ["differ:", "status"],
    ]
    assert lines[6].strip() == "varies: 1 time: it is timing"
    assert [line.strip() for line in lines_of(DIFFERS, has_bytes=True) if line.strip().isalnum()] == [
        "80",
        "8100",
        "8101",
    ]
    assert lines_of(DIFFERS, 0)[1:] == ["    … and 1 more", "    varies: 1 time: it is timing"]
    assert lines_of(SO_FAR) == [
        "s01_hello_sasl_select        equal so far 5 steps, 4 equal; stopped after 5 of 9: SET_VBUCKET is refused"
    ]


def test_totals() -> None:
    every = [EQUAL, DIFFERS, SO_FAR, LEFT_OUT]
    assert total_of(every) == ("4 scenarios: 20 steps, 16 equal, 1 different, 1 vary, 1 stopped early, 1 left out")
    assert summary([EQUAL])["different"] == 0


def test_json_has_every_difference() -> None:
    found = json.loads(json.dumps(as_dict(DIFFERS)))
    assert [each["varies"] for each in found["differences"]] == ["", "it is timing"]
    assert found["differences"][0]["got_hex"] == "8101"


def test_junit_has_a_case_for_each() -> None:
    suite = ET.fromstring(junit("couchbase://h", [EQUAL, DIFFERS, SO_FAR, LEFT_OUT]))
    assert {name: suite.get(name) for name in ("tests", "failures", "skipped")} == {
        "tests": "4",
        "failures": "1",
        "skipped": "1",
    }
    assert [[child.tag for child in case] for case in suite] == [[], ["failure"], ["system-out"], ["skipped"]]
    assert "it is timing" in (suite[1][0].text or "")
