"""The controls of a consumer: its questions to the producer before the first stream.

The order is that of a recorded server: the size of the buffer and GET_ERROR_MAP first; then each control when the one
before was answered. Nothing waits for the answer to the buffer's size. The answer to GET_ERROR_MAP distinguishes old
producers from new ones. A refused control stays off, and the next one follows.

Source: kv_engine engines/ep/src/dcp/consumer.cc, recordings of accepted, refused and unanswered controls.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from dcpstream.errors import RemoteProtocolError
from dcpstream.protocol.flow_control import CONSUMER_BUFFER_BYTES
from dcpstream.protocol.transitions import Transitions
from dcpstream.wire import Frame, Opcode, Status
from dcpstream.wire.messages import dcp as messages
from dcpstream.wire.messages.kv import GetErrorMap

__all__ = ["NOOP_INTERVAL_S", "TRANSITIONS", "Negotiation", "NegotiationEvent", "NegotiationState", "consumer_controls"]

NOOP_INTERVAL_S = 1
"""Seconds between the NOOPs that a consumer asks for, as recorded."""

NOOP_INTERVAL_OF_OLD_S = 180
"""The same for a producer without GET_ERROR_MAP: one from before 5.0."""

BUFFER_SIZE = b"connection_buffer_size"
NOOP_INTERVAL = b"set_noop_interval"
V7_STATUS_CODES = b"v7_dcp_status_codes"
FLATBUFFERS = b"flatbuffers_system_events"
SYNC_WRITES = b"enable_sync_writes"


class Control(NamedTuple):
    """One DCP_CONTROL."""

    key: bytes
    value: bytes


def consumer_controls(consumer_name: str = "", noop_interval_s: int = NOOP_INTERVAL_S) -> tuple[Control, ...]:
    """The controls after the error map, in order.

    Args:
        consumer_name: of DCP_OPEN's JSON; a consumer that has one takes part in durable writes.
    """
    durability = (Control(SYNC_WRITES, b"true"), Control(b"consumer_name", consumer_name.encode()))
    return (
        Control(b"enable_noop", b"true"),
        Control(NOOP_INTERVAL, str(noop_interval_s).encode()),
        Control(b"set_priority", b"high"),
        Control(b"supports_cursor_dropping_vulcan", b"true"),
        Control(b"supports_hifi_MFU", b"true"),
        Control(b"send_stream_end_on_client_close_stream", b"true"),
        Control(b"enable_expiry_opcode", b"true"),
        *(durability if consumer_name else ()),
        Control(b"include_deleted_user_xattrs", b"true"),
        Control(V7_STATUS_CODES, b"true"),
        Control(FLATBUFFERS, b"true"),
        Control(b"change_streams", b"true"),
    )


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
        },
    },
    peer_events=set(NegotiationEvent) - {NegotiationEvent.BEGUN},
)


class Negotiation:
    """The questions of one connection. There is no time-out: a producer that never answers is asked for no stream.

    Args:
        consumer_name: see `consumer_controls`.
        next_opaque: gives a fresh opaque for each question.

    Attributes:
        state: see `TRANSITIONS`.
        asked_for_noops: the producer was asked for NOOPs, so that its silence means something.
        accepted: keys of the controls that the producer accepted.
    """

    def __init__(self, consumer_name: str, next_opaque: Callable[[], int]) -> None:
        self._consumer_name = consumer_name
        self._controls: list[Control] = []
        self._next_opaque = next_opaque
        self._unanswered: dict[tuple[int, int], bytes] = {}
        self.state = TRANSITIONS.start
        self.asked_for_noops = False
        self.accepted: set[bytes] = set()

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
        """The first two questions."""
        self._go(NegotiationEvent.BEGUN)
        buffer = Control(BUFFER_SIZE, str(CONSUMER_BUFFER_BYTES).encode())
        return [self._ask(buffer), GetErrorMap.pack(0, opaque=self._opaque_for(Opcode.GET_ERROR_MAP, b""))]

    def answered(self, frame: Frame) -> list[bytes]:
        """The questions that follow on the answer to a control or to GET_ERROR_MAP.

        Raises:
            RemoteProtocolError: no question waits for this answer.
        """
        key = self._unanswered.pop((frame.opcode, frame.opaque), None)
        if key is None:
            raise RemoteProtocolError(
                f"the peer answered opcode 0x{frame.opcode:02x} with an opaque that nothing waits for"
            )
        if frame.opcode == Opcode.GET_ERROR_MAP:
            self._go(NegotiationEvent.ERROR_MAP_ANSWERED)
            is_old = frame.status == Status.UNKNOWN_COMMAND
            interval = NOOP_INTERVAL_OF_OLD_S if is_old else NOOP_INTERVAL_S
            self._controls = list(consumer_controls(self._consumer_name, interval))
        elif key == BUFFER_SIZE:
            self._go(NegotiationEvent.BUFFER_ANSWERED)
            return []
        else:
            self._go(NegotiationEvent.CONTROL_ANSWERED if self._controls else NegotiationEvent.LAST_ANSWERED)
            if frame.status == Status.SUCCESS:
                self.accepted.add(key)
        return [self._ask(self._controls.pop(0))] if self._controls else []

    def _ask(self, control: Control) -> bytes:
        self.asked_for_noops |= control.key == NOOP_INTERVAL
        opaque = self._opaque_for(Opcode.DCP_CONTROL, control.key)
        return messages.Control.pack(opaque=opaque, key=control.key, value=control.value)

    def _opaque_for(self, opcode: Opcode, key: bytes) -> int:
        opaque = self._next_opaque()
        self._unanswered[opcode, opaque] = key
        return opaque
