"""Which requests change a server."""

from __future__ import annotations

from dcpstream.wire import LAYOUTS, Kind, Opcode
from dcpstream.wire.effects import changes
from tests.kit.cases import each_case

READS = (
    *(Opcode.HELLO, Opcode.SASL_AUTH, Opcode.SELECT_BUCKET, Opcode.VERSION, Opcode.STAT, Opcode.LIST_BUCKETS),
    *(Opcode.GET, Opcode.GET_META, Opcode.GET_REPLICA, Opcode.SUBDOC_MULTI_LOOKUP, Opcode.OBSERVE_SEQNO),
    *(
        Opcode.DCP_OPEN,
        Opcode.DCP_CONTROL,
        Opcode.DCP_STREAM_REQ,
        Opcode.DCP_CLOSE_STREAM,
        Opcode.DCP_BUFFER_ACK,
        Opcode.DCP_NOOP,
    ),
    *(Opcode.GET_ALL_VB_SEQNOS, Opcode.GET_FAILOVER_LOG, Opcode.GET_CLUSTER_CONFIG, Opcode.GET_COLLECTIONS_MANIFEST),
)
ACTS = (
    *(Opcode.SET, Opcode.ADD, Opcode.DELETE, Opcode.TOUCH, Opcode.GAT, Opcode.INCREMENT, Opcode.SUBDOC_COUNTER),
    *(Opcode.GET_LOCKED, Opcode.UNLOCK, Opcode.SET_WITH_META, Opcode.EVICT_KEY),
    *(Opcode.SET_VBUCKET, Opcode.DEL_VBUCKET, Opcode.CREATE_BUCKET, Opcode.SET_COLLECTIONS, Opcode.SET_PARAM),
    *(Opcode.DCP_ADD_STREAM, Opcode.DCP_MUTATION, Opcode.DCP_SEQNO_ACKNOWLEDGED, Opcode.ADJUST_TIMEOFDAY, Opcode.RSET),
)


@each_case("opcode", READS)
def test_readers_change_nothing(opcode: Opcode) -> None:
    assert not changes(opcode)


@each_case("opcode", ACTS)
def test_writers_do(opcode: Opcode) -> None:
    assert changes(opcode)


def test_nobody_knows_what_an_unknown_request_does() -> None:
    known = {layout.opcode for layout in LAYOUTS if layout.kind is Kind.REQUEST}
    assert all(changes(opcode) for opcode in set(range(256)) - known)


def test_quiet_forms_do_what_the_others_do() -> None:
    pairs = [(layout.opcode, layout.quiet_of) for layout in LAYOUTS if layout.quiet_of is not None]
    assert pairs
    assert [(quiet, loud) for quiet, loud in pairs if changes(quiet) != changes(loud)] == []
