"""One connection: handshake, requests and answers, loss, and the bytes of a replicator."""

from __future__ import annotations

import pytest

from dcpstream.errors import ConnectionLost, StatusError
from dcpstream.model import NodeAddress
from dcpstream.wire import Frame, FrameReader, Opcode, Status, encode_request, encode_response
from dcpstream_node.cluster.machine.link import Link
from tests.kit.cases import each_case

HANDSHAKE = (Opcode.HELLO, Opcode.SASL_AUTH, Opcode.SELECT_BUCKET)


def sent(link: Link) -> list[Frame]:
    reader = FrameReader()
    reader.receive_data(link.data_to_send())
    return list(reader.frames())


def opened() -> Link:
    link = Link("n0", NodeAddress("127.0.0.1", 1), "admin", "secret", "default")
    assert [frame.opcode for frame in sent(link)] == [*HANDSHAKE]
    link.receive_data(b"".join(encode_response(opcode) for opcode in HANDSHAKE))
    assert link.opened.value is link
    return link


def test_an_order_must_succeed():
    link = opened()
    order = link.order(Opcode.DEL_VBUCKET, vbid=3)
    (frame,) = sent(link)
    link.receive_data(encode_response(frame.opcode, opaque=frame.opaque, status=Status.NOT_MY_VBUCKET))
    with pytest.raises(StatusError, match="vbucket 3 of node n0"):
        order.value  # noqa: B018 - it raises


def test_a_waiting_caller_gets_the_loss():
    link = opened()
    waiting, stats = link.request(Opcode.NOOP), link.stats(b"")
    link.lost(ConnectionLost("cut"))
    assert str(waiting.error) == str(stats.error) == "cut"
    assert isinstance(link.request(Opcode.NOOP).error, ConnectionLost)
    assert isinstance(link.order(Opcode.NOOP).error, ConnectionLost)
    assert isinstance(link.stats(b"").error, ConnectionLost)


@each_case("cut", range(0, 24 * 5 + 1, 7))
def test_a_tap_gets_every_byte_after_the_handshake(cut: int):
    """Also those that came together with its end, cut anywhere."""
    link = Link("n0", NodeAddress("127.0.0.1", 1), "admin", "secret", "default")
    tapped = bytearray()
    link.tap = tapped.extend
    more = encode_request(Opcode.DCP_NOOP, opaque=1) + encode_request(Opcode.DCP_NOOP, opaque=2)
    data = b"".join(encode_response(opcode) for opcode in HANDSHAKE) + more
    link.receive_data(data[:cut])
    link.receive_data(data[cut:])
    link.receive_data(more)
    assert bytes(tapped) == 2 * more
