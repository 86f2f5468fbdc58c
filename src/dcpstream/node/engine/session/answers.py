"""What a session says: answers, refusals with their reasons in JSON, and what it does where a client knows no better.

Source: kv_engine docs/BinaryProtocol.md, daemon/cookie.cc (errors), daemon/connection.cc (statuses without XERROR),
tracing/tracer.cc (how long a request took).
"""

from __future__ import annotations

import json
import logging
import math
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dcpstream.node.shell.limit_log import LOG_LINES_WITH_REASONS
from dcpstream.wire import Datatype, Feature, Frame, Status, encode_response

if TYPE_CHECKING:
    from dcpstream.node.engine.engine import Engine

REFERENCE_BITS = 128
"""References look like UUIDs, as the server's do."""

DURATION_MAX_US = 120_125_042
"""The longest time that its 16 bits can tell; what takes longer is told as this, two minutes."""
DURATION_INFO = 0x02
"""Id 0 (how long the request was with the server), two bytes."""

_DURATION = struct.Struct(">BH")

_DROP_WITHOUT_XERROR = frozenset(
    (
        Status.EACCESS,
        Status.NO_BUCKET,
        Status.AUTH_STALE,
        Status.DCP_STREAMID_INVALID,
        Status.DURABILITY_INVALID_LEVEL,
        Status.DURABILITY_IMPOSSIBLE,
        Status.SYNC_WRITE_AMBIGUOUS,
        Status.RANGE_SCAN_CANCELLED,
        Status.VBUUID_NOT_EQUAL,
    )
)
_CHANGED_WITHOUT_XERROR: Mapping[int, int] = MappingProxyType(
    {
        Status.LOCKED: Status.KEY_EEXISTS,
        Status.NOT_LOCKED: Status.TMPFAIL,
        Status.CANNOT_APPLY_MANIFEST: Status.EINTERNAL,
        Status.SYNC_WRITE_IN_PROGRESS: Status.TMPFAIL,
        Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS: Status.TMPFAIL,
    }
)
"""Statuses that came with XERROR, and what a client gets that does not know them."""


def encode_duration(microseconds: float) -> int:
    """A duration in 16 bits: exact for short ones, some per cent off for long ones."""
    return int(math.pow(2 * min(max(microseconds, 0), DURATION_MAX_US), 1 / 1.74) + 0.5)


def pack_duration(seconds: float) -> bytes:
    """The framing extras that tell how long a request took."""
    return _DURATION.pack(DURATION_INFO, encode_duration(seconds * 1e6))


class Answers:
    """The output of a session.

    Attributes:
        features: HELLO features that were granted.
        datatypes: bits of the datatype that were negotiated.
        is_tracing: whether answers tell how long the request took.
        began: when the request that is being answered came, seconds of the engine's stopwatch; 0 if nobody asks.
        out, out_bytes: answers that wait, and their size.
        close_reason: set when the connection is to be closed; what waits in the output still goes out.
    """

    engine: Engine
    peer: str

    def __init__(self) -> None:
        self.features: frozenset[int] = frozenset()
        self.datatypes = 0
        self.is_tracing = False
        self.began = 0.0
        self.out: list[bytes] = []
        self.out_bytes = 0
        self.close_reason: str | None = None

    @property
    def is_closing(self) -> bool:
        """Whether the connection is to be closed."""
        return self.close_reason is not None

    @property
    def is_json(self) -> bool:
        """Whether the JSON datatype was negotiated."""
        return bool(self.datatypes & Datatype.JSON)

    def send(self, data: bytes) -> None:
        """Append bytes to the output."""
        self.out.append(data)
        self.out_bytes += len(data)

    def respond(
        self,
        frame: Frame,
        status: int = Status.SUCCESS,
        *,
        cas: int = 0,
        datatype: int = 0,
        extras: bytes = b"",
        key: bytes = b"",
        value: bytes = b"",
    ) -> None:
        """Answer a request."""
        framing = b""
        if self.is_tracing:
            framing = pack_duration(self.engine.stopwatch() - self.began)
        self.send(
            encode_response(
                frame.opcode,
                status=status,
                opaque=frame.opaque,
                cas=cas,
                datatype=datatype,
                framing=framing,
                extras=extras,
                key=key,
                value=value,
            )
        )

    def refuse(self, frame: Frame, status: int, context: str | None = None, **more: str) -> None:
        """Answer with an error, and say why in JSON.

        Without XERROR some statuses cannot be told; the connection is closed instead, as the server does.
        """
        if status in _DROP_WITHOUT_XERROR and Feature.XERROR not in self.features:
            self.close(f"status 0x{status:02x} for a client without XERROR")
            return
        if Feature.XERROR not in self.features:
            status = _CHANGED_WITHOUT_XERROR.get(status, status)
        content: dict[str, Any] = dict(more)
        if context is not None:
            content = {"error": {"context": context}, **content}
        value = json.dumps(content, separators=(",", ":")).encode() if content else b""
        self.respond(frame, status, datatype=Datatype.JSON if value and self.is_json else 0, value=value)

    def refuse_with_reference(self, frame: Frame, status: int, why: str, context: str | None = None) -> None:
        """Answer with an error whose reason the log tells; the reference leads to it.

        Args:
            why: for the log.
            context: for the client, if there is something that it may know.
        """
        if status in _DROP_WITHOUT_XERROR and Feature.XERROR not in self.features:
            self.close(f"{why}; a client without XERROR cannot be told")
            return
        digits = f"{self.engine.random.getrandbits(REFERENCE_BITS):032x}"
        reference = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
        text = f"{self.peer}: {why} (reference {reference})"
        self.engine.log.say("refusals with a reference", text, self.engine.now, lines=LOG_LINES_WITH_REASONS)
        error = {"ref": reference} if context is None else {"context": context, "ref": reference}
        value = json.dumps({"error": error}, separators=(",", ":")).encode()
        self.respond(frame, status, datatype=Datatype.JSON if self.is_json else 0, value=value)

    def close(self, reason: str) -> None:
        """Have the connection closed after what waits was sent."""
        if self.close_reason is None:
            self.close_reason = reason
            self.engine.ready.add(self)  # type: ignore[arg-type]
            text = f"{self.peer}: closing: {reason}"
            log, now = self.engine.log, self.engine.now
            log.say("closed connections", text, now, level=logging.INFO, lines=LOG_LINES_WITH_REASONS)
