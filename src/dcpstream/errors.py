"""Every exception that dcpstream raises on purpose.

The module knows numbers and texts only: which status code becomes which class is decided by the table in
`dcpstream.wire.status`, so that nothing here imports anything of ours.

```
DcpstreamError
├─ WireError (offset, header)          bad bytes
│  ├─ FrameError                       lengths, magic or size of a frame
│  ├─ FieldError                       a field holds what it may not hold
│  └─ UnsupportedVersion               a layout version that we do not know
├─ ProtocolError (state, event)
│  ├─ LocalProtocolError               our caller asked for what is not legal now
│  └─ RemoteProtocolError              the peer sent what is not legal now
├─ StatusError (status, opcode, vbid, opaque)   the peer answered with an error status
│  └─ one class per known status: NotMyVbucket (config), KeyNotFound, KeyExists, AccessDenied, …
├─ StreamEnded (reason, offset)        a stream stopped before its end seqno
├─ RollbackRequired (vbid, seqno)      the producer asks for a rollback and no policy was given
├─ OffsetError                         a recorded offset cannot be used: damaged, or of another bucket
├─ ConnectionLost (cause)
│  ├─ ConnectTimeout                   no answer in time, or nobody listens
│  ├─ DeadConnection                   the peer fell silent
│  ├─ TlsError                         certificate, name or TLS itself refused
│  └─ AuthenticationFailed             wrong user, password or mechanism
├─ StoreError
│  ├─ CorruptLog (file, offset, expected, actual)
│  ├─ StoreInUse                       another process has the directory open
│  ├─ StoreMismatch                    made for another number of vbuckets
│  └─ HistoryPurged                    deletions may have been purged before they were read
└─ ConfigError (option, value, allowed)   also a ValueError
```
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "AccessDenied",
    "AuthenticationError",
    "AuthenticationFailed",
    "Busy",
    "ConfigError",
    "ConnectTimeout",
    "ConnectionLost",
    "CorruptLog",
    "DcpstreamError",
    "DeadConnection",
    "FieldError",
    "FrameError",
    "HistoryPurged",
    "InternalError",
    "InvalidArguments",
    "KeyExists",
    "KeyNotFound",
    "LocalProtocolError",
    "Locked",
    "NoBucket",
    "NotMyVbucket",
    "NotStored",
    "NotSupported",
    "OffsetError",
    "OutOfMemory",
    "OutOfRange",
    "ProtocolError",
    "RemoteProtocolError",
    "RollbackRequired",
    "StatusError",
    "StoreError",
    "StoreInUse",
    "StoreMismatch",
    "StreamEnded",
    "StreamIdInvalid",
    "TemporaryFailure",
    "TlsError",
    "UnknownCollection",
    "UnknownCommand",
    "UnknownScope",
    "UnsupportedVersion",
    "ValueTooLarge",
    "WireError",
]


class DcpstreamError(Exception):
    """Base of everything that this package raises on purpose."""


class WireError(DcpstreamError):
    """Bytes that are not what the protocol allows.

    Attributes:
        offset: where in the input the offending frame begins, in bytes, or None if unknown.
        header: the frame's first bytes (at most 24), or None.
    """

    def __init__(self, message: str, *, offset: int | None = None, header: bytes | None = None) -> None:
        self.offset = offset
        self.header = header
        where = f" at byte {offset}" if offset is not None else ""
        what = f" (header {header.hex()})" if header else ""
        super().__init__(f"{message}{where}{what}")


class FrameError(WireError):
    """The frame itself is broken: unknown magic, lengths that disagree, too large."""


class FieldError(WireError):
    """The frame is whole, but a field in it cannot be read, or a value cannot be written."""


class UnsupportedVersion(WireError):
    """A versioned layout in a version that is not known here."""


class ProtocolError(DcpstreamError):
    """A message that is not legal in the present state.

    Attributes:
        state: name of the state the machine is in.
        event: what was asked or received.
    """

    def __init__(self, message: str, *, state: str | None = None, event: str | None = None) -> None:
        self.state = state
        self.event = event
        detail = ", ".join(f"{name} {value}" for name, value in (("state", state), ("event", event)) if value)
        super().__init__(f"{message} ({detail})" if detail else message)


class LocalProtocolError(ProtocolError):
    """The local caller asked for something that is not legal now; nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that is not legal now; the connection should be closed."""


class StatusError(DcpstreamError):
    """The peer answered with an error status.

    Attributes:
        status: the u16 status code of the answer.
        opcode: opcode of the request, or None.
        vbid: vbucket of the request, or None.
        opaque: opaque of the request, or None.
    """

    is_retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        status: int,
        opcode: int | None = None,
        vbid: int | None = None,
        opaque: int | None = None,
    ) -> None:
        self.status = status
        self.opcode = opcode
        self.vbid = vbid
        self.opaque = opaque
        super().__init__(message)


class NotMyVbucket(StatusError):
    """The node does not hold this vbucket in the needed state; `config` is the cluster map it sent, or empty."""

    is_retryable = True
    config: bytes = b""


class KeyNotFound(StatusError):
    """No such document, stream or bucket."""


class KeyExists(StatusError):
    """The document exists already, its CAS differs, or the stream is already open."""


class ValueTooLarge(StatusError):
    """The value is larger than the node accepts."""


class InvalidArguments(StatusError):
    """The node finds the request malformed."""


class NotStored(StatusError):
    """Append or prepend to a document that does not exist."""


class NoBucket(StatusError):
    """No bucket is selected on the connection."""


class Locked(StatusError):
    """The document is locked."""

    is_retryable = True


class AuthenticationError(StatusError):
    """The node refuses the credentials."""


class OutOfRange(StatusError):
    """A seqno or vbucket number outside what the node holds, or bounds that disagree."""


class AccessDenied(StatusError):
    """The user lacks the privilege."""


class UnknownCommand(StatusError):
    """The node does not know the opcode."""


class OutOfMemory(StatusError):
    """The node has no memory for this now."""

    is_retryable = True


class NotSupported(StatusError):
    """The node knows the request but does not support it, here or at all."""


class InternalError(StatusError):
    """The node failed."""


class Busy(StatusError):
    """The node is busy; try again."""

    is_retryable = True


class TemporaryFailure(StatusError):
    """The node cannot do this now; try again."""

    is_retryable = True


class UnknownCollection(StatusError):
    """The collection is not in the node's manifest."""


