"""Rules of failover logs."""

from __future__ import annotations

import pytest

from dcpstream.wire import Opcode, Status
from tests.conformance.harness import Node
from tests.conformance.rules import rule


@rule("FOL-01")
@pytest.mark.parametrize("fields", [{"extras": b"\0"}, {"key": b"k"}, {"value": b"v"}, {"datatype": 1}])
def test_the_request_is_a_bare_header(fields: dict[str, object]) -> None:
    peer = Node().producer()
    assert peer.call(Opcode.DCP_GET_FAILOVER_LOG, vbid=1, **fields).status == Status.EINVAL
    assert peer.call(Opcode.DCP_GET_FAILOVER_LOG, vbid=1).status == Status.SUCCESS


@rule("FOL-03")
def test_an_unknown_vbucket_has_no_log() -> None:
    node = Node()
    peer = node.producer()
    for vbid in (4, 65535):
        answer = peer.call(Opcode.DCP_GET_FAILOVER_LOG, vbid=vbid)
        assert (answer.status, answer.value) == (Status.NOT_MY_VBUCKET, b"")
    for state in (1, 2, 3, 4):
        node.set_vbucket(2, state)
        assert peer.call(Opcode.DCP_GET_FAILOVER_LOG, vbid=2).status == Status.SUCCESS
