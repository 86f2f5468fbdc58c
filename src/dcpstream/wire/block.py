"""Stored history: many DCP frames in one piece of memory, and how a piece goes out on a stream.

Theory of operation: history is kept as the frames in which the richest kind of stream gets it (the *stored form*): keys
with collection prefix, deletions with delete time, expirations as such, xattrs and datatype as stored, vbucket in the
header, opaque 0, classic magic. A stream that wants exactly this gets a copy of the piece with its opaque scattered in
(one memcpy and one numpy scatter, no work per message). A stream that wants less (no collections, no xattrs, no values,
a filter, a stream id, …) gets its messages rewritten one by one, and only those pieces pay for it that hold something
to rewrite: `BlockKind` says what occurs in a piece.

Source: kv_engine engines/ep/src/dcp/producer.cc, docs/dcp/documentation/commands/{mutation,deletion,expiration}.md.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntFlag
from itertools import accumulate
from typing import Any, NamedTuple

from dcpstream.wire.buffers import BufferPool
from dcpstream.wire.codes import Datatype, Magic, Opcode, SystemEventId
from dcpstream.wire.durable import DurableForm, commit_extras, is_sent, turned
from dcpstream.wire.frames import HEADER, HEADER_BYTES, frame_length
from dcpstream.wire.keys import leb128_decode
from dcpstream.wire.system_events import VERSION_FLATBUFFERS, CollectionEvent, flatbuffer_of, read_event
from dcpstream.wire.values import decode_xattrs, encode_xattrs, snappy_compress, snappy_uncompress, split_xattrs


def _import_numpy() -> Any:
    """Numpy, or None: the core works without it, slower."""
    try:
        import numpy as np
    except ImportError:
        return None
    return np


np: Any = _import_numpy()

Buffer = bytes | bytearray | memoryview

_KEY_LENGTH_AT = 2
_EXTRAS_LENGTH_AT = 4
_BODY_LENGTH_AT = 8
_OPAQUE_AT = 12
_MUTATION = struct.Struct(">QQIIIHB")
_DELETION = struct.Struct(">QQIB")
_DELETION_V1 = struct.Struct(">QQH")
_EXPIRATION = struct.Struct(">QQI")
_SEQNO = struct.Struct(">Q")
_SEQNO_AT = HEADER_BYTES
_U32 = struct.Struct(">I")
_COMPRESSING = frozenset(("force", "active"))
_DURABLE = frozenset((int(Opcode.DCP_PREPARE), int(Opcode.DCP_ABORT)))
_DELETIONS = frozenset((int(Opcode.DCP_DELETION), int(Opcode.DCP_EXPIRATION)))
_DOCUMENTS = _DELETIONS | {int(Opcode.DCP_MUTATION)}
_COUNTER_AT = HEADER_BYTES + 30
COARSE_COUNTER, EXACT_COUNTER = 2, 4
"""The last byte of a fresh document's extras, as recorded: without and with `supports_hifi_MFU`."""
_DELETED_AT = 29
"""Of a prepare's extras: whether it is a deletion."""


class BlockKind(IntFlag):
    """What occurs in a block beside plain mutations of the default collection."""

    PLAIN = 0
    DELETION = 1
    EXPIRATION = 2
    XATTR = 4
    SNAPPY = 8
    SYSTEM_EVENT = 16
    NAMED_COLLECTION = 32
    PREPARE = 64
    """A prepare or an abort: hidden from all but streams with sync writes."""
    COMMIT = 128
    """A change that decided a prepare; known until a restart only."""


