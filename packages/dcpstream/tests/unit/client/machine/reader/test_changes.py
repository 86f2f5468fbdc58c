"""Single changes out of data messages."""

from __future__ import annotations

import pickle
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import FrozenInstanceError, replace

import pytest

from dcpstream.client.machine.connection.rows import FrameDecoder, NativeDecoder, NativeRows
from dcpstream.client.machine.reader.changes import Change, change_of, changes_of, native_changes
from dcpstream.client.machine.tracker import Run
from dcpstream.errors import FieldError
from dcpstream.runtime import kernel
from dcpstream.wire import Datatype, Frame, Opcode, decode_frame
from dcpstream.wire.values import encode_xattrs, snappy_compress
from lab.tools.patience import patient
from tests.kit import raw_frames
from tests.kit.messages import deletion, mutation

Way = Callable[..., tuple[Change, ...]]
NAMES = {0: ("_default", "_default"), 8: ("inventory", "flights")}


def test_a_mutation() -> None:
    change = change_of(decode_frame(mutation(1, 5, vbid=3, key=b"a", value=b"{}", rev=2)), True, NAMES, 0xA)
    assert (change.op, change.key, change.value) == ("mutation", b"a", b"{}")
    assert (change.scope, change.collection) == ("_default", "_default")
    assert (change.vbid, change.vbuuid, change.seqno, change.rev, change.cas) == (3, 0xA, 5, 2, 5 << 16)
    assert (change.flags, change.expiry) == (7, 0)


def test_a_deletion_without_a_body() -> None:
    change = change_of(decode_frame(deletion(1, 5)), True, NAMES, 0xA)
    assert (change.op, change.value, change.expiry) == ("deletion", None, 1_700_000_000)


def test_an_old_deletion_has_no_time() -> None:
    frame = Frame(0x80, Opcode.DCP_DELETION, extras=struct.pack(">QQH", 4, 2, 0), key=b"k")
    change = change_of(frame, False, NAMES, 0xA)
    assert (change.key, change.expiry) == (b"k", 0)


def test_an_expiration() -> None:
    frame = Frame(0x80, Opcode.DCP_EXPIRATION, extras=struct.pack(">QQI", 4, 2, 99), key=b"\x08k")
    change = change_of(frame, True, NAMES, 0xA)
    assert (change.op, change.expiry, change.collection) == ("expiration", 99, "flights")


def test_an_unknown_collection_shows_its_id() -> None:
    frame = Frame(0x80, Opcode.DCP_EXPIRATION, extras=struct.pack(">QQI", 4, 2, 99), key=b"\x7fk")
    assert change_of(frame, True, NAMES, 0xA).collection == "0x7f"


def test_compressed_values_and_xattrs() -> None:
    frame = decode_frame(mutation(1, 5, value=snappy_compress(encode_xattrs({"_sync": b"1"}, b'{"a":1}'))))
    frame.datatype = Datatype.JSON | Datatype.SNAPPY | Datatype.XATTR
    change = change_of(frame, True, NAMES, 0xA)
    assert (change.value, change.xattrs) == (b'{"a":1}', {"_sync": b"1"})


def test_an_empty_document_is_not_a_missing_one() -> None:
    assert change_of(decode_frame(mutation(1, 5, value=b"")), True, NAMES, 0xA).value == b""


def test_broken_extras() -> None:
    with pytest.raises(FieldError):
        change_of(Frame(0x80, Opcode.DCP_MUTATION, extras=b"123", key=b"\0k"), True, NAMES, 0xA)


def natively(data: bytearray, runs: Sequence[Run], vbuuids: Mapping[int, int]) -> tuple[Change, ...]:
    """The changes in runs of rows, by the kernel."""
    if kernel.native is None:
        pytest.skip(f"no native kernel here: {kernel.description}")
    rows, _ = NativeDecoder(kernel.native, True).decode(data, 0, len(data))
    assert isinstance(rows, NativeRows)
    return native_changes(rows, runs, NAMES, vbuuids)


