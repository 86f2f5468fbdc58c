"""Takeovers of one producer connection: their effects on the bucket, and their time limit.

The stream decides when to hand its vbucket over (`ProducerStream`); this module makes the vbucket dead. If a takeover
follows a vbucket under writes for too long, the bucket puts writes off until the takeover has ended in any way.

Source: kv_engine engines/ep/src/dcp/active_stream.cc (takeoverSendPhase), recordings of takeovers.
"""

from __future__ import annotations

from typing import Protocol

from dcpstream.dcp.producer.states import Phase
from dcpstream.dcp.producer.stream import ProducerStream
from dcpstream.wire import Frame, Opcode

_UNDER_WRITES = frozenset((Phase.TAKEOVER_SEND, Phase.PENDING_ASKED))
"""Phases in which everything old was sent, and the vbucket is still served here."""


class TakeoverHost(Protocol):
    """The bucket of a producer that hands vbuckets over. Both calls take effect before they return."""

    def hand_over(self, vbid: int) -> None:
        """The other node has the vbucket: make it dead here; streams out of it go on."""

    def put_off_writes(self, vbid: int, *, is_on: bool) -> None:
        """Refuse clients' writes with a temporary failure, or accept them again."""


class Takeovers:
    """The takeover streams of one connection.

    Args:
        host: the bucket; without it there are no takeovers.
        duration_s: seconds that a takeover may follow a vbucket under writes.
    """

    def __init__(self, host: TakeoverHost | None, duration_s: float) -> None:
        self._host = host
        self._duration_s = duration_s
        self._under_way: dict[int, tuple[ProducerStream, float]] = {}
        self._put_off: set[int] = set()

    def begin(self, stream: ProducerStream, now: float) -> None:
        """A takeover stream was accepted."""
        self._under_way[stream.terms.opaque] = stream, now + self._duration_s

    def answered(self, frame: Frame) -> ProducerStream | None:
        """Take the answer to a marker or to SET_VBUCKET_STATE; one whose opaque fits no takeover is ignored.

        Returns: the stream that may send now.
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
            self._accept_writes(stream)
        return stream

    def remove(self, stream: ProducerStream) -> None:
        """The stream was removed."""
        self._under_way.pop(stream.terms.opaque, None)
        self._accept_writes(stream)

    def clear(self) -> None:
        """The connection was closed: accept all writes again."""
        for stream, _ in self._under_way.values():
            self._accept_writes(stream)
        self._under_way.clear()

    def _accept_writes(self, stream: ProducerStream) -> None:
        if stream.vbid in self._put_off and self._host is not None:
            self._put_off.discard(stream.vbid)
            self._host.put_off_writes(stream.vbid, is_on=False)

    @property
    def next_timeout(self) -> float | None:
        """The time at which `handle_timeout` must be called, or None."""
        if not self._under_way:
            return None
        return min(
            (until for stream, until in self._under_way.values() if stream.vbid not in self._put_off), default=None
        )

    def handle_timeout(self, now: float) -> None:
        """Put off the writes to vbuckets that could not be handed over in time."""
        for stream, until in list(self._under_way.values()):
            if now < until or stream.vbid in self._put_off or self._host is None:
                continue
            if stream.at.phase in _UNDER_WRITES:
                self._put_off.add(stream.vbid)
                self._host.put_off_writes(stream.vbid, is_on=True)
            else:  # it still backfills, or the vbucket is dead: the time begins again
                self._under_way[stream.terms.opaque] = stream, now + self._duration_s