class FrameBlock:
    """Whole frames of one vbucket in stored form, in order of seqno.

    Attributes:
        data: the frames, one after the other.
        starts: int64[count], offset of each frame in `data` (a list where numpy is missing).
        seqnos: uint64[count], their seqnos (a list where numpy is missing).
        kinds: what occurs among them; may name more than what is there, never less.
    """

    __slots__ = ("data", "kinds", "seqnos", "starts")

    def __init__(self, data: Buffer, starts: Any, seqnos: Any, kinds: BlockKind) -> None:
        self.data = data
        self.starts = starts
        self.seqnos = seqnos
        self.kinds = kinds

    @property
    def count(self) -> int:
        """How many frames."""
        return len(self.starts)

    @property
    def size(self) -> int:
        """How many bytes."""
        return len(self.data)

    @property
    def first_seqno(self) -> int:
        """Seqno of the first frame; the block must not be empty."""
        return int(self.seqnos[0])

    @property
    def last_seqno(self) -> int:
        """Seqno of the last frame; the block must not be empty."""
        return int(self.seqnos[-1])

    def __len__(self) -> int:
        """How many frames."""
        return len(self.starts)

    def without(self, leaves_out: Sequence[bool]) -> FrameBlock:
        """The block without the frames for which this says so; a copy."""
        bounds = [*(int(start) for start in self.starts), len(self.data)]
        view = memoryview(self.data)
        kept = [index for index, is_out in enumerate(leaves_out) if not is_out]
        frames = [view[bounds[index] : bounds[index + 1]] for index in kept]
        starts: Any = list(accumulate((len(frame) for frame in frames), initial=0))[:-1]
        seqnos: Any = [int(self.seqnos[index]) for index in kept]
        if np is not None:
            starts, seqnos = np.array(starts, dtype=np.int64), np.array(seqnos, dtype=np.uint64)
        return FrameBlock(b"".join(frames), starts, seqnos, self.kinds)


EMPTY_BLOCK = FrameBlock(b"", (), (), BlockKind.PLAIN)


@dataclass(frozen=True, slots=True)
class StreamForm:
    """How a stream wants its messages.

    Attributes:
        collections: keys carry the collection prefix; without, only the default collection is sent.
        xattrs: values keep their xattr section.
        delete_times: deletions carry their time (21 bytes of extras).
        expiry_opcode: expirations go out as such; needs `delete_times`. Else they are deletions.
        no_value: no document body; the datatype says what is left.
        keep_datatype: with `no_value`, the stored datatype is kept.
        snappy: "none" inflates, "passive" sends as stored, "force" compresses what gets smaller, "active" does so but
            with values of which a part is left out.
        stream_id: goes into the framing extras, or None.
        collection_ids: only these collections, or None for all.
        scope_id: the events of this scope and its collections go with them; None: the events of `collection_ids`.
        flatbuffer_events: events of scopes and collections go out in version 2, those of modified collections at all.
        user_xattrs_on_delete: deletions keep user xattrs too.
        hifi_counter: a fresh document's use counter is the exact one instead of the coarse one.
        durable: what is sent of durable writes; None: nothing but the documents they make.
    """

    collections: bool = True
    xattrs: bool = True
    delete_times: bool = True
    expiry_opcode: bool = True
    no_value: bool = False
    keep_datatype: bool = False
    snappy: str = "passive"
    stream_id: int | None = None
    collection_ids: frozenset[int] | None = None
    scope_id: int | None = None
    flatbuffer_events: bool = False
    user_xattrs_on_delete: bool = True
    hifi_counter: bool = False
    durable: DurableForm | None = None

    def is_as_stored(self, kinds: BlockKind) -> bool:
        """Whether a block with these kinds can go out as it is, but for the opaque."""
        if self.no_value or self.stream_id is not None or self.snappy in _COMPRESSING or not self.collections:
            return False
        if not kinds and self.collection_ids is None:
            return True  # what most blocks are; arithmetic with flags costs more than all of this
        if kinds & (BlockKind.SYSTEM_EVENT | BlockKind.PREPARE) or (kinds & BlockKind.COMMIT and self.durable):
            return False  # some are left out, some get another value: they are rare
        if self.collection_ids is not None and (kinds & _NOT_DEFAULT or self.collection_ids != _ONLY_DEFAULT):
            return False
        rewritten = BlockKind.PLAIN
        if not self.xattrs:
            rewritten |= BlockKind.XATTR
        if not self.delete_times:
            rewritten |= BlockKind.DELETION | BlockKind.EXPIRATION
        if not self.expiry_opcode:
            rewritten |= BlockKind.EXPIRATION
        if self.snappy == "none":
            rewritten |= BlockKind.SNAPPY
        if not self.user_xattrs_on_delete and kinds & BlockKind.XATTR:
            rewritten |= BlockKind.DELETION | BlockKind.EXPIRATION
        return not kinds & rewritten

    def differs_by_prefix(self, kinds: BlockKind) -> bool:
        """Whether a block of the default collection, of these kinds, differs from this form by its prefixes only."""
        return (self.collection_ids is None or 0 in self.collection_ids) and replace(
            self, collections=True, collection_ids=None
        ).is_as_stored(kinds)


