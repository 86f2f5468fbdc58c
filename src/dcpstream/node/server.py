"""The KV port: sockets around the engine's sessions, on one asyncio loop.

A read of up to 512 KiB is handed to the session in one piece and answered with one write. A client that does not take
its answers is not read from any more; DCP data is pulled from the session only while the socket takes it. After each
turn of the loop the engine tells DCP connections what the turn changed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import cast

from dcpstream.node.engine import MAX_OUTPUT_BYTES, Engine, Session
from dcpstream.runtime import Clock

logger = logging.getLogger(__name__)

READ_BYTES = 512 * 1024
"""The receive buffer of a connection; grows while a larger frame comes in. The more requests one read brings, the
cheaper is each of them; memory is only taken for what was really used of it."""
PULL_BYTES = 1024 * 1024
"""DCP data asked from a session at a time: what is done once a block is felt below, since a send leaves little of the
code and the index in the CPU's cache."""
TURN_S = 0.002
"""DCP connections send for so long, and a pull more, before the loop looks for requests again: with more of them it
takes more turns until each had its own. What a commit or a write waits for at most, several times over."""
JOIN_BYTES = 64 * 1024
"""Pieces that are smaller in all are joined to one write; larger ones are not worth a copy."""
WRITE_LIMIT_BYTES = 4 * 1024 * 1024
"""Answers that may wait in the transport before a client is not read from any more. Large, because a client that
pipelines without reading would otherwise lock up against a server that does not read."""
BACKLOG = 1024
CLOSE_TIMEOUT_S = 1.0
"""How long a connection that is to be closed may take to accept what it was sent before."""


class KvProtocol(asyncio.BufferedProtocol):
    """One connection: moves bytes between a socket and a session, decides nothing."""

    def __init__(self, server: KvServer) -> None:
        self.server = server
        self.session: Session | None = None
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._is_writable = True
        self._is_reading = True
        self._has_dcp = False
        self._timer: asyncio.TimerHandle | None = None
        self._lent: list[memoryview] = []

    # ---------------------------------------------------------------------------------------------------- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client came."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_LIMIT_BYTES)
        peer = transport.get_extra_info("peername")
        name = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "client"
        local = transport.get_extra_info("sockname")
        self.session = self.server.engine.new_session(name, local[0] if isinstance(local, tuple) else "127.0.0.1")
        if self.session is None:
            logger.warning("%s: refused, too many connections", name)
            self._transport.abort()
            return
        self.server.protocols[self.session] = self
        logger.debug("%s: connected", name)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        session = self.session
        if session is not None:
            self.server.protocols.pop(session, None)
            session.connection_lost()
            logger.debug("%s: gone (%s)", session.peer, exc or session.close_reason)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came."""
        self.server.engine.counters.bytes_received += nbytes
        self._filled += nbytes
        if self.session is not None and self._filled >= self.session.needed:
            self._process()
        elif self._filled == len(self._buffer):
            self._grow()

    def eof_received(self) -> bool:
        """The client sends no more: close."""
        return False

    def pause_writing(self) -> None:
        """The socket does not take more for now."""
        self._is_writable = False

    def resume_writing(self) -> None:
        """The socket takes more again."""
        self._is_writable = True
        self._process()
        if self.session is not None and self._has_dcp:
            self.server.engine.ready.add(self.session)  # with all others that have something to stream
            self.server.schedule_turn()
        else:
            self.send()

    # ------------------------------------------------------------------------------------------------------- input

    def _grow(self) -> None:
        """Make room for the frame that is coming in; its size was checked when its header was there."""
        assert self.session is not None, "connected"
        self._resize(max(self.session.needed, READ_BYTES))

    def _resize(self, size: int) -> None:
        buffer = bytearray(size)
        buffer[: self._filled] = self._view[: self._filled]
        self._view.release()
        self._buffer, self._view = buffer, memoryview(buffer)

    def _process(self) -> None:
        """Hand what is there to the session, as long as it goes on and its answers go out."""
        session, transport = self.session, self._transport
        if session is None or transport is None or transport.is_closing():
            return
        self.server.set_time()
        while self._filled >= session.needed and session.takes_requests:
            if not self._takes_answers(transport):
                break
            data = bytes(self._view[: self._filled])
            used = session.receive(data)
            rest = self._filled - used
            if used and rest:
                self._view[:rest] = data[used:]
            self._filled = rest
            if session.out:
                self._write(session.take_output())
            if not used and session.out_bytes <= MAX_OUTPUT_BYTES:
                break
        self._set_reading(session.takes_requests and self._takes_answers(transport))
        if session.needed > len(self._buffer):
            self._grow()
        elif len(self._buffer) > READ_BYTES >= max(self._filled, session.needed):
            self._resize(READ_BYTES)
        if session.dcp is not None and not self._has_dcp:
            self._has_dcp = True
            # From now on data is pulled when the transport is empty, so nothing is copied into its buffer for long.
            transport.set_write_buffer_limits(high=0)
        self.server.schedule_turn()

    def _takes_answers(self, transport: asyncio.Transport) -> bool:
        """Whether the client reads: a DCP client must be heard (BUFFER_ACK) also while data waits for it."""
        return self._is_writable or (self._has_dcp and transport.get_write_buffer_size() < WRITE_LIMIT_BYTES)

    def _set_reading(self, is_reading: bool) -> None:
        if is_reading != self._is_reading and self._transport is not None and not self._transport.is_closing():
            self._is_reading = is_reading
            if is_reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # ------------------------------------------------------------------------------------------------------ output

    def _write(self, pieces: list[bytes]) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        size = sum(map(len, pieces))
        self.server.engine.counters.bytes_sent += size
        if len(pieces) == 1:
            transport.write(pieces[0])
        elif size < JOIN_BYTES:
            transport.write(b"".join(pieces))
        else:
            for piece in pieces:
                transport.write(piece)

    def send(self) -> None:
        """Send what the session has, while the socket takes it."""
        session, transport = self.session, self._transport
        if session is None or transport is None or transport.is_closing():
            return
        if self._lent:
            self._give_back(transport)
        if session.held:
            self._write(session.take_output())
        if session.is_ready_to_read_on and not self._is_reading:
            self._process()
        if self._is_writable or (session.out and self._takes_answers(transport)):
            pieces = session.data_to_send(PULL_BYTES if self._is_writable else 0)
            if pieces:
                self._write(pieces)
            if pieces and (session.dcp is not None or session.is_streaming):
                self._lent += [piece for piece in cast("list[object]", pieces) if isinstance(piece, memoryview)]
                self._give_back(transport)
                self.server.engine.ready.add(session)
                self.server.schedule_turn()
        if session.close_reason is not None:
            if not session.held:
                self._close()
        elif session.dcp is not None:
            self._schedule_timeout()

    def _give_back(self, transport: asyncio.Transport) -> None:
        """What was sent needs its memory no more; a transport that still has something to send may refer to it."""
        if not transport.get_write_buffer_size():
            self.server.engine.buffers.give_back(self._lent)
            self._lent.clear()

    def send_or_drop(self) -> None:
        """As `send`; what goes wrong costs this connection and no other."""
        try:
            self.send()
        except Exception:
            peer = self.session.peer if self.session is not None else "client"
            logger.exception("%s: dropped, because sending to it failed", peer)
            self._abort()

    def _close(self) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.close()
            self.server.loop.call_later(CLOSE_TIMEOUT_S, self._abort)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close the connection: the node stops."""
        if self.session is not None:
            self.session.close("the node stops")
        self._close()

    # -------------------------------------------------------------------------------------------------------- time

    def _schedule_timeout(self) -> None:
        assert self.session is not None, "connected"
        dcp = self.session.dcp
        at = dcp.next_timeout() if dcp is not None else None
        if at is None:
            return
        if self._timer is not None:
            if self._timer.when() <= at and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._timer = self.server.loop.call_at(at, self._timed_out)

    def _timed_out(self) -> None:
        self._timer = None
        session = self.session
        if session is None or session.dcp is None or self._transport is None:
            return
        self.server.set_time()
        session.dcp.handle_timeout(self.server.engine.now)
        self.send_or_drop()


