"""What a consumer asks of its producer before the first stream: controls, one by one, and the error map.

In the order recorded from a server: the size of the buffer; GET_ERROR_MAP, whose answer tells old producers from new
ones, and everything waits for it; then one control after the other, each when the one before was answered. Whatever
the answers say, the next one follows: a control that is refused is off, and no more. The answer to the first control
alone is not waited for.

Source: kv_engine engines/ep/src/dcp/consumer.cc, recordings of accepted, refused and unanswered controls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dcpstream.protocol.flow_control import CONSUMER_BUFFER_BYTES
from dcpstream.wire import Frame, Opcode, Status
from dcpstream.wire.messages import dcp as messages
from dcpstream.wire.messages.kv import GetErrorMap

__all__ = ["NOOP_INTERVAL_S", "Negotiation", "consumer_controls"]

NOOP_INTERVAL_S = 1
"""Seconds between the NOOPs that a consumer asks for, as recorded."""

NOOP_INTERVAL_OF_OLD_S = 180
"""The same of a producer that does not know GET_ERROR_MAP: one from before 5.0."""

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


class Negotiation:
    """The questions of one connection; sans-IO, and without time: a producer that never answers is never streamed from.

    Args:
        consumer_name: see `consumer_controls`.
        next_opaque: gives a fresh opaque for each question.

    Attributes:
        has_begun: the first question was asked.
        is_done: the last one was answered; streams may be asked for.
        asked_for_noops: the producer was told how often to send NOOPs, so that its silence means something.
        accepted: keys of the controls that the producer took.
    """

    def __init__(self, consumer_name: str, next_opaque: Callable[[], int]) -> None:
        self._consumer_name = consumer_name
        self._controls: list[Control] = []
        self._next_opaque = next_opaque
        self._buffer_opaque: int | None = None
        self._error_map_opaque: int | None = None
        self._asked: tuple[int, bytes] | None = None
        self.has_begun = False
        self.is_done = False
        self.asked_for_noops = False
        self.accepted: set[bytes] = set()

    def begin(self) -> list[bytes]:
        """The first two questions."""
        assert not self.has_begun, "asked once"
        self.has_begun = True
        self._buffer_opaque, self._error_map_opaque = self._next_opaque(), self._next_opaque()
        buffer = Control(b"connection_buffer_size", str(CONSUMER_BUFFER_BYTES).encode())
        return [
            _control(buffer, self._buffer_opaque),
            GetErrorMap.pack(0, opaque=self._error_map_opaque),
        ]

    def answered(self, frame: Frame) -> list[bytes] | None:
        """Take the answer to a control or to GET_ERROR_MAP.

        Returns: the next question, nothing if there is none; None if no question has this opaque, which is a fault of
            the peer.
        """
        if frame.opcode == Opcode.GET_ERROR_MAP:
            if self._error_map_opaque is None or frame.opaque != self._error_map_opaque:
                return None
            self._error_map_opaque = None
            is_old = frame.status == Status.UNKNOWN_COMMAND
            interval = NOOP_INTERVAL_OF_OLD_S if is_old else NOOP_INTERVAL_S
            self._controls = list(consumer_controls(self._consumer_name, interval))
            return self._ask()
        if self._buffer_opaque is not None and frame.opaque == self._buffer_opaque:
            self._buffer_opaque = None
            return []
        if self._asked is None or frame.opaque != self._asked[0]:
            return None
        if frame.status == Status.SUCCESS:
            self.accepted.add(self._asked[1])
        self._asked = None
        return self._ask()

    def _ask(self) -> list[bytes]:
        if not self._controls:
            self.is_done = True
            return []
        control = self._controls.pop(0)
        self._asked = self._next_opaque(), control.key
        self.asked_for_noops |= control.key == NOOP_INTERVAL
        return [_control(control, self._asked[0])]


def _control(control: Control, opaque: int) -> bytes:
    return messages.Control.pack(opaque=opaque, key=control.key, value=control.value)
