"""STAT dcp of a consumer: the names that servers were recorded with."""

from dcpstream.dcp.consumer.stats import consumer_stats
from dcpstream.wire import Opcode, decode_frame
from dcpstream.wire.release import RELEASES
from tests.kit import recorded
from tests.kit.cases import each_case
from tests.kit.lists import MachineProducer

RECORDED = "eq_dcpq:stats-cons:"
RECORDED_USER = RECORDED + "user"


def recorded_names(release: str) -> list[str]:
    names = []
    for line in recorded.server_transcript("s22", release):
        if line.direction == "s2c" and line.frame[1] == Opcode.STAT:
            key = decode_frame(line.frame).key.decode()
            if key.startswith(RECORDED) and key not in names:
                names.append(key)
    # From 8.0 on the user stands before the machine's own figures: the node knows it.
    return [name.removeprefix(RECORDED).replace("stream_732_", "stream_1_") for name in names if name != RECORDED_USER]


@each_case("release", ["7.2", "8.0"])
def test_names_in_their_order(release: str):
    source = MachineProducer(release=RELEASES[release])
    source.accept()
    stats = {name.removeprefix("eq_dcpq:c:"): value for name, value in consumer_stats(source.machine)}
    assert list(stats) == recorded_names(release)
    assert (stats["stream_1_state"], stats["stream_1_opaque"], stats["max_buffer_bytes"]) == (
        "reading",
        "1",
        "52428800",
    )
    assert (stats["flatbuffers_system_events"], stats["pending_add_stream"]) == ("true", "false")


def test_they_follow_the_stream():
    source = MachineProducer()
    source.request()
    stats = dict(consumer_stats(source.machine))
    assert (stats["eq_dcpq:c:stream_1_state"], stats["eq_dcpq:c:pending_add_stream"]) == ("pending", "true")
    source = MachineProducer()
    source.accept()
    source.marker(0, 5, 2)
    source.mutation(b"a", 3)
    source.now = 6.0
    source.take()
    source.now = 7.5
    source.take()
    stats = dict(consumer_stats(source.machine))
    assert stats["eq_dcpq:c:stream_1_last_received_seqno"] == "3"
    assert stats["eq_dcpq:c:stream_1_cur_snapshot_type"] == "disk"
    assert int(stats["eq_dcpq:c:total_acked_bytes"]) > 0
    assert stats["eq_dcpq:c:paused_current_duration"] == "1500 ms"
    assert stats["eq_dcpq:c:paused_previous_ReadyListEmpty_duration"] == "6000 ms"
