"""The controls of a consumer: its questions to the producer before the first stream.

The order is that of a recorded server: the size of the buffer and GET_ERROR_MAP first; then each control when the one
before was answered. Until 7.6 only the answers to some controls are waited for. Nothing waits for the answer to the
buffer's size. The answer to GET_ERROR_MAP distinguishes old producers from new ones. A refused control stays off, and
the next one follows. From 7.6 on the size of the buffer may change later and is then sent again, and some refusals end
the connection. From 8.0 on that size is the last control, and nothing else is asked before it is answered. See `Rule`.

Source: kv_engine engines/ep/src/dcp/consumer.cc, recordings of accepted, refused and unanswered controls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum

from dcpstream.dcp.controls import (
    BUFFER_SIZE,
    CHANGE_STREAMS,
    FLATBUFFERS,
    NOOP_INTERVAL,
    SYNC_WRITES,
    V7_STATUS_CODES,
    ReplicaWishes,
    asked_by_replica,
)
from dcpstream.dcp.transitions import Transitions
from dcpstream.dcp.window import CONSUMER_BUFFER_BYTES
from dcpstream.errors import RemoteProtocolError
from dcpstream.wire import Frame, Opcode, Status
from dcpstream.wire.messages.dcp import Control
from dcpstream.wire.messages.kv import GetErrorMap
from dcpstream.wire.release import DEFAULT_RELEASE, Release, Rule

NOOP_INTERVAL_S = "1"
"""Seconds between the NOOPs that a consumer asks for, as recorded."""

SHORT_NOOP_INTERVAL_S = "0.100000"
"""The same from 8.0 on."""

NOOP_INTERVAL_OF_OLD_S = "180"
"""The same for a producer without GET_ERROR_MAP: one from before 5.0."""


WAITED_FOR = frozenset(
    (
        *(SYNC_WRITES, "consumer_name", "include_deleted_user_xattrs"),
        *(V7_STATUS_CODES, FLATBUFFERS, CHANGE_STREAMS),
    )
)
"""The controls whose answers a replica of 7.2 waits for; it asks for the others without waiting."""


class NegotiationState(Enum):
    """The question whose answer the negotiation waits for."""

    IDLE = "nothing asked"
    ERROR_MAP = "error map"
    CONTROLS = "control"
    DONE = "done"


class NegotiationEvent(Enum):
    """The events of a negotiation."""

    BEGUN = "first ADD_STREAM"
    BUFFER_ANSWERED = "connection_buffer_size answered"
    ERROR_MAP_ANSWERED = "GET_ERROR_MAP answered"
    CONTROL_ANSWERED = "control answered, more follow"
    LAST_ANSWERED = "last control answered"
    RESIZED = "buffer resized"


TRANSITIONS = Transitions(
    "controls of a consumer",
    NegotiationState.IDLE,
    {
        NegotiationState.IDLE: {
            NegotiationEvent.BEGUN: NegotiationState.ERROR_MAP,
        },
        NegotiationState.ERROR_MAP: {
            NegotiationEvent.BUFFER_ANSWERED: NegotiationState.ERROR_MAP,
            NegotiationEvent.ERROR_MAP_ANSWERED: NegotiationState.CONTROLS,
        },
        NegotiationState.CONTROLS: {
            NegotiationEvent.BUFFER_ANSWERED: NegotiationState.CONTROLS,
            NegotiationEvent.CONTROL_ANSWERED: NegotiationState.CONTROLS,
            NegotiationEvent.LAST_ANSWERED: NegotiationState.DONE,
        },
        NegotiationState.DONE: {
            NegotiationEvent.BUFFER_ANSWERED: NegotiationState.DONE,
            NegotiationEvent.RESIZED: NegotiationState.CONTROLS,
        },
    },
    peer_events=set(NegotiationEvent) - {NegotiationEvent.BEGUN, NegotiationEvent.RESIZED},
)


class Negotiation:
    """The questions of one connection. There is no time-out: a producer that never answers is asked for no stream.

    Args:
        consumer_name, release: see `ReplicaWishes`.
        next_opaque: gives a fresh opaque for each question.
        buffer_bytes: the flow-control window to ask for.

    Attributes:
        state: see `TRANSITIONS`.
        asked_for_noops: the producer was asked for NOOPs, so that its silence means something.
        accepted: names of the controls that the producer accepted.
    """

    def __init__(
        self,
        consumer_name: str,
        next_opaque: Callable[[], int],
        release: Release = DEFAULT_RELEASE,
        buffer_bytes: int = CONSUMER_BUFFER_BYTES,
    ) -> None:
        self._release = release
        self._buffer_bytes = buffer_bytes
        self._is_buffer_last = release.has(Rule.REPLICA_ASKS_FOR_BUFFER_LAST)
        self._asks_one_by_one = release.has(Rule.REPLICA_ASKS_ONE_BY_ONE)
        self._is_short = release.has(Rule.REPLICA_WANTS_SHORT_NOOP_INTERVAL)
        self._consumer_name = consumer_name
        self._controls: deque[tuple[str, str]] = deque()
        self._next_opaque = next_opaque
        self._has_short_refused = False
        self._unanswered: dict[int, str] = {}
        self.state = TRANSITIONS.start
        self.asked_for_noops = False
        self.accepted: set[str] = set()

    @property
    def has_begun(self) -> bool:
        """Whether the first question was asked."""
        return self.state is not NegotiationState.IDLE

    @property
    def is_done(self) -> bool:
        """Whether the last question was answered; streams may be asked for."""
        return self.state is NegotiationState.DONE

    def _go(self, event: NegotiationEvent) -> None:
        self.state = TRANSITIONS.after(self.state, event)

    def begin(self) -> list[bytes]:
        """The first questions."""
        self._go(NegotiationEvent.BEGUN)
        size = [] if self._is_buffer_last else [self._ask(BUFFER_SIZE, str(self._buffer_bytes))]
        return [*size, GetErrorMap.pack(0, opaque=self._next_opaque())]

    def resize(self, buffer_bytes: int) -> list[bytes]:
        """The question that follows on a change of the buffer's size; none if it waits for others, or for the first."""
        self._buffer_bytes = buffer_bytes
        if not self._is_buffer_last:
            return [self._ask(BUFFER_SIZE, str(buffer_bytes))] if self.has_begun else []
        if self.state is NegotiationState.CONTROLS:
            waiting = [control for control in self._controls if control[0] != BUFFER_SIZE]
            self._controls = deque((*waiting, (BUFFER_SIZE, str(buffer_bytes))))
        elif self.is_done:
            self._go(NegotiationEvent.RESIZED)
            return [self._ask(BUFFER_SIZE, str(buffer_bytes))]
        return []

    def answered(self, frame: Frame) -> list[bytes]:
        """The questions that follow on the answer to a control or to GET_ERROR_MAP.

        Raises:
            RemoteProtocolError: no control waits for this answer, or it is a refusal that ends the connection.
        """
        if frame.opcode == Opcode.GET_ERROR_MAP:
            if self.state is not NegotiationState.ERROR_MAP:
                return []  # nothing waits for it, and its opaque means nothing
            name: str | None = ""
        else:
            name = self._unanswered.pop(frame.opaque, None)
        if name is None:
            if not self._asks_one_by_one or self.state is NegotiationState.ERROR_MAP:
                return []
            raise RemoteProtocolError(
                f"the peer answered opcode 0x{frame.opcode:02x} with an opaque that nothing waits for"
            )
        if frame.opcode == Opcode.GET_ERROR_MAP:
            self._go(NegotiationEvent.ERROR_MAP_ANSWERED)
            is_old = frame.status == Status.UNKNOWN_COMMAND
            if self._is_short and is_old:
                raise RemoteProtocolError("the peer does not know GET_ERROR_MAP")
            usual = SHORT_NOOP_INTERVAL_S if self._is_short else NOOP_INTERVAL_S
            self._look_up(NOOP_INTERVAL_OF_OLD_S if is_old else usual)
            if not self._is_buffer_last:
                self._controls.popleft()  # it was asked for
        elif name == BUFFER_SIZE and not self._is_buffer_last:
            self._go(NegotiationEvent.BUFFER_ANSWERED)
            return []
        elif not self._waits_for(name):
            if frame.status == Status.SUCCESS:
                self.accepted.add(name)
            return []
        elif self._is_short and name == NOOP_INTERVAL and frame.status != Status.SUCCESS:
            if self._has_short_refused:
                raise RemoteProtocolError(f"the peer refused {NOOP_INTERVAL} with status 0x{frame.status:02x}")
            self._has_short_refused = True
            again = self._controls.append if self._is_buffer_last else self._controls.appendleft
            again((NOOP_INTERVAL, NOOP_INTERVAL_S))
            self._go(NegotiationEvent.CONTROL_ANSWERED)
        else:
            self._go(NegotiationEvent.CONTROL_ANSWERED if self._controls else NegotiationEvent.LAST_ANSWERED)
            if frame.status == Status.SUCCESS:
                self.accepted.add(name)
        return self._ask_further()

    def _waits_for(self, name: str) -> bool:
        return self._asks_one_by_one or name in WAITED_FOR

    def _ask_further(self) -> list[bytes]:
        """Ask for what comes next, up to a control whose answer is waited for."""
        asked = []
        while self._controls:
            name, value = self._controls.popleft()
            asked.append(self._ask(name, value))
            if self._waits_for(name):
                break
        return asked

    def _look_up(self, noop_interval: str) -> None:
        """Look up the controls to ask for, in order."""
        wishes = ReplicaWishes(self._buffer_bytes, noop_interval, self._consumer_name, self._release)
        self._controls = deque((name, value) for name, value, _ in asked_by_replica(wishes))

    def _ask(self, name: str, value: str) -> bytes:
        self.asked_for_noops |= name == NOOP_INTERVAL
        opaque = self._next_opaque()
        self._unanswered[opaque] = name
        return Control.pack(opaque=opaque, key=name.encode(), value=value.encode())
