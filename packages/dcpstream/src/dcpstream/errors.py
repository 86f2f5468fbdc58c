"""Every exception that dcpstream raises on purpose.

The classes hold numbers and texts only, and the module imports nothing of the package. The table in
`dcpstream.wire.status` maps status codes to classes.

```
DcpstreamError
├─ WireError (offset, header)          bad bytes
│  ├─ FrameError                       lengths, magic or size of a frame
│  └─ FieldError                       a field holds a value that it may not hold
├─ ProtocolError (state, event)
│  ├─ LocalProtocolError               our caller made a request that is not legal now
│  └─ RemoteProtocolError              the peer sent a message that is not legal now
├─ StatusError (status, opcode, vbid, opaque)   the peer answered with an error status
│  └─ one class per known status: NotMyVbucket (config), KeyNotFound, KeyExists, AccessDenied, …
├─ StreamEnded (reason, offset)        a stream stopped before its end seqno
├─ RollbackRequired (vbid, seqno)      the producer requires a rollback, and there is no policy for it
├─ OffsetError                         a recorded offset cannot be used: damaged, or of another bucket
│  └─ BucketReset                      the bucket was flushed, or created again, since it was recorded
├─ FoldFailed                          the tables of a pipeline could not be folded or maintained
├─ LeaseRefused                        another process keeps the tables of a pipeline
├─ RowsRefused                         a bucket refuses rows that were to be written
├─ ConnectionLost (cause)
│  ├─ ConnectTimeout                   no answer in time, or no listener
│  ├─ DeadConnection                   the peer is silent
│  ├─ TlsError                         certificate, name or TLS itself refused
│  └─ AuthenticationFailed             wrong user, password or mechanism
├─ StoreError
│  ├─ CorruptLog (file, offset, expected, actual)
│  ├─ StoreInUse                       another process has the directory open
│  ├─ StoreMismatch                    made for another number of vbuckets
│  ├─ TooManySegments                  the system allows this process fewer open files than the store has
│  └─ HistoryPurged                    deletions may have been purged before they were read
└─ ConfigError (option, value, allowed)   also a ValueError
```
"""

from __future__ import annotations

from typing import ClassVar


class DcpstreamError(Exception):
    """Base class of all exceptions of this package. All of them can be pickled: they cross processes."""

    def __reduce__(self) -> tuple[object, ...]:
        """Without a call of `__init__`, whose arguments are not kept."""
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[DcpstreamError], args: tuple[object, ...], state: dict[str, object]) -> DcpstreamError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class WireError(DcpstreamError):
    """Bytes that the protocol does not allow.

    Attributes:
        reason: the message without the place.
        offset: of the offending frame in the input, in bytes, or None if unknown.
        header: the frame's first bytes (at most 24), or None.

    Args:
        message: the reason; the place, "at byte 44", stands behind it.
        hint: advice for the user.
    """

    def __init__(self, message: str, *, offset: int | None = None, header: bytes | None = None, hint: str = "") -> None:
        self.reason = message
        self.offset = offset
        self.header = header
        where = f" at byte {offset}" if offset is not None else ""
        what = f" (header {header.hex()})" if header else ""
        super().__init__(f"{message}{where}{what}" + (f". {hint}" if hint else ""))


class FrameError(WireError):
    """The frame itself is broken: unknown magic, lengths that disagree, too large."""


class FieldError(WireError):
    """The frame is complete, but a field in it cannot be read, or a value cannot be written."""


class ProtocolError(DcpstreamError):
    """A message that is not legal in the current state.

    Attributes:
        state: name of the state the machine is in.
        event: the request or the received message.
    """

    def __init__(self, message: str, *, state: str | None = None, event: str | None = None) -> None:
        self.state = state
        self.event = event
        detail = ", ".join(f"{name} {value}" for name, value in (("state", state), ("event", event)) if value)
        super().__init__(f"{message} ({detail})" if detail else message)


class LocalProtocolError(ProtocolError):
    """The local caller made a request that is not legal now; nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The peer sent a message that is not legal now; the stream or the connection should be closed."""


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
    """The request is malformed."""


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
    """A seqno or vbucket number that the node does not have, or inconsistent bounds."""