_NOT_DEFAULT = BlockKind.NAMED_COLLECTION | BlockKind.SYSTEM_EVENT
_ONLY_DEFAULT = frozenset((0,))


class Rendered(NamedTuple):
    """What `render` made.

    Attributes:
        data: the bytes to send.
        next_index: index of the first frame of the block that is not in it.
        messages: how many messages it holds; less than the frames passed over if a filter dropped some.
    """

    data: Buffer
    next_index: int
    messages: int


def render(
    block: FrameBlock,
    opaque: int,
    form: StreamForm,
    first: int = 0,
    budget: int | None = None,
    buffers: BufferPool | None = None,
) -> Rendered:
    """The block's messages as a stream gets them.

    Args:
        block: stored history.
        opaque: u32, the stream's.
        form: how the stream wants its messages.
        first: index of the frame to begin with.
        budget: stop after the message that brings the total to this many bytes or more (at least one is rendered);
            None for all. This is how the server overshoots its flow-control window by at most one message.
        buffers: where a large copy gets its memory from; fresh memory without.
    """
    count = len(block.starts)
    if first >= count:
        return Rendered(b"", count, 0)
    if form.is_as_stored(_kinds_to_rewrite(block, form)):
        rendered = _copy(block, opaque, first, budget, buffers)
        if form.hifi_counter:
            _set_counters(rendered.data, block.starts[first : rendered.next_index], int(block.starts[first]))
        return rendered
    if (
        np is not None
        and not form.collections
        and not form.hifi_counter
        and not block.kinds & _NOT_DEFAULT
        and form.differs_by_prefix(block.kinds)
    ):
        return _copy_without_prefix(block, opaque, first, budget)
    return _rewrite(block, opaque, form, first, budget)


def _copy(block: FrameBlock, opaque: int, first: int, budget: int | None, buffers: BufferPool | None) -> Rendered:
    """A copy of the block's bytes with the opaque scattered in."""
    starts = block.starts
    count = len(starts)
    begin = int(starts[first])
    last = count
    if budget is not None and begin + budget < len(block.data):
        wanted = begin + max(budget, 1)
        if np is not None and isinstance(starts, np.ndarray):
            last = int(np.searchsorted(starts, wanted, side="left"))
        else:
            last = bisect_left(starts, wanted)
    end = int(starts[last]) if last < count else len(block.data)
    data = memoryview(block.data)[begin:end]
    out = bytearray(data) if buffers is None else buffers.copy_of(data)
    if opaque:
        if np is not None:
            words = np.ndarray(
                shape=(len(out) - 3 - _OPAQUE_AT,), dtype=">u4", buffer=out, offset=_OPAQUE_AT, strides=(1,)
            )
            places = np.asarray(starts[first:last])
            words[places - begin if begin else places] = opaque
        else:
            packed = _U32.pack(opaque)
            for start in starts[first:last]:
                at = start + _OPAQUE_AT - begin
                out[at : at + 4] = packed
    return Rendered(out, last, last - first)


def _set_counters(out: Any, starts: Any, begin: int) -> None:
    """Write the exact use counter into the mutations of copied frames; `starts` are offsets, the first at `begin`."""
    if np is not None and isinstance(starts, np.ndarray):
        octets = np.frombuffer(out, dtype=np.uint8)
        at = starts - begin
        counters = at[octets[at + 1] == int(Opcode.DCP_MUTATION)] + _COUNTER_AT
        octets[counters[octets[counters] == COARSE_COUNTER]] = EXACT_COUNTER
        return
    for start in starts:
        at = start - begin
        if out[at + 1] == Opcode.DCP_MUTATION and out[at + _COUNTER_AT] == COARSE_COUNTER:
            out[at + _COUNTER_AT] = EXACT_COUNTER


