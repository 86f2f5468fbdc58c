"""Single changes out of data messages."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from dcpstream.client.machine.connection.rows import FrameDecoder, NativeDecoder, NativeRows
from dcpstream.client.machine.reader.changes import Change, change_of, changes_of, native_changes
from dcpstream.client.machine.tracker import Run
from dcpstream.errors import FieldError
from dcpstream.runtime import kernel
from dcpstream.wire import Datatype, Frame, Opcode
from dcpstream.wire.values import encode_xattrs, snappy_compress
from lab.tools.patience import patient
from tests.kit import raw_frames

Way = Callable[..., tuple[Change, ...]]
NAMES = {0: ("_default", "_default"), 8: ("inventory", "flights")}


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
