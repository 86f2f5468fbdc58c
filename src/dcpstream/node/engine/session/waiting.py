"""What a session waits for before it answers, and answers of many packets.

A session waits at most for one request; later requests stay unread until it is answered, so answers come in order.

Source: kv_engine daemon/cookie.cc (would_block), daemon/connection.cc.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

from dcpstream.errors import CorruptLog, StoreError
from dcpstream.node.engine.session.answers import Answers
from dcpstream.wire import Frame, Magic, Status

if TYPE_CHECKING:
    from dcpstream.node.engine.session.session import Session

logger = logging.getLogger(__name__)

STREAM_OUTPUT_BYTES = 256 * 1024
"""Packets of one long answer that wait beyond which no more are made, so that other connections have their turn."""

STEPS_S = 0.002
"""A long answer goes on for so long, then others have their turn."""

RESPONSES = frozenset((int(Magic.RESPONSE), int(Magic.FLEX_RESPONSE), int(Magic.SERVER_RESPONSE)))
_TOKEN = struct.Struct(">QQ")


class Waiting(Answers):
    """The part of a session that waits.

    Attributes:
        has_tokens: whether mutation tokens were negotiated.
        has_written: whether the output that waits tells of a write.
        has_more_steps: whether a long answer had its time and goes on in the next turn.
    """

    has_tokens: bool
    has_written: bool

    def __init__(self) -> None:
        super().__init__()
        self._waiting: Frame | None = None
        self._waiting_value = b""
        self._waiting_status: int = Status.SUCCESS
        self._waiting_datatype = 0
        self._is_quiet = False
        self._resume: Callable[[int], None] | None = None
        self._stream: Iterator[None] | None = None
        self.has_more_steps = False

    def _handle(self, frame: Frame) -> None:
        """Answer one frame."""
        raise NotImplementedError

    def _is_ready(self) -> None:
        self.engine.ready.add(cast("Session", self))

    @property
    def is_waiting(self) -> bool:
        """Whether requests stay unread until something is persisted."""
        return self._waiting is not None

    def _store_failed(self, frame: Frame, error: StoreError) -> None:
        """Answer a request for what cannot be read, or whose change cannot be kept: nothing of it was done."""
        if not isinstance(error, CorruptLog):  # damage is logged by the store, once
            logger.error("%s: opcode 0x%02x of vbucket %d: %s", self.peer, frame.opcode, frame.vbid, error)
        if frame.magic in RESPONSES:
            self.close("the store failed while an answer was taken")
        else:
            self.refuse(frame, Status.EINTERNAL, "The node cannot read or write its files; its log tells which")

    def stop_waiting(self) -> None:
        """The connection is gone: nothing more is answered."""
        stream, self._stream = self._stream, None
        close = getattr(stream, "close", None)
        if close is not None:
            close()
        self._resume = None

    def wait(self, frame: Frame, resume: Callable[[int], None]) -> None:
        """Leave later requests unread until `resume` is called; it then hands a status to what is to go on."""
        self._waiting, self._resume = frame, resume

    def try_again(self, frame: Frame) -> None:
        """Answer a request that had to wait as if it came now."""
        try:
            self._handle(frame)
        except StoreError as error:
            self._store_failed(frame, error)

    def resume(self, status: int = Status.SUCCESS) -> None:
        """What was waited for is there, or will not come."""
        resume, self._resume = self._resume, None
        self._waiting = None
        if resume is not None and not self.is_closing:
            resume(status)
            self._is_ready()

    def stream(self, frame: Frame, answers: Iterator[None]) -> None:
        """Answer a request with many packets: each step of the iterator sends some, no faster than they are read."""
        self._waiting, self._stream = frame, answers
        self.go_on_streaming()

    def go_on_streaming(self) -> None:
        """Send packets until enough waits, or for as long as others can wait."""
        answers = self._stream
        self.has_more_steps = False
        stopwatch = self.engine.stopwatch
        began = stopwatch() if answers is not None else 0.0
        limit = min(STREAM_OUTPUT_BYTES, self.engine.output_limit)
        while answers is not None and self.out_bytes <= limit and not self.is_closing:
            try:
                next(answers)
            except StopIteration:
                answers = self._stream = self._waiting = None
            except StoreError as error:
                frame, answers = self._waiting, None
                self._stream = self._waiting = None
                if frame is not None:
                    self._store_failed(frame, error)
            self._is_ready()
            if answers is not None and stopwatch() - began > STEPS_S:
                self.has_more_steps = True
                break

    @property
    def is_streaming(self) -> bool:
        """Whether packets of a long answer are still to come."""
        return self._stream is not None

    def wait_for_decision(
        self,
        frame: Frame,
        value: bytes = b"",
        status: int = Status.SUCCESS,
        *,
        datatype: int = 0,
        is_quiet: bool = False,
    ) -> None:
        """Leave later requests unread until a durable write is decided.

        Args:
            value, status, datatype: of the answer, if the write succeeds.
            is_quiet: success is not answered.
        """
        self._waiting, self._waiting_value, self._is_quiet = frame, value, is_quiet
        self._waiting_status, self._waiting_datatype = status, datatype

    def durable_write_done(self, status: int, cas: int, seqno: int, vbuuid: int) -> None:
        """Answer a durable write: committed, or its outcome is ambiguous."""
        frame, self._waiting = self._waiting, None
        if frame is None or self.is_closing:
            return
        self._is_ready()
        if status:
            self.refuse(frame, status)
            return
        self.has_written = True
        if self._is_quiet:
            return
        extras = _TOKEN.pack(vbuuid, seqno) if self.has_tokens else b""
        status, datatype = self._waiting_status, self._waiting_datatype
        self.respond(frame, status, cas=cas, datatype=datatype, extras=extras, value=self._waiting_value)
