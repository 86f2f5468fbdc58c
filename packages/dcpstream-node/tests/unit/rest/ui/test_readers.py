"""DCP connections as clients: readable names, and what belongs together."""

from __future__ import annotations

from dcpstream_node.rest.ui.readers import MAX_NAME_CHARS, reader_of
from dcpstream_node.summary import DcpSummary
from tests.kit.cases import each_case


def seen(name: str, *, agent: str = "", kind: str = "producer", peer: str = "10.0.0.7:4711") -> DcpSummary:
    return DcpSummary(name=name, kind=kind, peer=peer, streams=1, user="app", agent=agent)


@each_case(
    ("connection", "program", "title"),
    [
        (seen("dcpstream:control:2110ecfb6d7c841c"), "dcpstream client", "control 2110ecfb"),
        (seen("dcpstream:d49f5f1529706cb5"), "dcpstream client", "data d49f5f15"),
        (seen("dcpstream-spark:d49f5f1529706cb5"), "Spark source", "data d49f5f15"),
        (seen("replication:ns_1@a:8091->ns_1@b:8092:travel"), "Replication", "to b:8092"),
        (seen("replication:ns_1@a:8091->ns_1@b:8092:travel", kind="consumer"), "Replication", "from a:8091"),
        (
            seen('{"a":"kafka-connector/4.2","i":"00AB/1"}'),
            "kafka-connector/4.2",
            '{"a":"kafka-connector/4.2","i":"00AB/1"}',
        ),
        (seen("mine", agent='{"a":"gocbcore/v10","i":"7/8"}'), "gocbcore/v10", "mine"),
        (seen("go-dcp/00112233445566778899"), "go-dcp", "data 00112233"),
        (seen("mine", agent="[1]"), "[1]", "mine"),
        (seen("mine"), "Unnamed client", "mine"),
        (seen("x" * 500), "Unnamed client", "x" * MAX_NAME_CHARS + "…"),
    ],
)
def test_a_connection_has_a_readable_name(connection: DcpSummary, program: str, title: str) -> None:
    reader = reader_of("travel", connection)
    assert (reader.program, reader.title, reader.host) == (program, title, "10.0.0.7")
