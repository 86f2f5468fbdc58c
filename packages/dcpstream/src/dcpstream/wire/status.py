"""Status codes of answers, and which of them becomes which exception.

Source: kv_engine include/mcbp/protocol/status.h.
"""

from __future__ import annotations

from enum import IntEnum

from dcpstream import errors
from dcpstream.wire.codes import Opcode, code_name


class Status(IntEnum):
    """Bytes 6 and 7 of a response."""

    SUCCESS = 0x00
    KEY_ENOENT = 0x01
    KEY_EEXISTS = 0x02
    E2BIG = 0x03
    EINVAL = 0x04
    NOT_STORED = 0x05
    DELTA_BADVAL = 0x06
    NOT_MY_VBUCKET = 0x07
    NO_BUCKET = 0x08
    LOCKED = 0x09
    DCP_STREAM_NOT_FOUND = 0x0A
    OPAQUE_NO_MATCH = 0x0B
    WOULD_THROTTLE = 0x0C
    CONFIG_ONLY = 0x0D
    NOT_LOCKED = 0x0E
    CAS_VALUE_INVALID = 0x0F
    AUTH_STALE = 0x1F
    AUTH_ERROR = 0x20
    AUTH_CONTINUE = 0x21
    ERANGE = 0x22
    ROLLBACK = 0x23
    EACCESS = 0x24
    NOT_INITIALIZED = 0x25
    ENCRYPTION_KEY_NOT_AVAILABLE = 0x26
    CHECKSUM_MISMATCH = 0x27
    BUCKET_PAUSED = 0x50
    CANCELLED = 0x51
    UNKNOWN_FRAME_INFO = 0x80
    UNKNOWN_COMMAND = 0x81
    ENOMEM = 0x82
    NOT_SUPPORTED = 0x83
    EINTERNAL = 0x84
    BUSY = 0x85
    TMPFAIL = 0x86
    XATTR_EINVAL = 0x87
    UNKNOWN_COLLECTION = 0x88
    CANNOT_APPLY_MANIFEST = 0x8A
    UNKNOWN_SCOPE = 0x8C
    DCP_STREAMID_INVALID = 0x8D
    DURABILITY_INVALID_LEVEL = 0xA0
    DURABILITY_IMPOSSIBLE = 0xA1
    SYNC_WRITE_IN_PROGRESS = 0xA2
    SYNC_WRITE_AMBIGUOUS = 0xA3
    SYNC_WRITE_RE_COMMIT_IN_PROGRESS = 0xA4
    RANGE_SCAN_CANCELLED = 0xA5
    RANGE_SCAN_MORE = 0xA6
    RANGE_SCAN_COMPLETE = 0xA7
    VBUUID_NOT_EQUAL = 0xA8
    SUBDOC_PATH_ENOENT = 0xC0
    SUBDOC_PATH_MISMATCH = 0xC1
    SUBDOC_PATH_EINVAL = 0xC2
    SUBDOC_PATH_E2BIG = 0xC3
    SUBDOC_DOC_E2DEEP = 0xC4
    SUBDOC_VALUE_CANTINSERT = 0xC5
    SUBDOC_DOC_NOTJSON = 0xC6
    SUBDOC_NUM_ERANGE = 0xC7
    SUBDOC_DELTA_EINVAL = 0xC8
    SUBDOC_PATH_EEXISTS = 0xC9
    SUBDOC_VALUE_ETOODEEP = 0xCA
    SUBDOC_INVALID_COMBO = 0xCB
    SUBDOC_MULTI_FAILURE = 0xCC
    SUBDOC_SUCCESS_DELETED = 0xCD
    SUBDOC_XATTR_INVALID_FLAG_COMBO = 0xCE
    SUBDOC_XATTR_INVALID_KEY_COMBO = 0xCF
    SUBDOC_XATTR_UNKNOWN_MACRO = 0xD0
    SUBDOC_XATTR_UNKNOWN_VATTR = 0xD1
    SUBDOC_XATTR_CANT_MODIFY_VATTR = 0xD2
    SUBDOC_MULTI_FAILURE_DELETED = 0xD3
    SUBDOC_INVALID_XATTR_ORDER = 0xD4
    SUBDOC_XATTR_UNKNOWN_VATTR_MACRO = 0xD5
    SUBDOC_CAN_ONLY_REVIVE_DELETED = 0xD6
    SUBDOC_DELETED_CANT_HAVE_VALUE = 0xD7
    SUBDOC_FIELD_NOT_BINARY_VALUE = 0xD8


STATUS_ERRORS: dict[int, type[errors.StatusError]] = {
    Status.KEY_ENOENT: errors.KeyNotFound,
    Status.KEY_EEXISTS: errors.KeyExists,
    Status.E2BIG: errors.ValueTooLarge,
    Status.EINVAL: errors.InvalidArguments,
    Status.NOT_STORED: errors.NotStored,
    Status.NOT_MY_VBUCKET: errors.NotMyVbucket,
    Status.NO_BUCKET: errors.NoBucket,
    Status.LOCKED: errors.Locked,
    Status.DCP_STREAM_NOT_FOUND: errors.KeyNotFound,
    Status.OPAQUE_NO_MATCH: errors.KeyExists,
    Status.AUTH_ERROR: errors.AuthenticationError,
    Status.AUTH_STALE: errors.AuthenticationError,
    Status.ERANGE: errors.OutOfRange,
    Status.EACCESS: errors.AccessDenied,
    Status.UNKNOWN_COMMAND: errors.UnknownCommand,
    Status.ENOMEM: errors.OutOfMemory,
    Status.NOT_SUPPORTED: errors.NotSupported,
    Status.EINTERNAL: errors.InternalError,
    Status.BUSY: errors.Busy,
    Status.TMPFAIL: errors.TemporaryFailure,
    Status.WOULD_THROTTLE: errors.TemporaryFailure,
    Status.SYNC_WRITE_IN_PROGRESS: errors.TemporaryFailure,
    Status.UNKNOWN_COLLECTION: errors.UnknownCollection,
    Status.UNKNOWN_SCOPE: errors.UnknownScope,
    Status.DCP_STREAMID_INVALID: errors.StreamIdInvalid,
}
"""Status → exception. A status that is not listed becomes a plain StatusError."""


def status_error(
    status: int,
    *,
    opcode: int | None = None,
    vbid: int | None = None,
    opaque: int | None = None,
    context: str = "",
    config: bytes = b"",
) -> errors.StatusError:
    """The exception for an error answer.

    Args:
        status: the answer's status code.
        opcode: opcode of the request.
        vbid: vbucket of the request.
        opaque: opaque of the request.
        context: what was being done, for the message.
        config: the cluster map that came with NOT_MY_VBUCKET.
    """
    what = code_name(Opcode, opcode) if opcode is not None else "request"
    where = f" for vbucket {vbid}" if vbid is not None else ""
    why = f" ({context})" if context else ""
    kind = STATUS_ERRORS.get(status, errors.StatusError)
    error = kind(
        f"{what}{where} was answered {code_name(Status, status)} (0x{status:02x}){why}",
        status=status,
        opcode=opcode,
        vbid=vbid,
        opaque=opaque,
    )
    if isinstance(error, errors.NotMyVbucket):
        error.config = config
    return error
