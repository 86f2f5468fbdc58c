"""Listening sockets of a node."""

from __future__ import annotations

import asyncio
import socket

from dcpstream_node.shell.listeners import listen


async def test_an_accepted_connection_sends_small_messages_at_once() -> None:
    """Without TCP_NODELAY the second of two waits for the acknowledgement of the first, which takes 40 ms."""
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def take(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accepted.put(writer)

    listener = listen("127.0.0.1", 0, "port")
    async with await asyncio.start_server(take, sock=listener):
        _, ours = await asyncio.open_connection(*listener.getsockname()[:2])
        theirs = await accepted.get()
        try:
            found = theirs.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert found, "the connection delays small messages"
        finally:
            for writer in (ours, theirs):
                writer.close()
                await writer.wait_closed()