class UnknownScope(StatusError):
    """The scope is not in the node's manifest."""


class StreamIdInvalid(StatusError):
    """A stream id was given where none may be, or none where one is needed."""


class StreamEnded(DcpstreamError):
    """A stream stopped before its end seqno.

    Attributes:
        reason: the code in STREAM_END.
        offset: the position reached, a `dcpstream.model.StreamOffset`, or None.
    """

    def __init__(self, message: str, *, reason: int, offset: object = None) -> None:
        self.reason = reason
        self.offset = offset
        super().__init__(message)


class RollbackRequired(DcpstreamError):
    """The producer's history and ours differ above `seqno`, and nothing was said about what to do then.

    Attributes:
        vbid: the vbucket.
        seqno: everything above it is void.
    """

    def __init__(self, vbid: int, seqno: int, message: str | None = None) -> None:
        self.vbid = vbid
        self.seqno = seqno
        super().__init__(
            message
            or f"vbucket {vbid}: the producer asks to roll back to seqno {seqno}; what was read above it is no longer "
            "part of the bucket. Choose a rollback policy (for example on_rollback='rewind'), or start over."
        )


class OffsetError(DcpstreamError):
    """A recorded offset cannot be used: it is damaged, of another version, or belongs to another bucket."""


class ConnectionLost(DcpstreamError):
    """The connection is gone, or could not be made; `cause` says why."""

    def __init__(self, message: str, *, cause: BaseException | None = None) -> None:
        self.cause = cause
        super().__init__(message)


class ConnectTimeout(ConnectionLost):
    """Nobody answered in time, or nobody listens there."""


class DeadConnection(ConnectionLost):
    """The peer has sent nothing for longer than the idle time-out."""


class TlsError(ConnectionLost):
    """The connection cannot be secured: the certificate is not trusted or has another name, or one side has no TLS."""


class AuthenticationFailed(ConnectionLost):
    """User, password or mechanism were refused; trying again with the same will not help."""


class StoreError(DcpstreamError):
    """The store on disk cannot do what was asked."""


class StoreInUse(StoreError):
    """Another process, or another part of this one, has the directory open."""


class StoreMismatch(StoreError):
    """The store is whole and was made for other options: another number of vbuckets."""


class CorruptLog(StoreError):
    """Bytes on disk are not what was written.

    Attributes:
        file: path of the damaged file.
        offset: where the damaged block begins, in bytes.
        expected: what should be there (a checksum, a magic), as text.
        actual: what is there, as text.
        hint: what to do, as text.
    """

    def __init__(self, file: str, offset: int, expected: str, actual: str, hint: str = "") -> None:
        self.file = file
        self.offset = offset
        self.expected = expected
        self.actual = actual
        self.hint = hint
        super().__init__(
            f"{file}: damaged at byte {offset}: expected {expected}, found {actual}." + (f" {hint}" if hint else "")
        )


class HistoryPurged(StoreError):
    """Deletions between the wanted start and the purge seqno are gone, so a reader could miss them."""


class ConfigError(DcpstreamError, ValueError):
    """An option has a value that it may not have.

    Attributes:
        option: its name, as the user writes it.
        value: what was given.
        allowed: what is allowed, as text.
    """

    def __init__(self, option: str, value: object, allowed: str) -> None:
        self.option = option
        self.value = value
        self.allowed = allowed
        super().__init__(f"{option}={value!r} is not allowed: {allowed}")
