"""A minimal Python server, the baseline of `over_socket`: it finds the end of each request and sends an answer.

Started by `lab.bench.over_socket`. It prints its port, and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

from dcpstream.wire import HEADER, HEADER_BYTES
from dcpstream_node.shell.connection import READ_BYTES

ANSWER_BYTES = 40
"""The length of an answer to SET with a mutation token."""


class BareProtocol(asyncio.BufferedProtocol):
    """One connection: reads like the node, and evaluates only the lengths."""

    def __init__(self) -> None:
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the next bytes."""
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Answer the complete requests."""
        self._filled += nbytes
        data = bytes(self._view[: self._filled])
        at, end, count = 0, len(data), 0
        unpack = HEADER.unpack_from
        while end - at >= HEADER_BYTES:
            _, _, _, _, _, _, body, _, _ = unpack(data, at)
            if end - at < HEADER_BYTES + body:
                break
            at += HEADER_BYTES + body
            count += 1
        rest = data[at:]
        self._view[: len(rest)] = rest
        self._filled = len(rest)
        if count and self._transport is not None:
            self._transport.write(bytes(ANSWER_BYTES * count))


async def main() -> None:
    """Serve until the standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(BareProtocol, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