def _copy_without_prefix(block: FrameBlock, opaque: int, first: int, budget: int | None) -> Rendered:
    """A copy of a block of the default collection without the keys' prefixes, one byte each; all frames at once."""
    starts = np.asarray(block.starts)[first:]
    begin = int(starts[0])
    ends = np.append(starts[1:], len(block.data)) - begin
    count = len(starts)
    if budget is not None:
        made = ends - np.arange(1, count + 1)  # each message loses a byte
        count = min(count, int(np.searchsorted(made, max(budget, 1), side="left")) + 1)
    starts = starts[:count] - begin
    data = np.frombuffer(block.data, dtype=np.uint8)[begin : begin + int(ends[count - 1])].copy()
    for at, kind in ((_KEY_LENGTH_AT, ">u2"), (_BODY_LENGTH_AT, ">u4")):
        width = int(kind[-1])
        np.ndarray(shape=(len(data) - width + 1,), dtype=kind, buffer=data, strides=(1,))[starts + at] -= 1
    np.ndarray(shape=(len(data) - 3,), dtype=">u4", buffer=data, strides=(1,))[starts + _OPAQUE_AT] = opaque
    is_kept = np.ones(len(data), dtype=bool)
    is_kept[starts + HEADER_BYTES + data[starts + _EXTRAS_LENGTH_AT]] = False
    return Rendered(memoryview(data[is_kept]), first + count, count)


def _rewrite(block: FrameBlock, opaque: int, form: StreamForm, first: int, budget: int | None) -> Rendered:
    """Message by message, for a form that differs from the stored one."""
    data = memoryview(block.data)
    starts = block.starts
    count = len(starts)
    pieces: list[Buffer] = []
    total = made = 0
    index = first
    while index < count:
        start = int(starts[index])
        end = int(starts[index + 1]) if index + 1 < count else len(data)
        piece = _rewrite_one(data[start:end], opaque, form)
        index += 1
        if piece is None:
            continue
        pieces.append(piece)
        made += 1
        total += len(piece)
        if budget is not None and total >= budget:
            break
    return Rendered(b"".join(pieces), index, made)


def _rewrite_one(frame: memoryview, opaque: int, form: StreamForm) -> bytes | None:
    """One message in another form, or None if the stream is not to get it."""
    _, opcode, key_length, extras_length, datatype, vbid, _, _, cas = HEADER.unpack_from(frame)
    key_at = HEADER_BYTES + extras_length
    extras = bytes(frame[HEADER_BYTES:key_at])
    key = bytes(frame[key_at : key_at + key_length])
    value = bytes(frame[key_at + key_length :])
    if opcode == Opcode.DCP_SYSTEM_EVENT:
        formed = _form_event(extras, key, value, form)
        if formed is None:
            return None
        extras, value = formed
    elif opcode in _DURABLE and not is_sent(opcode, extras, form.durable):
        return None
    else:
        collection_id, prefix_length = leb128_decode(key)
        if form.collection_ids is not None and collection_id not in form.collection_ids:
            return None
        if not form.collections:
            if collection_id:
                return None
            key = key[prefix_length:]
        of_commit = commit_extras(extras, form.durable) if opcode in _DOCUMENTS else None
        if of_commit is not None:
            opcode, extras, value, datatype, cas = Opcode.DCP_COMMIT, of_commit, b"", 0, 0
        elif opcode == Opcode.DCP_ABORT:
            extras = turned(extras)
        else:
            is_deletion = opcode in _DELETIONS or (opcode == Opcode.DCP_PREPARE and bool(extras[_DELETED_AT]))
            value, datatype = _form_value(value, datatype, form, is_deletion=is_deletion)
            opcode, extras = _form_deletion(opcode, extras, form)
            if form.hifi_counter and opcode == Opcode.DCP_MUTATION and extras[-1] == COARSE_COUNTER:
                extras = extras[:-1] + bytes((EXACT_COUNTER,))
    magic, framing = Magic.REQUEST, b""
    key_field = len(key)
    if form.stream_id is not None:
        magic, framing = Magic.FLEX_REQUEST, b"\x22" + form.stream_id.to_bytes(2, "big")
        key_field |= len(framing) << 8
    body = len(framing) + len(extras) + len(key) + len(value)
    header = HEADER.pack(magic, opcode, key_field, len(extras), datatype, vbid, body, opaque, cas)
    return b"".join((header, framing, extras, key, value))


def _form_event(extras: bytes, key: bytes, value: bytes, form: StreamForm) -> tuple[bytes, bytes] | None:
    """Extras and value of a system event in the stream's form; None if the stream is not to get it."""
    if not form.collections:
        return None
    event = read_event(extras, key, value)
    if event.event == SystemEventId.MODIFY_COLLECTION and not form.flatbuffer_events:
        return None
    if form.scope_id is not None:
        if event.scope_id != form.scope_id:
            return None
    elif form.collection_ids is not None and (event.is_of_scope or event.collection_id not in form.collection_ids):
        return None
    if form.flatbuffer_events:
        return extras[:-1] + bytes((VERSION_FLATBUFFERS,)), flatbuffer_of(event)
    return extras, value