@pytest.mark.parametrize("way", [natively])
class TestColumns:
    """Changes out of columns are those out of frames."""

    @staticmethod
    def stream(seed: int, *more: bytes) -> bytearray:
        """Messages of every kind: with attributes, compressed, of known and unknown collections."""
        chance = random.Random(seed)
        messages: list[bytes] = []
        for seqno in range(1, 200):
            datatype = chance.randrange(8)
            value = chance.randbytes(chance.randrange(40))
            if datatype & Datatype.XATTR:
                value = encode_xattrs({"_sync": b"{}"}, value)
            if datatype & Datatype.SNAPPY:
                value = snappy_compress(value)
            fields = {
                "vbucket": chance.randrange(4),
                "cas": chance.getrandbits(64),
                "datatype": datatype,
                "seqno": seqno,
                "rev": chance.getrandbits(64),
            }
            key = chance.choice([b"\0", b"\x08", b"\x7f"]) + chance.randbytes(chance.randrange(9))
            kind = chance.randrange(5)
            if kind < 2:
                messages.append(
                    raw_frames.mutation(
                        key, value, flags=chance.getrandbits(32), expiry=chance.getrandbits(32), **fields
                    )
                )
            elif kind == 2:
                messages.append(raw_frames.deletion(key, value, delete_time=chance.choice([None, 7]), **fields))
            elif kind == 3:
                messages.append(raw_frames.expiration(key, value, delete_time=8, **fields))
            else:
                messages.append(raw_frames.marker())
        return bytearray(b"".join([*messages, *more]))

    @staticmethod
    def run(first: int, stop: int) -> Run:
        return Run(0, first, stop, 5, stop, 0, None, 0)

    @pytest.mark.parametrize("seed", range(10))
    def test_all_fields_are_equal(self, seed: int, way: Way) -> None:
        data = self.stream(seed)
        frames, _ = FrameDecoder().decode(data, 0, len(data))
        runs = [self.run(3, 20), self.run(20, 20), self.run(31, frames.count)]
        vbuuids = {0: 11, 1: 12, 2: 13}
        expected = changes_of(frames.frames, runs, True, NAMES, vbuuids)
        found = way(data, runs, vbuuids)
        assert found == expected
        assert [repr(change) for change in found] == [repr(change) for change in expected]
        assert [change.offset for change in found] == [change.offset for change in expected]
        assert [type(change) for change in found] == [type(change) for change in expected]
        assert [replace(change) for change in found] == list(expected)
        assert pickle.loads(pickle.dumps(found)) == expected

    def test_no_rows(self, way: Way) -> None:
        assert way(bytearray(raw_frames.marker()), [self.run(0, 0)], {}) == ()

    def test_a_value_that_cannot_be_read(self, way: Way) -> None:
        data = bytearray(raw_frames.mutation(value=b"\xff", datatype=Datatype.SNAPPY))
        with pytest.raises(FieldError):
            way(data, [self.run(0, 1)], {})

    def test_they_cannot_be_changed(self, way: Way) -> None:
        change = way(self.stream(1), [self.run(0, 1)], {})[0]
        with pytest.raises(FrozenInstanceError):
            change.seqno = 7  # type: ignore[misc]


PROGRAM = """
import sys
from dcpstream.client.machine.connection.rows import NativeDecoder
from dcpstream.client.machine.reader.changes import native_changes
from dcpstream.client.machine.tracker import Run
from dcpstream.runtime import kernel
data = bytearray(sys.stdin.buffer.read())
rows, _ = NativeDecoder(kernel.native, True).decode(data, 0, len(data))
print(len(native_changes(rows, [Run(0, 0, rows.count, 5, 1, 0, None, 0)], {}, {})))
print("pyarrow" in sys.modules)
"""


def test_with_the_kernel_changes_need_no_pyarrow() -> None:
    if kernel.native is None:
        pytest.skip(f"no native kernel here: {kernel.description}")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=raw_frames.mutation(value=bytes(100)) * 3000,
        capture_output=True,
        timeout=patient(60),
        check=True,
    )
    assert done.stdout.split() == [b"3000", b"False"]
