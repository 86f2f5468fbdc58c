"""The judge's own frames, beside those of the project's codec."""

from __future__ import annotations

from dcpstream.wire import Opcode, Status, decode_frame, encode_request, encode_response
from dcpstream_node.judge import packets
from dcpstream_node.judge.packets import Packet, packet, response


def test_both_codecs_build_the_same_frames() -> None:
    mine = packet(packets.Op.SET, "k", b"ex", "v", vb=3, opaque=7, cas=9, dt=1)
    theirs = encode_request(Opcode.SET, vbid=3, opaque=7, cas=9, datatype=1, extras=b"ex", key=b"k", value=b"v")
    assert mine == theirs
    assert response(packets.Op.SET, opaque=7, status=2, val="v") == encode_response(
        Opcode.SET, status=Status(2), opaque=7, value=b"v"
    )


def test_both_read_the_same() -> None:
    raw = packet(packets.Op.SET, "key", b"ex", "value", vb=3, opaque=7, cas=9, fr=b"\x13\x01\x00\x05")
    mine, theirs = Packet.parse(raw), decode_frame(raw)
    assert (mine.framing, mine.extras, mine.key, mine.value) == (
        theirs.framing,
        theirs.extras,
        theirs.key,
        theirs.value,
    )