def _form_deletion(opcode: int, extras: bytes, form: StreamForm) -> tuple[int, bytes]:
    """Opcode and extras of a deletion or expiration in the stream's form."""
    if opcode not in _DELETIONS or (opcode == Opcode.DCP_EXPIRATION and form.expiry_opcode and form.delete_times):
        return opcode, extras
    by_seqno, rev_seqno, delete_time = _EXPIRATION.unpack_from(extras)
    if form.delete_times:
        return Opcode.DCP_DELETION, _DELETION.pack(by_seqno, rev_seqno, delete_time, 0)
    return Opcode.DCP_DELETION, _DELETION_V1.pack(by_seqno, rev_seqno, 0)


def _form_value(value: bytes, datatype: int, form: StreamForm, *, is_deletion: bool) -> tuple[bytes, int]:
    """Value and datatype in the stream's form."""
    stored_datatype = datatype
    has_xattrs = bool(datatype & Datatype.XATTR)
    wants_parts = (
        form.no_value
        or (has_xattrs and not form.xattrs)
        or (is_deletion and has_xattrs and not form.user_xattrs_on_delete)
    )
    if datatype & Datatype.SNAPPY and (form.snappy == "none" or (wants_parts and (has_xattrs or form.no_value))):
        value = snappy_uncompress(value)
        datatype &= ~Datatype.SNAPPY
    if wants_parts:
        section, body = split_xattrs(value) if has_xattrs else (b"", value)
        if is_deletion and has_xattrs and not form.user_xattrs_on_delete:
            section = _system_xattrs(section)
            datatype &= ~Datatype.JSON
        if not form.xattrs or not section:
            section = b""
            datatype &= ~Datatype.XATTR
        if form.no_value:
            body = b""
            datatype &= ~Datatype.JSON
        value = section + body
        if form.no_value and form.keep_datatype:
            return value, stored_datatype
    is_packed = form.snappy == "force" or (form.snappy == "active" and not wants_parts)
    if is_packed and value and not datatype & Datatype.SNAPPY:
        packed = snappy_compress(value)
        if len(packed) < len(value):
            return packed, datatype | Datatype.SNAPPY
    return value, datatype


def _system_xattrs(section: bytes) -> bytes:
    """The xattr section without user xattrs; empty if none is left."""
    xattrs, _ = decode_xattrs(section)
    kept = {name: text for name, text in xattrs.items() if name.startswith("_")}
    return encode_xattrs(kept) if kept else b""


def encode_stored_mutation(
    *,
    vbid: int,
    key: bytes,
    value: bytes,
    by_seqno: int,
    rev_seqno: int,
    cas: int,
    datatype: int = 0,
    flags: int = 0,
    expiration: int = 0,
    nru: int = 0,
) -> bytes:
    """A mutation in stored form; `key` with its collection prefix."""
    header = HEADER.pack(
        Magic.REQUEST, Opcode.DCP_MUTATION, len(key), 31, datatype, vbid, 31 + len(key) + len(value), 0, cas
    )
    return b"".join((header, _MUTATION.pack(by_seqno, rev_seqno, flags, expiration, 0, 0, nru), key, value))


def encode_stored_deletion(
    *,
    vbid: int,
    key: bytes,
    by_seqno: int,
    rev_seqno: int,
    cas: int,
    delete_time: int,
    value: bytes = b"",
    datatype: int = 0,
) -> bytes:
    """A deletion in stored form; `key` with its collection prefix."""
    header = HEADER.pack(
        Magic.REQUEST, Opcode.DCP_DELETION, len(key), 21, datatype, vbid, 21 + len(key) + len(value), 0, cas
    )
    return b"".join((header, _DELETION.pack(by_seqno, rev_seqno, delete_time, 0), key, value))


def encode_stored_expiration(
    *,
    vbid: int,
    key: bytes,
    by_seqno: int,
    rev_seqno: int,
    cas: int,
    delete_time: int,
    value: bytes = b"",
    datatype: int = 0,
) -> bytes:
    """An expiration in stored form; `key` with its collection prefix."""
    header = HEADER.pack(
        Magic.REQUEST, Opcode.DCP_EXPIRATION, len(key), 20, datatype, vbid, 20 + len(key) + len(value), 0, cas
    )
    return b"".join((header, _EXPIRATION.pack(by_seqno, rev_seqno, delete_time), key, value))