class KvServer:
    """The listening socket and its connections.

    Args:
        engine: what answers.
        clock: what time it is; its monotonic clock must be the loop's.
    """

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.engine = engine
        self.clock = clock
        engine.stopwatch = clock.monotonic
        self.loop = asyncio.get_running_loop()
        self.protocols: dict[Session, KvProtocol] = {}
        self._streaming: dict[Session, None] = {}
        self._server: asyncio.Server | None = None
        self._has_turn = False
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, listener: socket.socket) -> None:
        """Accept connections on a bound socket."""
        self._server = await self.loop.create_server(lambda: KvProtocol(self), sock=listener, backlog=BACKLOG)

    async def stop(self) -> None:
        """Close the listening socket and every connection."""
        if self._server is not None:
            self._server.close()
        for protocol in list(self.protocols.values()):
            protocol.close()
        for _ in range(int(CLOSE_TIMEOUT_S / 0.01) + 1):
            if not self.protocols:
                break
            await asyncio.sleep(0.01)

    def set_time(self) -> None:
        """Tell the engine what time it is."""
        self.engine.set_time(self.clock.monotonic(), self.clock.time_ns())

    def schedule_turn(self) -> None:
        """Let the engine tell its DCP connections what changed, once in this turn of the loop."""
        if not self._has_turn:
            self._has_turn = True
            self.loop.call_soon(self.turn)

    def turn(self) -> None:
        """Tell DCP connections what changed, and send: answers, then streams for as long as a turn may take."""
        self._has_turn = False
        streaming = self._streaming
        for session in self.engine.end_turn():
            protocol = self.protocols.get(session)
            if protocol is None:
                continue
            if session.out or not (session.dcp is not None or session.is_streaming):
                protocol.send_or_drop()
            else:
                streaming[session] = None
        until = self.loop.time() + TURN_S
        while streaming:
            session = next(iter(streaming))  # who waits longest
            del streaming[session]
            protocol = self.protocols.get(session)
            if protocol is not None:
                protocol.send_or_drop()
            if self.loop.time() >= until:
                break
        if streaming:
            self.schedule_turn()
        self._schedule_timeout()

    def _schedule_timeout(self) -> None:
        at = self.engine.next_timeout()
        if self._timer is not None:
            if at == self._timer.when() and not self._timer.cancelled():
                return
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = self.loop.call_at(at, self._timed_out)

    def _timed_out(self) -> None:
        self._timer = None
        self.set_time()
        self.engine.handle_timeout()
        self.schedule_turn()
