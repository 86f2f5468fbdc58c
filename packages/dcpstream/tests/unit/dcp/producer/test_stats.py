"""The stats of a producer have the names that the recorded servers give them."""

import re

from dcpstream.dcp.opening import Opening
from dcpstream.dcp.producer.connection import ProducerConnection
from dcpstream.dcp.producer.stats import producer_stats
from dcpstream.wire import Feature, Opcode, decode_frame
from dcpstream.wire.release import RELEASES
from tests.kit.cases import each_case
from tests.kit.lists import ListSource, ListVBucket, frame_of
from tests.kit.recorded import server_transcript


def recorded_names(release):
    """Names of the connection stats-prod in the `dcp` group, vbucket numbers as N."""
    for line in server_transcript("s22", release):
        if line.direction == "s2c" and len(line.frame) > 24 and line.frame[1] == Opcode.STAT:
            name = decode_frame(line.frame).key.decode()
            # From 8.0 on the node puts the user before the machine's own figures.
            if name.startswith("eq_dcpq:stats-prod:") and name != "eq_dcpq:stats-prod:user":
                yield re.sub(r"\d+", "N", name)


@each_case("release", ["7.2", "8.0"])
def test_names_as_recorded(release):
    source = ListSource(ListVBucket(731))
    opening = Opening("stats-prod", 1, frozenset((Feature.XERROR, Feature.SNAPPY)))
    machine = ProducerConnection(opening, source, 0.0, release=RELEASES[release])
    machine.handle(frame_of(Opcode.DCP_CONTROL, key=b"connection_buffer_size", value=b"10000"), 0.0)
    machine.handle(frame_of(Opcode.DCP_STREAM_REQ, vbid=731, extras=bytes(8) + bytes(8) + b"\xff" * 8 + bytes(24)), 0.0)
    machine.data_to_send(1000, 0.0)
    machine.data_to_send(1000, 1.0)
    machine.vbucket_rolled_back(731, 1.0)
    machine.data_to_send(1000, 2.0)
    machine.handle(frame_of(Opcode.DCP_STREAM_REQ, vbid=731, extras=bytes(8) + bytes(8) + b"\xff" * 8 + bytes(24)), 2.0)
    machine.data_to_send(1000, 3.0)
    assert {re.sub(r"\d+", "N", name) for name, _ in producer_stats(machine)} == set(recorded_names(release))


SYNC_WRITES = ((b"enable_sync_writes", b"true"), (b"consumer_name", b"replica"))


@each_case(
    ("controls", "version"),
    [((), "V1_0"), (SYNC_WRITES, "V2_0"), ((*SYNC_WRITES, (b"max_marker_version", b"2.2")), "V2_2")],
)
def test_marker_version(controls, version):
    opening = Opening("stats-prod", 1, frozenset((Feature.XERROR, Feature.COLLECTIONS)))
    machine = ProducerConnection(opening, ListSource(ListVBucket(731)), 0.0, release=RELEASES["8.0"])
    for name, value in controls:
        machine.handle(frame_of(Opcode.DCP_CONTROL, key=name, value=value), 0.0)
    assert [value for name, value in producer_stats(machine) if name.endswith("max_marker_version")] == [version]
