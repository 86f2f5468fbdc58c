"""Documents that GET_LOCKED locked: what every other command says of them."""

from __future__ import annotations

from dcpstream.wire import Opcode
from tests.conformance.harness import Node
from tests.conformance.rules import rule

KEY = b"\0k"
ALL_ONES = (1 << 64) - 1


@rule("KV-LOCK-01")
def test_get_of_a_locked_document_shows_all_ones_as_its_cas() -> None:
    node = Node()
    node.set_doc(1, "k", b"v")
    peer = node.connect()
    locked = peer.call(Opcode.GET_LOCKED, vbid=1, key=KEY)
    assert locked.status == 0
    assert locked.cas not in (0, ALL_ONES)
    answer = peer.call(Opcode.GET, vbid=1, key=KEY)
    assert (answer.status, answer.cas, answer.value) == (0, ALL_ONES, b"v")
