"""The recordings that are shipped, and what the judge makes of them."""

from __future__ import annotations

from dcpstream_node.judge import recordings
from dcpstream_node.judge.comparison import compare
from dcpstream_node.judge.scenarios import SCENARIOS
from dcpstream_node.judge.steps import read_steps
from tests.kit.cases import each_case


def test_there_are_two_releases() -> None:
    assert recordings.releases() == ("7.2", "8.0")


@each_case("release", ["7.2", "8.0"])
def test_every_recording_has_its_scenario(release: str) -> None:
    names = recordings.names(release)
    key = recordings.release_key(release)
    played = {name for name, item in SCENARIOS.items() if recordings.release_key(item.release) <= key}
    assert played - set(names) == {"s81_known_bugs", "s82_bugs_that_end_servers"}, "no recording"
    assert set(names) <= played


@each_case("name", ["s07_stream_inmemory", "s22_stats", "s25_collections_oso", "s43_quiet"])
def test_a_recording_equals_itself(name: str) -> None:
    first, second = (read_steps(name, recordings.lines("8.0", name)) for _ in range(2))
    found = compare(first, second)
    assert found.steps == found.equal > 0
    assert found.differences == []


def test_releases_are_told_apart() -> None:
    name = "s34_hello_variants"
    found = compare(*(read_steps(name, recordings.lines(release, name)) for release in ("7.2", "8.0")))
    assert found.failures != []
