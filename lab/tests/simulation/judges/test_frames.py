"""The judges' own reading of frames agrees with the library's writing of them."""

from __future__ import annotations

from dcpstream.wire import Opcode, encode_request, encode_response
from dcpstream.wire.keys import leb128_encode
from lab.simulation.judges.frames import Cutter, collection_and_key, cut


def test_frames_are_cut_wherever_the_pieces_end() -> None:
    data = encode_request(Opcode.SET, vbid=7, key=b"key", value=b"value", extras=bytes(8), framing=b"\x11\x01")
    data += encode_response(Opcode.SET, status=2, opaque=9, value=b"x")
    whole = list(cut(data))
    assert [(each.opcode, each.is_response, each.number, each.key, each.value) for each in whole] == [
        (1, False, 7, b"key", b"value"),
        (1, True, 2, b"", b"x"),
    ]
    for size in (1, 5, 24, 25):
        cutter = Cutter()
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        assert [message for piece in pieces for message in cutter.take(piece)] == whole


def test_keys_begin_with_a_collection() -> None:
    for number in (0, 8, 127, 128, 70_000):
        assert collection_and_key(leb128_encode(number) + b"key") == (number, b"key")
