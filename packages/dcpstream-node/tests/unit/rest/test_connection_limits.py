"""The end of the management port."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings

from aiohttp import web

from dcpstream_node.engine.limit_log import LimitLog
from dcpstream_node.rest.connection_limits import HttpConnectionLimits
from dcpstream_node.shell.limits import Limits
from dcpstream_node.shell.listeners import listen


def test_a_stop_closes_connections_of_every_age() -> None:
    async def run(turns: int) -> None:
        runner = web.AppRunner(web.Application(), shutdown_timeout=1.0)
        await runner.setup()
        assert runner.server is not None
        guard = HttpConnectionLimits(Limits(), LimitLog())
        listener = listen("127.0.0.1", 0, "mgmt_port")
        await guard.listen(runner.server, listener)
        for _ in range(turns + 1):
            clients.append(socket.create_connection(listener.getsockname()))
            await asyncio.sleep(0)
        await guard.stop()
        await runner.cleanup()

    clients: list[socket.socket] = []
    with warnings.catch_warnings(record=True) as left:
        warnings.simplefilter("always")
        for turns in range(5):
            asyncio.run(run(turns))
        gc.collect()
    for client in clients:
        client.close()
    assert [str(warning.message) for warning in left] == []
