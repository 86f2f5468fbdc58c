"""Takeovers of a producer: what one does to the bucket whose vbucket it hands over, and how long it may take.

The stream says itself when it may hand over (`ProducerStream`); here is what that means for the bucket. A takeover that
follows a vbucket under writes for too long has the writes put off, until it has come to its end in whichever way.

Source: kv_engine engines/ep/src/dcp/active_stream.cc (takeoverSendPhase), recordings of takeovers.
"""

from __future__ import annotations

from typing import Protocol

from dcpstream.protocol.producer.stream import ProducerStream
from dcpstream.wire import Frame, Opcode

__all__ = ["TakeoverHost", "Takeovers"]


class TakeoverHost(Protocol):
    """The bucket of a producer that hands vbuckets over; both take effect at once."""

    def hand_over(self, vbid: int) -> None:
        """The other node has the vbucket: it is dead here, and every other stream out of it ends."""
        ...

    def put_off_writes(self, vbid: int, *, is_on: bool) -> None:
        """Clients' writes are told to try again later, or are taken again."""
        ...


class Takeovers:
    """The takeover streams of one connection.

    Args:
        host: the bucket; without, nothing is handed over.
        duration_s: how long one may follow a vbucket that is written to.
    """

    def __init__(self, host: TakeoverHost | None, duration_s: float) -> None:
        self._host = host
        self._duration_s = duration_s
        self._under_way: dict[int, tuple[ProducerStream, float]] = {}
        self._put_off: set[int] = set()

    def begin(self, stream: ProducerStream, now: float) -> None:
        """A stream was made that hands its vbucket over."""
        self._under_way[stream.opaque] = stream, now + self._duration_s

    def answered(self, frame: Frame) -> ProducerStream | None:
        """The other end has a snapshot, or changed its copy's state; an opaque that fits no takeover says nothing.

        Returns: the stream that may have something to say now.
        """
        stream, _ = self._under_way.get(frame.opaque, (None, 0.0))
        if stream is None:
            return None
        if frame.opcode == Opcode.DCP_SNAPSHOT_MARKER:
            stream.marker_answered()
        elif stream.state_answered():
            assert self._host is not None, "without it there are no takeovers"
            self._host.hand_over(stream.vbid)
            stream.made_dead()
            self._let_write(stream)
        return stream

    def over(self, stream: ProducerStream) -> None:
        """The stream is gone."""
        self._under_way.pop(stream.opaque, None)
        self._let_write(stream)

    def all_over(self) -> None:
        """The connection is gone: what was held back may go on."""
        for stream, _ in self._under_way.values():
            self._let_write(stream)
        self._under_way.clear()

    def _let_write(self, stream: ProducerStream) -> None:
        if stream.vbid in self._put_off and self._host is not None:
            self._put_off.discard(stream.vbid)
            self._host.put_off_writes(stream.vbid, is_on=False)

    @property
    def next_timeout(self) -> float | None:
        """When `handle_timeout` is to be called, or None."""
        return min(
            (until for stream, until in self._under_way.values() if stream.vbid not in self._put_off), default=None
        )

    def handle_timeout(self, now: float) -> None:
        """Put off the writes to what could not be handed over in time."""
        for stream, until in list(self._under_way.values()):
            if now < until or stream.vbid in self._put_off or self._host is None:
                continue
            if stream.is_before_handover:
                self._put_off.add(stream.vbid)
                self._host.put_off_writes(stream.vbid, is_on=True)
            else:  # it still reads what is old, or is through: the time counts from there
                self._under_way[stream.opaque] = stream, now + self._duration_s
