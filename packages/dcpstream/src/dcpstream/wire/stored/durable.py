"""The stored form of durable writes: prepares and aborts, and how a stream gets them and commits.

A stored prepare is the message itself. A stored abort has its own seqno first, as every stored message, and the
prepared seqno second; the wire has them the other way round. A commit is stored as the mutation or deletion that it
makes of the document, which streams without sync writes and streams from disk get. `DurableForm.commits` holds the
prepare that it decided.

Source: kv_engine docs/dcp/documentation/commands/{prepare,commit,abort}.md, engines/ep/src/dcp/active_stream.cc.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dcpstream.wire.buffers import Buffer
from dcpstream.wire.codes import Opcode
from dcpstream.wire.frames import HEADER, HEADER_BYTES
from dcpstream.wire.messages.dcp import Abort, Prepare
from dcpstream.wire.stored.block import Version

# A stored abort has its two seqnos the other way round than the message.
_pair = Abort.layout.extras


@dataclass(frozen=True, slots=True, eq=False)
class DurableForm:
    """The durable writes that a stream with sync writes gets.

    Attributes:
        commits: seqno of a commit → seqno of its prepare. These changes are sent as COMMIT, all others as stored.
        completed_seqno: prepares up to here are decided and not sent; above 0 for reads from disk.
    """

    commits: Mapping[int, int]
    completed_seqno: int = 0


class StoredPrepare(NamedTuple):
    """A prepare, or the abort that took its place, as stored; `key` with its collection prefix.

    Attributes:
        prepared_seqno: the prepare's seqno, for an abort too.
        expiration: for a durable deletion, its delete time.
    """

    key: bytes
    value: bytes
    datatype: int
    cas: int
    seqno: int
    prepared_seqno: int
    rev_seqno: int
    flags: int
    expiration: int
    is_deleted: bool
    level: int
    is_abort: bool

    @property
    def version(self) -> Version:
        """The document or tombstone that the commit makes."""
        flags = 0 if self.is_deleted else self.flags
        return Version(self.key, self.value, self.rev_seqno, self.datatype, flags, self.expiration)


def encode_stored_prepare(
    version: Version, *, vbid: int, by_seqno: int, cas: int, level: int, nru: int = 0, is_deleted: bool = False
) -> bytes:
    """A prepare in stored form."""
    key, value, rev_seqno, datatype, flags, time = version
    return Prepare.pack(
        by_seqno,
        rev_seqno,
        flags,
        time,
        0,
        nru,
        is_deleted,
        level,
        vbid=vbid,
        cas=cas,
        datatype=datatype,
        key=key,
        value=value,
    )


def encode_stored_abort(*, vbid: int, key: bytes, by_seqno: int, prepared_seqno: int) -> bytes:
    """An abort in stored form; `key` with its collection prefix."""
    return Abort.pack(by_seqno, prepared_seqno, vbid=vbid, key=key)


def read_prepare(frame: Buffer) -> StoredPrepare:
    """The prepare or abort in a whole stored frame."""
    _, opcode, key_length, extras_length, datatype, _, _, _, cas = HEADER.unpack_from(frame)
    key_at = HEADER_BYTES + extras_length
    key = bytes(frame[key_at : key_at + key_length])
    if opcode == Opcode.DCP_ABORT:
        seqno, prepared = _pair.unpack_from(frame, HEADER_BYTES)
        return StoredPrepare(key, b"", 0, cas, seqno, prepared, 0, 0, 0, False, 0, True)
    seqno, rev, flags, expiration, _, _, deleted, level = Prepare.layout.extras.unpack_from(frame, HEADER_BYTES)
    value = bytes(frame[key_at + key_length :])
    return StoredPrepare(key, value, datatype, cas, seqno, seqno, rev, flags, expiration, bool(deleted), level, False)


def is_sent(opcode: int, extras: bytes, form: DurableForm | None) -> bool:
    """Whether a stream gets this stored prepare or abort."""
    if form is None:
        return False
    return opcode == Opcode.DCP_ABORT or _pair.unpack_from(extras)[0] > form.completed_seqno


def turned(extras: bytes) -> bytes:
    """Extras of an abort on the wire from the stored ones."""
    seqno, prepared = _pair.unpack(extras)
    return _pair.pack(prepared, seqno)


def commit_extras(extras: bytes, form: DurableForm | None) -> bytes | None:
    """Extras of the COMMIT as which a stored mutation or deletion is sent; None if it is sent as stored."""
    if form is None:
        return None
    seqno = _pair.unpack_from(extras)[0]
    prepared = form.commits.get(seqno)
    return None if prepared is None else _pair.pack(prepared, seqno)
