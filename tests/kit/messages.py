"""Messages as a node sends them, as bytes."""

from __future__ import annotations

import struct

from dcpstream.model import FailoverLog
from dcpstream.wire import Frame, MarkerFlag, Opcode, Status, encode_request, encode_response
from dcpstream.wire.values import encode_failover_log

DISK = int(MarkerFlag.DISK | MarkerFlag.CHECKPOINT)
"""The flags of a marker of a snapshot from disk."""

LOG = FailoverLog.of((0xA, 0))
"""The failover log of the node that sends them."""


def marker(opaque: int, start: int, end: int, *, vbid: int = 0, flags: int = 1) -> bytes:
    extras = struct.pack(">QQI", start, end, flags)
    return encode_request(Opcode.DCP_SNAPSHOT_MARKER, vbid=vbid, opaque=opaque, extras=extras)


def marker_v22(opaque: int, start: int, end: int, purge_seqno: int, *, vbid: int = 0) -> bytes:
    """Of a snapshot from disk."""
    value = struct.pack(">QQIQQQQ", start, end, DISK, 0, 0, purge_seqno, 0)
    return encode_request(Opcode.DCP_SNAPSHOT_MARKER, vbid=vbid, opaque=opaque, extras=b"\x02", value=value)


def purge_statistics(frame: Frame, purge_seqno: int, *, vbid: int = 0) -> bytes:
    """The answer to STAT with the key vbucket-seqno."""
    items = {b"high_seqno": b"99", b"purge_seqno": b"%d" % purge_seqno}
    return b"".join(
        encode_response(Opcode.STAT, opaque=frame.opaque, key=b"vb_%d:%s" % (vbid, name), value=value)
        for name, value in items.items()
    ) + encode_response(Opcode.STAT, opaque=frame.opaque)


def mutation(
    opaque: int,
    seqno: int,
    *,
    vbid: int = 0,
    key: bytes = b"k",
    value: bytes = b"v",
    rev: int = 1,
    collection_id: int = 0,
) -> bytes:
    extras = struct.pack(">QQIIIHB", seqno, rev, 7, 0, 0, 0, 0)
    key = bytes((collection_id,)) + key
    return encode_request(
        Opcode.DCP_MUTATION, vbid=vbid, opaque=opaque, cas=seqno << 16, extras=extras, key=key, value=value
    )


def deletion(opaque: int, seqno: int, *, vbid: int = 0, key: bytes = b"k") -> bytes:
    extras = struct.pack(">QQIB", seqno, 2, 1_700_000_000, 0)
    return encode_request(Opcode.DCP_DELETION, vbid=vbid, opaque=opaque, cas=seqno, extras=extras, key=b"\0" + key)


def seqno_advanced(opaque: int, seqno: int, *, vbid: int = 0) -> bytes:
    return encode_request(Opcode.DCP_SEQNO_ADVANCED, vbid=vbid, opaque=opaque, extras=struct.pack(">Q", seqno))


def system_event(opaque: int, seqno: int, name: str, collection_id: int, *, uid: int = 5, vbid: int = 0) -> bytes:
    return encode_request(
        Opcode.DCP_SYSTEM_EVENT,
        vbid=vbid,
        opaque=opaque,
        extras=struct.pack(">QIB", seqno, 0, 0),
        key=name.encode(),
        value=struct.pack(">QII", uid, 0, collection_id),
    )


def stream_end(opaque: int, reason: int = 0, *, vbid: int = 0) -> bytes:
    return encode_request(Opcode.DCP_STREAM_END, vbid=vbid, opaque=opaque, extras=struct.pack(">I", reason))


def accepted(opaque: int, log: FailoverLog = LOG) -> bytes:
    return encode_response(Opcode.DCP_STREAM_REQ, opaque=opaque, value=encode_failover_log(log))


def rollback(opaque: int, seqno: int) -> bytes:
    return encode_response(Opcode.DCP_STREAM_REQ, status=Status.ROLLBACK, opaque=opaque, value=struct.pack(">Q", seqno))


def oso(opaque: int, flags: int) -> bytes:
    return encode_request(Opcode.DCP_OSO_SNAPSHOT, opaque=opaque, extras=struct.pack(">I", flags))