def frame_kinds(opcode: int, datatype: int, key: bytes) -> BlockKind:
    """What one stored frame adds to its block's kinds; `key` with its collection prefix."""
    if opcode == Opcode.DCP_SYSTEM_EVENT:
        return BlockKind.SYSTEM_EVENT
    kinds = BlockKind.PLAIN
    if opcode == Opcode.DCP_DELETION:
        kinds |= BlockKind.DELETION
    elif opcode == Opcode.DCP_EXPIRATION:
        kinds |= BlockKind.EXPIRATION
    elif opcode in _DURABLE:
        kinds |= BlockKind.PREPARE
    if datatype & Datatype.XATTR:
        kinds |= BlockKind.XATTR
    if datatype & Datatype.SNAPPY:
        kinds |= BlockKind.SNAPPY
    if key[:1] != b"\0":
        kinds |= BlockKind.NAMED_COLLECTION
    return kinds


def events_of(block: FrameBlock, first: int, stop: int) -> Iterator[CollectionEvent]:
    """The events of scopes and collections among the block's messages [first, stop)."""
    data = memoryview(block.data)
    for index in _event_rows(block, first, stop):
        start = int(block.starts[index])
        _, _, key_length, extras_length, _, _, body, _, _ = HEADER.unpack_from(data, start)
        key_at = start + HEADER_BYTES + extras_length
        value_at, stop_at = key_at + key_length, start + HEADER_BYTES + body
        extras = bytes(data[start + HEADER_BYTES : key_at])
        yield read_event(extras, bytes(data[key_at:value_at]), bytes(data[value_at:stop_at]))


def _event_rows(block: FrameBlock, first: int, stop: int) -> Sequence[int]:
    """Which of the block's messages [first, stop) are system events."""
    if not block.kinds & BlockKind.SYSTEM_EVENT:
        return ()
    starts = block.starts[first:stop]
    if np is not None and isinstance(starts, np.ndarray):
        opcodes = np.frombuffer(block.data, dtype=np.uint8)[starts + 1]
        found: list[int] = (np.flatnonzero(opcodes == int(Opcode.DCP_SYSTEM_EVENT)) + first).tolist()
        return found
    return [first + place for place, start in enumerate(starts) if block.data[start + 1] == Opcode.DCP_SYSTEM_EVENT]


def _kinds_to_rewrite(block: FrameBlock, form: StreamForm) -> BlockKind:
    """The block's kinds, without the events if they go out to this stream as they are stored."""
    kinds = block.kinds
    takes_events = form.collection_ids is None and not form.flatbuffer_events and not form.hifi_counter
    if kinds & BlockKind.SYSTEM_EVENT and takes_events:
        events = events_of(block, 0, len(block.starts))
        if all(event.event != SystemEventId.MODIFY_COLLECTION for event in events):
            return kinds & ~BlockKind.SYSTEM_EVENT
    return kinds


def block_of(data: Buffer) -> FrameBlock:
    """A block from the bytes of whole stored frames: starts, seqnos and kinds are worked out, one frame at a time.

    Raises:
        FrameError: the bytes are not whole frames.
    """
    starts: list[int] = []
    seqnos: list[int] = []
    kinds = BlockKind.PLAIN
    at = 0
    while at < len(data):
        end = at + frame_length(data, at)
        _, opcode, key_length, extras_length, datatype, *_ = HEADER.unpack_from(data, at)
        key_at = at + HEADER_BYTES + extras_length
        starts.append(at)
        seqnos.append(_SEQNO.unpack_from(data, at + _SEQNO_AT)[0])
        kinds |= frame_kinds(opcode, datatype, bytes(data[key_at : key_at + key_length]))
        at = end
    return FrameBlock(data, index_array(starts), seqno_array(seqnos), kinds)


def index_array(numbers: Sequence[int]) -> Any:
    """Offsets as numpy int64 where numpy is there, else as a list."""
    return np.asarray(numbers, dtype=np.int64) if np is not None else list(numbers)


def seqno_array(numbers: Sequence[int]) -> Any:
    """Seqnos as numpy uint64 where numpy is there, else as a list."""
    return np.asarray(numbers, dtype=np.uint64) if np is not None else list(numbers)
