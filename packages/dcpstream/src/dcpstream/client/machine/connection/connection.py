"""One connection to a node from the first byte on: handshake, then the session, over one receive buffer.

Sans-IO, in the shape of asyncio's BufferedProtocol: the shell reads into `get_buffer()`, says how much with
`buffer_updated()`, sends `data_to_send()`, and calls `handle_timeout()` at `next_timeout()`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import lru_cache

from dcpstream.client.machine.connection.events import Event
from dcpstream.client.machine.connection.handshake import Handshake
from dcpstream.client.machine.connection.rows import Decoder, FrameDecoder, NativeDecoder
from dcpstream.client.machine.connection.session import DcpSession
from dcpstream.client.settings.options import DcpSettings, Login
from dcpstream.client.settings.tls import ALERT, check_for_alert
from dcpstream.dcp.controls import CHANGE_STREAMS
from dcpstream.errors import ConnectTimeout, DeadConnection, RemoteProtocolError, WireError
from dcpstream.model import NodeAddress
from dcpstream.runtime import kernel
from dcpstream.wire import MAX_FRAME_BYTES, Feature, Magic
from dcpstream.wire.frames import HEADER_BYTES, decode_frame, frame_length

RECEIVE_BYTES = 4 * 1024 * 1024
"""Size that the receive buffer grows to while reads fill it: one decoding step then has up to ten thousand rows, which
halves its fixed cost compared with 1 MiB."""

FIRST_RECEIVE_BYTES = 128 * 1024
"""Initial size of the buffer: enough for questions and answers."""

GROWTH = 4
"""Factor by which the buffer grows when a read has filled it."""

BULK_BYTES = 1024 * 1024
"""Bytes that are worth a decoding step at once."""

MIN_FREE_BYTES = 64 * 1024
"""Free space below which the buffer is compacted before the next read."""

FRAME_STALL_S = 10.0
"""Seconds without a byte in the middle of a frame before the connection counts as dead. A node sends a frame at once,
so this is a node that hangs, or a path that is broken; and no NOOP can come in between to show that it lives."""

BUCKETS_REPORTED = 64
"""Buckets without a change history whose report is remembered, so that each is reported once."""

logger = logging.getLogger(__name__)

_PUSHES = frozenset((Feature.CLUSTERMAP_NOTIFICATION, Feature.CLUSTERMAP_NOTIFICATION_BRIEF))


@lru_cache(BUCKETS_REPORTED)
def _report_no_history(bucket: str) -> None:
    logger.warning("bucket %s keeps no change history: only the newest version of each document arrives", bucket)


class NodeConnection:
    """A DCP connection as a machine.

    Args:
        address: the node.
        login: user, password and bucket.
        settings: how the DCP connection is opened.
        nonce: at least 16 random bytes.
        now: seconds of a monotonic clock.
        connect_timeout_s: from now until the handshake is done.
        frames: keep all rows as frames, also with the kernel.
    """

    def __init__(
        self,
        address: NodeAddress,
        login: Login,
        settings: DcpSettings,
        nonce: bytes,
        now: float,
        *,
        connect_timeout_s: float,
        frames: bool = False,
    ) -> None:
        self.address = address
        self.settings = settings
        self.session: DcpSession | None = None
        self._bucket = login.bucket
        self._handshake = Handshake(login, address, nonce, settings)
        self._deadline = now + connect_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._keeps_frames = frames
        self._decoder: Decoder = FrameDecoder()
        self._out = [self._handshake.start()]
        self._buffer = bytearray(FIRST_RECEIVE_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._was_filled = False
        self.has_received = False
        self._stalls_at: float | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the handshake is done and `session` can be used."""
        return self.session is not None

    @property
    def takes_pushes(self) -> bool:
        """Whether the node pushes changes of the cluster map."""
        return not _PUSHES.isdisjoint(self._handshake.granted)

    @property
    def config(self) -> bytes:
        """The cluster map that came with the handshake, as JSON text."""
        return self._handshake.config

    @property
    def release(self) -> str:
        """The node's release, as it said in the handshake; empty if it did not."""
        return self._handshake.release

    def get_buffer(self) -> memoryview:
        """The free part of the buffer to read into; never empty."""
        if self._was_filled or len(self._buffer) - self._end < MIN_FREE_BYTES:
            self._tidy()
        return self._view[self._end :]

    def buffer_updated(self, count: int) -> None:
        """`count` bytes were read into `get_buffer()`; `process()` handles them."""
        self._end += count
        self.has_received = self.has_received or count > 0
        self._was_filled = self._end == len(self._buffer)

    @property
    def has_plenty(self) -> bool:
        """Whether the received bytes should be processed before more are read."""
        return self._end - self._start >= BULK_BYTES or len(self._buffer) - self._end < MIN_FREE_BYTES

    def receive_data(self, data: bytes | bytearray | memoryview, now: float) -> None:
        """Copy bytes into the buffer, and process them."""
        view = memoryview(data).cast("B")
        while len(view):
            room = self.get_buffer()
            count = min(len(room), len(view))
            room[:count] = view[:count]
            view = view[count:]
            self.buffer_updated(count)
            self.process(now)

    def process(self, now: float) -> None:
        """Handle the received bytes.

        Raises:
            DcpstreamError: the connection cannot go on and must be closed; the class says why.
        """
        if self.session is None:
            self._shake_hands(now)
        if self.session is not None and self._end - self._start >= HEADER_BYTES:
            rows, self._start = self._decoder.decode(self._buffer, self._start, self._end)
            if rows.wire_bytes:
                self.session.receive_rows(rows, now)
        if self._start == self._end:
            self._start = self._end = 0
        self._stalls_at = now + FRAME_STALL_S if self._end else None

    def close(self) -> None:
        """Free the buffer of received bytes; for a connection that is over.

        An error keeps the connection alive through its traceback, and often is in a cycle with it.
        """
        self._buffer = bytearray(1)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._was_filled = False

    def data_to_send(self) -> bytes:
        """The bytes to send now."""
        data = b"".join(self._out)
        self._out.clear()
        if self.session is not None:
            data += self.session.data_to_send()
        return data

    def events(self) -> Iterator[Event]:
        """The session's events, each once."""
        return self.session.events() if self.session is not None else iter(())

    def next_timeout(self) -> float:
        """The latest time to call `handle_timeout`."""
        if self.session is None:
            return self._deadline
        due = self.session.next_timeout()
        return due if self._stalls_at is None else min(due, self._stalls_at)

    def handle_timeout(self, now: float) -> None:
        """Check the clocks.

        Raises:
            ConnectTimeout: the handshake takes too long.
            DeadConnection: the node is silent, or has stopped in the middle of a frame.
        """
        if self.session is not None:
            self.session.handle_timeout(now)
            if self._stalls_at is not None and now >= self._stalls_at:
                raise DeadConnection(
                    f"{self.address} sent {self._end - self._start} bytes of a frame, and then nothing for "
                    f"{FRAME_STALL_S:.0f} s"
                )
        elif now >= self._deadline:
            raise ConnectTimeout(f"{self.address} did not let us in within {self._connect_timeout_s:g} s")

    def _shake_hands(self, now: float) -> None:
        if self._end - self._start >= len(ALERT):
            check_for_alert(self.address, self._view[self._start : self._start + len(ALERT)])
        while self._end - self._start >= HEADER_BYTES and self.session is None:
            try:
                end = self._start + frame_length(self._buffer, self._start)
                if end > self._end:
                    return
                frame = decode_frame(self._view[: self._end], self._start)
            except WireError as error:
                raise RemoteProtocolError(
                    f"{self.address} does not speak this protocol; is it the data port? ({error})"
                ) from error
            self._start = end
            if frame.magic == Magic.SERVER_REQUEST:
                continue  # a pushed cluster map; the answer with ours is still to come
            self._out.append(self._handshake.receive(frame))
            if self._handshake.is_done:
                has_collections = Feature.COLLECTIONS in self._handshake.granted
                if kernel.native is not None and not self._keeps_frames:
                    self._decoder = NativeDecoder(kernel.native, has_collections)
                has_history = CHANGE_STREAMS in self._handshake.controls
                if self.settings.history and not has_history:
                    _report_no_history(self._bucket)
                self.session = DcpSession(
                    self.address,
                    self.settings,
                    has_collections,
                    now,
                    is_8_0=self._handshake.is_8_0,
                    has_history=has_history,
                    table=self._decoder.table,
                )

    def _tidy(self) -> None:
        """Make room: move the incomplete frame to the front, of a larger buffer if necessary."""
        left = self._end - self._start
        size = len(self._buffer)
        if self._was_filled:
            size = max(size, min(GROWTH * size, RECEIVE_BYTES))
        if left >= HEADER_BYTES:
            size = max(size, min(frame_length(self._buffer, self._start), MAX_FRAME_BYTES) + MIN_FREE_BYTES)
        if size > len(self._buffer):
            larger = bytearray(size)
            larger[:left] = self._view[self._start : self._end]
            self._buffer = larger
            self._view = memoryview(larger)
        elif self._start:
            self._buffer[:left] = self._buffer[self._start : self._end]
        self._start, self._end = 0, left
        self._was_filled = False
