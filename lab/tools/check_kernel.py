"""Check an installed wheel: the native kernel is there, and decodes as plain Python does.

python lab/tools/check_kernel.py

The build of published wheels calls it with each of them (`[tool.cibuildwheel]` in pyproject.toml).
"""

from __future__ import annotations

import sys

from dcpstream.arrow import ChangeContext, WireChunk, chunk_of, to_changes
from dcpstream.client.machine.connection.rows import FrameDecoder, NativeDecoder, NativeRows
from dcpstream.runtime import kernel
from dcpstream.wire import encode_request
from dcpstream.wire.codes import Opcode

ROWS = 1000


def main() -> int:
    """Compare both decoders; the exit status."""
    buffer = bytearray(b"").join(
        encode_request(
            Opcode.DCP_MUTATION, extras=number.to_bytes(8, "big") + bytes(23), key=b"\0%d" % number, value=b"{}" * 50
        )
        for number in range(ROWS)
    )
    if kernel.native is None:
        print(f"the wheel has no kernel: {kernel.description}")
        return 1
    frames, _ = FrameDecoder().decode(buffer, 0, len(buffer))
    rows, _ = NativeDecoder(kernel.native, collections=True).decode(buffer, 0, len(buffer))
    context = ChangeContext()
    plain = to_changes(chunk_of(frames.frames, True), context=context)
    if not isinstance(rows, NativeRows) or not to_changes(WireChunk.over(rows.columns), context=context).equals(plain):
        print("the kernel and plain Python differ")
        return 1
    print(kernel.description)
    return 0


if __name__ == "__main__":
    sys.exit(main())