class AccessDenied(StatusError):
    """The user lacks the privilege."""


class UnknownCommand(StatusError):
    """The node does not know the opcode."""


class OutOfMemory(StatusError):
    """The node has not enough memory at the moment."""

    is_retryable = True


class NotSupported(StatusError):
    """The node knows the request but does not support it in this state, or at all."""


class InternalError(StatusError):
    """The node failed."""


class Busy(StatusError):
    """The node is busy; the request can be repeated."""

    is_retryable = True


class TemporaryFailure(StatusError):
    """The node cannot answer the request at the moment; it can be repeated."""

    is_retryable = True


class UnknownCollection(StatusError):
    """The collection is not in the node's manifest."""


class UnknownScope(StatusError):
    """The scope is not in the node's manifest."""


class StreamIdInvalid(StatusError):
    """A stream id is present where none is allowed, or missing where one is needed."""


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
    """The producer's history and ours differ above `seqno`, and there is no policy for this case.

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


class FoldFailed(DcpstreamError):
    """A fold or the maintenance of a pipeline's tables failed while batches ran; the cause is the reason."""


class LeaseRefused(DcpstreamError):
    """Another pipeline keeps the tables of this path, or has taken them over; the message says which."""


class RowsRefused(DcpstreamError):
    """A bucket refuses rows for good that were to be written; a repetition will fail."""


class BucketReset(OffsetError):
    """The bucket is another one than that of a recorded offset: it was flushed, or deleted and created again."""


class ConnectionLost(DcpstreamError):
    """The connection broke or could not be made; `cause` is the reason."""

    def __init__(self, message: str, *, cause: BaseException | None = None) -> None:
        self.cause = cause
        super().__init__(message)


class ConnectTimeout(ConnectionLost):
    """No answer in time, or no listener at the address."""


class DeadConnection(ConnectionLost):
    """The peer has sent nothing for longer than the idle time-out, or stopped in the middle of a message."""


class TlsError(ConnectionLost):
    """TLS failed: the certificate is not trusted or has another name, or one side does not support TLS."""


class AuthenticationFailed(ConnectionLost):
    """User, password or mechanism were refused; a repetition with the same ones will fail."""


class StoreError(DcpstreamError):
    """The store on disk cannot carry out a request."""


class StoreInUse(StoreError):
    """Another process, or another part of this one, has the directory open."""


class StoreMismatch(StoreError):
    """The store is sound, but was created with another number of vbuckets."""


class TooManySegments(StoreError):
    """The system does not allow this process to have all segment files of the store open at a time."""


class CorruptLog(StoreError):
    """Bytes on disk differ from the written ones.

    Attributes:
        file: path of the damaged file.
        offset: of the damaged block, in bytes.
        expected: the expected value (a checksum, a magic), as text.
        actual: the value on disk, as text.
        hint: advice for the user.
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
    """Deletions between the requested start and the purge seqno are purged, so a reader could miss them."""


_PLAIN_KINDS = (str, bytes, bool, int, float, tuple, list, dict, set, frozenset)


def _shown(value: object) -> str:
    """A value as its user wrote it; of an object only what it is, because its fields mean nothing to the user."""
    return repr(value) if isinstance(value, _PLAIN_KINDS) else f"this {type(value).__name__}"


class ConfigError(DcpstreamError, ValueError):
    """An option has an invalid value.

    Attributes:
        option: its name, as the user writes it.
        value: the given value; None if the option is missing.
        allowed: the allowed values, as text.

    Args:
        message: the whole message, where another sentence says it better.
    """

    def __init__(self, option: str, value: object, allowed: str, *, message: str | None = None) -> None:
        self.option = option
        self.value = value
        self.allowed = allowed
        self._message = message
        given = f"{option} is missing. Needed" if value is None else f"{option} cannot be {_shown(value)}. Allowed"
        super().__init__(message or f"{given}: {allowed}")

    def under(self, option: str) -> ConfigError:
        """The same error about an option that its user knows by another name. A sentence of its own stays."""
        return ConfigError(option, self.value, self.allowed, message=self._message)
