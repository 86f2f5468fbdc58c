"""The contents of values: xattr sections, snappy, failover logs, seqno lists.

Source: kv_engine include/xattr/blob.h, docs/dcp/documentation/commands/failover-log.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dcpstream.errors import FieldError
from dcpstream.model import FailoverEntry, FailoverLog
from dcpstream.wire.fields import Record, record, u16, u64

try:
    import cramjam
except ImportError:  # pragma: no cover - cramjam is a dependency; kept optional for exotic platforms
    cramjam = None  # type: ignore[assignment,unused-ignore]

LENGTH_BYTES = 4
"""An xattr section, and each pair in it, begins with its length as a u32."""

MAX_INFLATED_BYTES = 30 * 1024 * 1024
"""Largest size of an inflated value: that of the largest frame. A larger one is refused before memory is allocated."""

MAX_FAILOVER_ENTRIES = 4096
"""Most entries of a failover log; a server keeps 25 by default."""

MAX_SEQNO_PAIRS = 1 << 16
"""Most pairs of a seqno list: there are no more vbucket numbers."""

snappy_available = cramjam is not None


@record
class FailoverLogEntry(Record):
    """One branch in the value of a STREAM_REQ or GET_FAILOVER_LOG answer."""

    vbuuid: int = u64()
    seqno: int = u64()


@record
class VbucketSeqno(Record):
    """One vbucket in the value of a GET_ALL_VB_SEQNOS answer."""

    vbid: int = u16()
    seqno: int = u64()


def encode_failover_log(log: FailoverLog) -> bytes:
    """16 bytes an entry, newest first."""
    return b"".join(FailoverLogEntry.struct.pack(entry.vbuuid, entry.seqno) for entry in log)


def decode_failover_log(value: bytes) -> FailoverLog:
    """The log in the value of a STREAM_REQ or GET_FAILOVER_LOG answer.

    Raises:
        FieldError: empty, not a multiple of 16 bytes, or more than `MAX_FAILOVER_ENTRIES`.
    """
    size = FailoverLogEntry.size
    if not value or len(value) % size or len(value) > size * MAX_FAILOVER_ENTRIES:
        raise FieldError(
            f"a failover log of {len(value)} bytes: no multiple of 16, or over {MAX_FAILOVER_ENTRIES} entries"
        )
    return FailoverLog(tuple([FailoverEntry(*pair) for pair in FailoverLogEntry.struct.iter_unpack(value)]))


def encode_vbucket_seqnos(pairs: Iterable[tuple[int, int]]) -> bytes:
    """The value of a GET_ALL_VB_SEQNOS answer."""
    return b"".join(VbucketSeqno.struct.pack(vbid, seqno) for vbid, seqno in pairs)


def decode_vbucket_seqnos(value: bytes) -> list[tuple[int, int]]:
    """(vbucket, high seqno) pairs of a GET_ALL_VB_SEQNOS answer.

    Raises:
        FieldError: not a multiple of 10 bytes, or more than `MAX_SEQNO_PAIRS`.
    """
    if len(value) % VbucketSeqno.size or len(value) > VbucketSeqno.size * MAX_SEQNO_PAIRS:
        raise FieldError(f"a seqno list of {len(value)} bytes: not a multiple of 10")
    return list(VbucketSeqno.struct.iter_unpack(value))


def encode_xattrs(xattrs: Mapping[str, bytes], body: bytes = b"") -> bytes:
    """An xattr section followed by the document's body.

    Args:
        xattrs: name → JSON text.
        body: the document's body.
    """
    parts = []
    for name, text in xattrs.items():
        pair = name.encode() + b"\0" + text + b"\0"
        parts.append(len(pair).to_bytes(LENGTH_BYTES, "big") + pair)
    section = b"".join(parts)
    return len(section).to_bytes(LENGTH_BYTES, "big") + section + body


def split_xattrs(value: bytes) -> tuple[bytes, bytes]:
    """(xattr section with its length, body) of a value whose datatype has XATTR."""
    end = LENGTH_BYTES + int.from_bytes(value[:LENGTH_BYTES], "big")
    if end > len(value):
        raise FieldError(f"an xattr section of {end} bytes in a value of {len(value)}")
    return value[:end], value[end:]


def is_system_xattr(name: str) -> bool:
    """Whether an attribute belongs to the system: it needs a privilege of its own and stays with the tombstone."""
    return name.startswith("_")


def decode_xattrs(value: bytes) -> tuple[dict[str, bytes], bytes]:
    """(name → JSON text, body) of a value whose datatype has XATTR, inflated.

    Raises:
        FieldError: lengths that disagree, or a missing zero byte.
    """
    section, body = split_xattrs(value)
    result: dict[str, bytes] = {}
    at = LENGTH_BYTES
    while at < len(section):
        end = at + LENGTH_BYTES + int.from_bytes(section[at : at + LENGTH_BYTES], "big")
        pair = section[at + LENGTH_BYTES : end]
        if end > len(section) or not pair.endswith(b"\0"):
            raise FieldError("an xattr pair runs past its section")
        name, separator, text = pair[:-1].partition(b"\0")
        if not separator or not name:
            raise FieldError("an xattr pair has no name or no value")
        result[name.decode("utf-8", "backslashreplace")] = text
        at = end
    return result, body


def system_xattrs(value: bytes) -> bytes:
    """The xattr section of a value without user xattrs; empty if none is left."""
    xattrs, _ = decode_xattrs(value)
    kept = {name: text for name, text in xattrs.items() if is_system_xattr(name)}
    return encode_xattrs(kept) if kept else b""


def snappy_compress(data: bytes) -> bytes:
    """A raw snappy block."""
    return bytes(cramjam.snappy.compress_raw(data))


def snappy_uncompress(data: bytes, limit: int = MAX_INFLATED_BYTES) -> bytes:
    """The content of a raw snappy block.

    Raises:
        FieldError: not snappy, or larger than `limit` when inflated.
    """
    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > limit:
        raise FieldError(f"a snappy value of {size} bytes inflated, more than the {limit} allowed")
    try:
        return bytes(cramjam.snappy.decompress_raw(data))
    except Exception as error:
        raise FieldError(f"not a snappy block: {error}") from error
