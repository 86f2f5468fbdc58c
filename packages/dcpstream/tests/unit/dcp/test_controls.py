"""DCP_CONTROL: what a producer accepts beyond what the recordings show, and what both other ends ask for."""

import dataclasses
import operator

from dcpstream.client.settings.options import DcpSettings
from dcpstream.dcp.controls import (
    CONTROLS,
    ProducerSettings,
    ReplicaWishes,
    apply_control,
    asked_by_client,
    asked_by_replica,
)
from dcpstream.wire import OpenFlag, Status
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


@each_case(("value", "expected"), [(b"10 ", 10), (b" +7", 7), (b"0", 0), (b"4294967295", 2**32 - 1)])
def test_numbers_as_the_server_reads_them(value, expected):
    settings = ProducerSettings()
    assert apply_control(settings, b"connection_buffer_size", value).status is Status.SUCCESS
    assert settings.buffer_bytes == expected


@each_case("value", [b"-1", b"", b"1.5", b"0x10", b"1e3", b"9" * 30, b"\xd9\xa1"])
def test_what_is_no_number(value):
    settings = ProducerSettings(buffer_bytes=7)
    assert apply_control(settings, b"connection_buffer_size", value).status is Status.EINVAL
    assert settings.buffer_bytes == 7


@each_case("value", [b"-1", b"", b"1.5", b"0x10", b"1e3", b"9" * 30, b"\xd9\xa1"])
def test_a_noop_interval_of_a_72_is_a_whole_number(value):
    settings = ProducerSettings(release=RELEASES["7.2"])
    assert apply_control(settings, b"set_noop_interval", value).status is Status.EINVAL
    assert settings.noop_interval_s == ProducerSettings().noop_interval_s


def test_three_names_match_by_prefix():
    settings = ProducerSettings()
    assert apply_control(settings, b"e", b"true").status is Status.SUCCESS
    assert apply_control(settings, b"c", b"5").status is Status.SUCCESS
    assert apply_control(settings, b"s", b"true").status is Status.NOT_SUPPORTED
    assert apply_control(settings, b"f", b"true").status is Status.EINVAL
    assert (settings.noop_enabled, settings.buffer_bytes) == (True, 5)


def test_stream_ids_and_sync_writes_exclude_each_other():
    for first, second in ((b"enable_stream_id", b"enable_sync_writes"), (b"enable_sync_writes", b"enable_stream_id")):
        settings = ProducerSettings()
        assert apply_control(settings, first, b"true").status is Status.SUCCESS
        assert apply_control(settings, second, b"true").status is Status.NOT_SUPPORTED


def test_sync_replication_needs_both_controls():
    settings = ProducerSettings()
    apply_control(settings, b"consumer_name", b"replica")
    assert not settings.is_sync_replication
    apply_control(settings, b"enable_sync_writes", b"true")
    assert settings.is_sync_replication


def test_forced_compression_needs_snappy():
    settings = ProducerSettings()
    status, context = apply_control(settings, b"force_value_compression", b"true")
    assert status is Status.EINVAL
    assert "snappy" in context
    settings.has_snappy = True
    assert apply_control(settings, b"force_value_compression", b"true").status is Status.SUCCESS
    assert settings.force_value_compression


def test_user_xattrs_of_deletions_need_the_open_flag():
    for flags, expected in ((OpenFlag.PRODUCER, Status.EINVAL), (0x105, Status.SUCCESS)):
        settings = ProducerSettings(open_flags=flags)
        assert apply_control(settings, b"include_deleted_user_xattrs", b"true").status is expected


@each_case("value", [b"true", b"false", b"0", b"\xff\x00", b"x" * 1000])
def test_no_value_breaks_a_rule(value):
    for name in CONTROLS:
        status = apply_control(ProducerSettings(), name, value).status
        assert status in (Status.SUCCESS, Status.EINVAL, Status.NOT_SUPPORTED), name


def test_a_control_sets_a_field_of_the_settings():
    fields = {field.name for field in dataclasses.fields(ProducerSettings)}
    assert {control.field for control in CONTROLS.values()} - {""} <= fields


def test_a_producer_does_not_know_a_control_of_a_later_release():
    for release, status in (("7.2", Status.EINVAL), ("7.6", Status.EINVAL), ("8.0", Status.SUCCESS)):
        settings = ProducerSettings(release=RELEASES[release])
        assert apply_control(settings, b"max_marker_version", b"2.2").status is status
        assert settings.max_marker_version == ("2.2" if status is Status.SUCCESS else "")


def test_a_producer_grants_what_its_clients_and_replicas_ask_for():
    client = asked_by_client(DcpSettings(name="reader", out_of_order=True, buffer_bytes=5))
    replica = asked_by_replica(ReplicaWishes(7, "2", "node"))
    for asked in (client, replica):
        settings = ProducerSettings(open_flags=0x105, release=RELEASES["8.5"], has_history=True)
        for name, value, _ in asked:
            assert apply_control(settings, name.encode(), value.encode()).status is Status.SUCCESS
    assert [name for name, _, is_required in client if is_required] == [
        *("connection_buffer_size", "enable_noop", "set_noop_interval"),
    ]
    assert settings.is_sync_replication
    assert (settings.buffer_bytes, settings.noop_interval_s, settings.consumer_name) == (7, 2, "node")


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
        assert apply_control(settings, b"connection_buffer_size", b"4294967296").status is status
        assert settings.buffer_bytes == (2**32 if status is Status.SUCCESS else 0)


def test_a_marker_version_needs_collections():
    settings = ProducerSettings(release=RELEASES["8.0"], has_collections=False)
    assert apply_control(settings, b"max_marker_version", b"2.2").status is Status.NOT_SUPPORTED


def test_what_is_not_wanted_is_not_asked_for():
    assert "enable_out_of_order_snapshots" not in dict(
        map(operator.itemgetter(0, 1), asked_by_client(DcpSettings("r")))
    )
    assert {"enable_sync_writes", "consumer_name"}.isdisjoint(
        name for name, _, _ in asked_by_replica(ReplicaWishes(1, "1"))
    )
