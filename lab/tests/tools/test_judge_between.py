"""A release between two recorded ones: what counts as a difference."""

from dcpstream_node.judge import recordings
from lab.tools import judge_between as between
from tests.kit.cases import each_case

NAME = "s03_control_producer"


@each_case(("release", "as_older", "as_newer"), [("7.2", True, False), ("8.0", False, True)])
def test_each_of_the_two_recordings_is_right(release, as_older, as_newer):
    found = between.judge(NAME, recordings.lines(release, NAME))
    assert found.differences == []
    assert (found.as_older > 0, found.as_newer > 0) == (as_older, as_newer)
    assert found.agreed > found.open > 0


def answers(lines):
    return [at for at, line in enumerate(lines) if line["dir"] == "s2c" and "DCP_CONTROL response" in line["note"]]


def test_a_step_in_which_both_agree_must_be_so():
    lines = recordings.lines("7.2", NAME)
    at = answers(lines)[0]
    status_at = 12
    assert lines[at]["hex"][status_at : status_at + 4] == "0000"
    changed = lines[at]["hex"][:status_at] + "0086" + lines[at]["hex"][status_at + 4 :]
    found = between.judge(NAME, [*lines[:at], {**lines[at], "hex": changed}, *lines[at + 1 :]])
    assert len(found.differences) == 1
    assert "DCP_CONTROL response" in found.differences[0]


def test_a_step_in_which_both_agree_must_not_be_missing():
    lines = recordings.lines("8.0", NAME)
    at = answers(lines)[0]
    found = between.judge(NAME, [*lines[:at], *lines[at + 1 :]])
    assert len(found.differences) == 1


def test_what_the_release_table_mixes_is_counted_apart():
    name, lines = "s19_consumer", recordings.lines("7.2", "s19_consumer")
    at = next(at for at, line in enumerate(lines) if line["dir"] == "s2c" and "connection_buffer_size" in line["note"])
    share = lines[at]["hex"].replace(b"52428800".hex(), b"52428801".hex())
    found = between.judge(name, [*lines[:at], {**lines[at], "hex": share}, *lines[at + 1 :]])
    assert (found.differences, found.mixed) == ([], 1)


def test_the_scenarios_are_those_that_both_have():
    assert len(between.names()) == 49
    assert set(between.names()) == set(recordings.names("7.2"))
