"""One connection to the KV port: it moves bytes between a socket and a session, and decides nothing.

A read of up to 512 KiB goes to the session in one piece and is answered with one write. All connections of a node read
into the same buffer, because the loop reads one of them at a time and its bytes are processed before the next read; the
rest of an unfinished frame is kept with the connection. A client that does not take its answers is not read from. DCP
data is pulled from the session only while the socket accepts it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

from dcpstream.wire.frames import HEADER_BYTES
from dcpstream_node.engine import Session
from dcpstream_node.engine.limit_log import described
from dcpstream_node.engine.session.step import Wants
from dcpstream_node.shell.fault_gate import FaultGate

if TYPE_CHECKING:
    from dcpstream.wire.buffers import Buffer
    from dcpstream_node.engine.access.users import User
    from dcpstream_node.shell.server import KvServer

logger = logging.getLogger(__name__)

# Looked up once: the members of an enumeration are slow to reach in Python 3.11, and every read needs some.
_INPUT = Wants.INPUT
_ROOM = Wants.ROOM
_TURN = Wants.TURN
_CLOSE = Wants.CLOSE

READ_BYTES = 512 * 1024
"""Size of the buffer that all connections read into. The more requests one read brings, the cheaper is each of them."""
SHORT_READ_BYTES = 16 * 1024
"""Largest read while memory is short."""
OWN_BYTES = 64 * 1024
"""An unfinished frame of this size gets a buffer of its own, which grows as bytes arrive, because copying the frame for
each read would cost more."""
BULKY_BYTES = 16 * 1024
"""A larger read waits for its turn while other connections wait; single requests do not."""
JOIN_BYTES = 64 * 1024
"""Pieces are joined to writes of at most this size: a write costs more than the copy. Larger pieces are not copied."""
WRITE_LIMIT_BYTES = 4 * 1024 * 1024
"""Answers that may wait in the transport before the node stops reading from a client. It is large, because otherwise a
client that pipelines without reading would deadlock."""
SHORT_WRITE_LIMIT_BYTES = 64 * 1024
"""The same while memory is short."""
CLOSE_TIMEOUT_S = 1.0
"""Time that a closing connection has to accept its output."""

BLOCKED_PAUSE_S = 0.1
"""Least time between two looks at the time-outs of a DCP connection whose peer does not read. What is due waits for the
socket, so its time stays in the past."""


class KvProtocol(asyncio.BufferedProtocol):
    """One connection.

    Attributes:
        session: answers the requests; None before the connection is made, and after a refusal.
        received: number of bytes received.
        sent: number of bytes given to the transport.
        held_bytes: size of unfinished requests.
        user: the user who was last counted for the connection.
    """

    def __init__(self, server: KvServer) -> None:
        self.server = server
        self.session: Session | None = None
        self.received = 0
        self.sent = 0
        self.held_bytes = 0
        self.user: User | None = None
        self._transport: asyncio.Transport | None = None
        self._below: asyncio.Transport | None = None
        self._pending = b""
        self._own: bytearray | None = None
        self._filled = 0
        self._needed = HEADER_BYTES
        self._is_writable = True
        self._is_reading = True
        self._has_dcp = False
        self._is_sliced = False
        self._timer: asyncio.TimerHandle | None = None
        self._pooled: list[memoryview] = []
        self._gate: FaultGate | None = None

    # ---------------------------------------------------------------------------------------------------- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_LIMIT_BYTES)
        peer = transport.get_extra_info("peername")
        name = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "client"
        local = transport.get_extra_info("sockname")
        host = local[0] if isinstance(local, tuple) else "127.0.0.1"
        encryption = transport.get_extra_info("ssl_object")
        # An encrypted transport keeps a part of its output in the transport below it.
        self._below = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)
        if not self.server.admit(self, name, host, encryption):
            self._transport.abort()
            return
        logger.debug("%s: connected", name)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection was lost."""
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        if self._gate is not None:
            self._gate.stop()
        self._pending, self._own = b"", None
        self._count()
        self.server.forget(self)
        session = self.session
        if session is not None:
            session.connection_lost()
            logger.debug("%s: gone (%s)", session.peer, exc or session.close_reason)
            self.server.end_input()  # other consumers of the bucket hear that they are fewer

    def eof_received(self) -> bool:
        """The client sends no more data: close."""
        return False

    def pause_writing(self) -> None:
        """The socket accepts no more output for now."""
        self._is_writable = False

    def resume_writing(self) -> None:
        """The socket accepts output again."""
        self._is_writable = True
        self._go_on_sending()

    def _go_on_sending(self) -> None:
        """Nothing holds the output back any more."""
        if not self._is_sliced:
            self._process(self._take())
        if self.session is not None and self._has_dcp:
            self.server.engine.ready.add(self.session)  # with all others that have something to stream
            self.server.schedule_turn()
        else:
            self.send()

    @property
    def waiting_bytes(self) -> int:
        """Size of the answers that the client has not taken."""
        if self._transport is None:
            return 0
        below = self._below.get_write_buffer_size() if self._below is not None else 0
        return self._transport.get_write_buffer_size() + below

    @property
    def is_unfinished(self) -> bool:
        """Whether a frame is incomplete, and the rest of it is being read."""
        return self.held_bytes > 0 and self._is_reading

    def limit_writing(self, is_short: bool) -> None:
        """Lower or raise the limit of the transport's buffer; DCP connections have a low one anyway."""
        if self._transport is not None and not self._has_dcp and not self._transport.is_closing():
            self._transport.set_write_buffer_limits(high=SHORT_WRITE_LIMIT_BYTES if is_short else WRITE_LIMIT_BYTES)

    # ------------------------------------------------------------------------------------------------------- input

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the next bytes."""
        if self._own is not None:
            return memoryview(self._own)[self._filled :]
        shared, pending = self.server.read_view, self._pending
        self._filled = len(pending)
        if pending:
            shared[: self._filled] = pending
        if self.server.memory.is_short:
            return shared[self._filled : max(self._filled + 1, SHORT_READ_BYTES)]
        return shared[self._filled :] if pending else shared

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes arrived in the buffer."""
        self.received += nbytes
        self.server.engine.counters.bytes_received += nbytes
        self._filled += nbytes
        session = self.session
        if session is None:
            return
        own = self._own
        if own is None:
            data = bytes(self.server.read_view[: self._filled])
            if self._filled > BULKY_BYTES and self.server.is_busy and not self._is_sliced:
                self._pending = data
                self._count()
                self._postpone()
            elif self._filled >= self._needed:
                self._process(data)
            else:
                self._keep(data)
        elif self._filled >= self._needed:
            self._process(self._take())
        elif self._filled == len(own):
            self._resize(own, self._needed)
            self._count()

    def _take(self) -> bytes:
        if self._own is not None:
            data, self._own = bytes(memoryview(self._own)[: self._filled]), None
            return data
        data, self._pending = self._pending, b""
        return data

    def _keep(self, data: bytes) -> None:
        """Keep the rest of the input for the next read; the start of a large frame gets a buffer of its own."""
        if self._is_reading and self._needed > len(data) >= OWN_BYTES:
            self._pending, self._filled = b"", len(data)
            self._resize(data, self._needed)
        else:
            self._pending = data
        self._count()

    def _resize(self, data: bytes | bytearray, needed: int) -> None:
        """Make a buffer of twice the data's size, but at most of the frame's checked size."""
        own = bytearray(min(needed, 2 * len(data)))
        own[: len(data)] = data
        self._own = own

    def _count(self) -> None:
        held = len(self._own) if self._own is not None else len(self._pending)
        if held != self.held_bytes:
            grown, self.held_bytes = held - self.held_bytes, held
            self.server.memory.hold(grown)

    def _process(self, data: bytes) -> None:
        """Pass the input to the session while it accepts requests and the client takes the answers."""
        session, transport = self.session, self._transport
        if session is None or transport is None or transport.is_closing():
            return
        self.server.set_time()
        takes_answers, wants = self._takes_answers(transport), _ROOM
        while wants is _ROOM and takes_answers:
            output, wants, used, self._needed, _ = session.receive(data)
            data = data[used:]
            if output:
                self._write(output)
                takes_answers = self._takes_answers(transport)
        is_reading = wants is _INPUT and takes_answers
        if is_reading is not self._is_reading:
            self._set_reading(is_reading)
        if wants is _TURN and not self._is_sliced:
            self._postpone()
        if session.identity.user is not self.user:
            self.server.count_user(self)
        if session.dcp is not None and not self._has_dcp:
            self._has_dcp = True
            # From now on data is pulled when the transport is empty, so little is copied into its buffer. With 0,
            # encrypted transports would pause and resume in turns.
            transport.set_write_buffer_limits(high=1)
        if data or self.held_bytes:
            self._keep(data)
        self.server.end_input()

    def _postpone(self) -> None:
        """Wait for a turn with the kept input, and read nothing until then."""
        self._is_sliced = True
        self._set_reading(False)
        self.server.postpone(self)

    def go_on(self) -> None:
        """Continue after the others had their turn."""
        self._is_sliced = False
        try:
            self._process(self._take())
        except Exception as error:  # noqa: BLE001 - logged; only this connection is lost
            self._drop("a request failed", error)

    def _takes_answers(self, transport: asyncio.Transport) -> bool:
        """Whether the client reads. A DCP client's BUFFER_ACK must be read also while data waits for it."""
        if self._is_writable and self._gate is None:
            return True
        return self._can_send or (self._has_dcp and transport.get_write_buffer_size() < WRITE_LIMIT_BYTES)

    def _set_reading(self, is_reading: bool) -> None:
        if is_reading != self._is_reading and self._transport is not None and not self._transport.is_closing():
            self._is_reading = is_reading
            if is_reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # ------------------------------------------------------------------------------------------------------ output

    @property
    def _can_send(self) -> bool:
        """Whether the socket takes more, and no fault holds back what came before."""
        return self._is_writable and (self._gate is None or self._gate.is_empty)

    def _write(self, pieces: Sequence[Buffer]) -> None:
        faults, session = self.server.faults, self.session
        if self._gate is None and faults.has_sent and session is not None:
            self._gate = FaultGate(faults, session, self.server.loop, self._send_on, self._cut, self._go_on_sending)
        if self._gate is None:
            self._send_pieces(pieces)
            return
        self._gate.put(b"".join(pieces))
        if self._gate.is_empty and not faults.has_sent:
            self._gate = None

    def _send_on(self, data: bytes) -> None:
        self._send_pieces([data])

    def _cut(self) -> None:
        if self.session is not None:
            self.session.close("a fault that was asked for")
        if self._transport is not None:
            self._transport.close()

    def _send_pieces(self, pieces: Sequence[Buffer]) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        size = sum(map(len, pieces))
        self.sent += size
        self.server.engine.counters.bytes_sent += size
        for data in joined(pieces):
            if transport.is_closing():  # the peer disconnected; asyncio warns of each further write
                break
            transport.write(data)
        if self.waiting_bytes:
            self.server.memory.wait(self, size)

    def send(self) -> None:
        """Send the session's output while the socket accepts it."""
        session, transport = self.session, self._transport
        if session is None or transport is None or transport.is_closing():
            return
        if self._pooled:
            self._give_back(transport)
        room = self.server.pull_bytes if self._can_send else 0 if self._takes_answers(transport) else None
        step = session.send(room)
        if step.output:
            self._write(step.output)
            if self._has_dcp:
                pooled = [piece for piece in step.output if isinstance(piece, memoryview)]
                if pooled:
                    self._pooled += pooled
                    self._give_back(transport)
        if step.wants is _CLOSE:
            self._close()
            return
        if step.wants is _TURN:
            self.server.schedule_turn()
        elif step.wants is _INPUT and not self._is_reading and not self._is_sliced:
            self._process(self._take())
        if step.wake_at is not None:
            self._schedule_timeout(step.wake_at)

    def _give_back(self, transport: asyncio.Transport) -> None:
        """Return the memory of data that was sent; a transport that still has output may refer to it."""
        if not transport.get_write_buffer_size():
            self.server.engine.buffers.give_back(self._pooled)
            self._pooled.clear()

    def send_or_drop(self) -> None:
        """As `send`; a fault closes this connection and no other."""
        try:
            self.send()
        except Exception as error:  # noqa: BLE001 - logged; only this connection is lost
            self._drop("sending to it failed", error)

    def _drop(self, why: str, error: Exception) -> None:
        """Close the connection after a fault of the node; the log names the place of the fault, and no data."""
        peer = self.session.peer if self.session is not None else "client"
        text = f"{peer}: dropped, because {why}: {described(error)}"
        self.server.engine.log.say("faults of the node", text, self.server.loop.time(), level=logging.ERROR)
        self.abort()

    def _close(self) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.close()
            self.server.loop.call_later(CLOSE_TIMEOUT_S, self.abort)

    def abort(self) -> None:
        """Close the connection at once, without its waiting output."""
        if self._transport is not None:
            self._transport.abort()

    def close(self, reason: str = "the node stops") -> None:
        """Close the connection after its waiting output."""
        if self.session is not None:
            self.session.close(reason)
        self._close()

    # -------------------------------------------------------------------------------------------------------- time

    def _schedule_timeout(self, at: float) -> None:
        if not self._can_send:
            at = max(at, self.server.loop.time() + BLOCKED_PAUSE_S)
        if self._timer is not None:
            if self._timer.when() <= at and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._timer = self.server.loop.call_at(at, self._timed_out)

    def _timed_out(self) -> None:
        self._timer = None
        if self.session is None or self._transport is None:
            return
        self.server.set_time()
        self.session.handle_timeout()
        self.send_or_drop()


def joined(pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    """The same bytes in fewer pieces; see `JOIN_BYTES`."""
    group: list[Buffer] = []
    size = 0
    for piece in pieces:
        if group and size + len(piece) > JOIN_BYTES:
            yield group[0] if len(group) == 1 else b"".join(group)
            group, size = [], 0
        group.append(piece)
        size += len(piece)
    if group:
        yield group[0] if len(group) == 1 else b"".join(group)
