"""DCP_CONTROL: what a producer accepts beyond what the recordings show, and what both other ends ask for."""

from dcpstream.dcp.controls import (
    CONTROLS,
    ProducerSettings,
    ReplicaWishes,
    apply_control,
    asked_by_replica,
)
from dcpstream.wire import Status
from dcpstream.wire.release import RELEASES
from tests.kit.cases import each_case


def test_switches_are_on_for_true_only_and_never_refused():
    settings = ProducerSettings()
    for value, expected in ((b"true", True), (b"TRUE", False), (b"true", True), (b"no", False)):
        assert apply_control(settings, b"enable_noop", value).status is Status.SUCCESS
        assert settings.noop_enabled is expected


def test_stream_end_on_close_cannot_be_switched_off():
    settings = ProducerSettings()
    for value in (b"true", b"false"):
        assert apply_control(settings, b"send_stream_end_on_client_close_stream", value).status is Status.SUCCESS
    assert settings.stream_end_on_client_close


def test_three_names_match_by_prefix():
    settings = ProducerSettings()
    assert apply_control(settings, b"e", b"true").status is Status.SUCCESS
    assert apply_control(settings, b"c", b"5").status is Status.SUCCESS
    assert apply_control(settings, b"s", b"true").status is Status.NOT_SUPPORTED
    assert apply_control(settings, b"f", b"true").status is Status.EINVAL
    assert (settings.noop_enabled, settings.buffer_bytes) == (True, 5)


@each_case("value", [b"true", b"false", b"0", b"\xff\x00", b"x" * 1000])
def test_no_value_breaks_a_rule(value):
    for name in CONTROLS:
        status = apply_control(ProducerSettings(), name, value).status
        assert status in (Status.SUCCESS, Status.EINVAL, Status.NOT_SUPPORTED), name


def test_a_replica_asks_only_for_what_its_release_knows():
    asked = asked_by_replica(ReplicaWishes(1, "1", release=RELEASES["7.2"]))
    newer = asked_by_replica(ReplicaWishes(1, "1", release=RELEASES["8.0"]))
    assert {name for name, _, _ in newer} - {name for name, _, _ in asked} == {"max_marker_version"}
    assert asked[0][0] == newer[-1][0] == "connection_buffer_size"


INTERVALS = (b"1e-1", b".1", b"0x1", b"inf", b" 1", b"1 ", b"1.5"), (b"0", b"0.09", b"nan", b"1s", b"", b"-1")


@each_case("name", ["7.2", "7.6", "8.0"])
def test_a_noop_interval_is_a_fraction_from_76_on(name: str):
    settings = ProducerSettings(release=RELEASES[name])
    taken, refused = (
        [apply_control(settings, b"set_noop_interval", value).status is Status.SUCCESS for value in values]
        for values in INTERVALS
    )
    if name == "7.2":
        assert (taken, refused) == ([False] * 4 + [True] * 2 + [False], [True] + [False] * 5)
    else:
        assert (all(taken), any(refused)) == (True, False)
        assert settings.noop_interval_s == 1.5


def test_a_buffer_of_80_has_32_bits():
    for name, status in (("7.2", Status.SUCCESS), ("7.6", Status.SUCCESS), ("8.0", Status.EINVAL)):
        settings = ProducerSettings(release=RELEASES[name])
        assert apply_control(settings, b"connection_buffer_size", b"4294967301").status is status
        assert settings.buffer_bytes == (5 if status is Status.SUCCESS else 0)
