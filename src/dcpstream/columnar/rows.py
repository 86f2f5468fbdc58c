"""The data messages of a scanned buffer as Arrow columns, without a Python step per message.

Theory of operation. After a native scan `dcpstream.columnar.native_rows` has the kernel fill the columns. The rest of
this module is the way in plain Python. `scan` has gathered the headers. Keys and values are in the receive buffer, in
order, with gaps between them. Arrow's binary array is a list of rising offsets into bytes, so one array over the
receive buffer with the elements key, value, gap, key, value, gap, and so on takes three offsets per message and no
copy. `take` of every third element then copies the keys, and of the elements after them the values, into Arrow's own
memory, by memcpy in C++.

When the fast path finds a fault, it passes the messages to `decode_messages`, which raises the error.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dcpstream.columnar.boundaries import Int64Array
from dcpstream.columnar.chunk import DecodeOptions, WireChunk
from dcpstream.columnar.frame_index import FrameIndex
from dcpstream.columnar.headers import Headers, gather, swap_words
from dcpstream.columnar.messages import decode_messages, stream_id_of
from dcpstream.columnar.native_rows import decode_natively
from dcpstream.errors import FieldError
from dcpstream.wire.buffers import Buffer
from dcpstream.wire.codes import FrameInfoId, Magic
from dcpstream.wire.frames import HEADER_BYTES, cut_frame
from dcpstream.wire.keys import MAX_LEB128_BYTES
from dcpstream.wire.messages.dcp import DATA_EXTRAS_BYTES, Expiration, Mutation

_DEFAULT = DecodeOptions()
_MUTATION = Mutation.layout.opcode
_MUTATION_EXTRAS_BYTES = Mutation.layout.extras_bytes
_COMMON_EXTRAS_BYTES = 24
_DELETE_TIME_EXTRAS_MIN = Expiration.layout.extras_bytes
_STREAM_ID_INFO = FrameInfoId.DCP_STREAM_ID << 4 | 2
_STREAM_ID_BYTES = 3
_THIRDS_CACHED = 1 << 16
"""Rows up to which the index of every third element is cached: 512 KiB each."""

_IS_DATA = np.zeros(1 << 16, np.bool_)
"""By magic << 8 | opcode."""
_EXTRAS_FIT = np.zeros((256, 256), np.bool_)
"""By opcode and extras length."""
for _opcode, _lengths in DATA_EXTRAS_BYTES.items():
    for _magic in (Magic.REQUEST, Magic.FLEX_REQUEST):
        _IS_DATA[_magic << 8 | _opcode] = True
    _EXTRAS_FIT[_opcode, _lengths] = True

_thirds = np.arange(0, 3 * _THIRDS_CACHED, 3, dtype=np.int64)


def decode_wire(buffer: Buffer, index: FrameIndex, options: DecodeOptions = _DEFAULT) -> WireChunk:
    """The frames that `scan` found, as columns.

    Args:
        buffer: the bytes that were scanned; borrowed during the call only.
        index: what `scan` returned for them.
        options: features of the connection.

    Returns: mutations, deletions and expirations as rows in order of arrival, and other frames as controls. It owns its
        memory.

    Raises:
        FieldError: a data message with extras of another length than its kind has, or a key whose collection id cannot
            be read; `offset` is the frame's. The peer violates the negotiated features, so nothing is returned.

    Cost: a copy of keys and values, and about 10 ns per message with the native kernel, otherwise 45 ns.
    """
    if index.native is not None:
        return decode_natively(buffer, index.native, options)
    if index.headers is None:
        return decode_messages(buffer, options, starts=index.starts.tolist())
    headers, starts, ends = index.headers, index.starts, index.ends()
    data = _IS_DATA[headers.magic_and_opcode]
    controls = []
    if not data.all():
        others = np.flatnonzero(~data)
        rows_before = others - np.arange(len(others))
        controls = [
            (row, cut_frame(buffer, at)) for row, at in zip(rows_before.tolist(), starts[others].tolist(), strict=True)
        ]
        rows = np.flatnonzero(data)
        headers, starts, ends = headers.select(rows), starts[rows], ends[rows]
    if not len(starts):
        chunk = decode_messages(b"", options)
        chunk.controls = controls
        return chunk
    chunk = _decode_rows(buffer, headers, starts, ends, options)
    chunk.controls = controls
    return chunk


def _decode_rows(
    buffer: Buffer, headers: Headers, starts: Int64Array, ends: Int64Array, options: DecodeOptions
) -> WireChunk:
    opcode = np.ascontiguousarray(headers.opcode)
    extras_length = headers.extras_length
    mutation = opcode == _MUTATION
    only_mutations = bool(mutation.all())
    bad = extras_length != _MUTATION_EXTRAS_BYTES if only_mutations else ~_EXTRAS_FIT[opcode, extras_length]
    stream_ids = np.zeros(len(starts), np.uint16) if options.stream_ids else None
    framing, key_length = headers.part_lengths()
    if framing is not None:
        headers = _shifted(buffer, headers, starts, framing)
        if stream_ids is not None:
            bad |= _read_stream_ids(buffer, starts, framing, stream_ids)
    key_at = starts + HEADER_BYTES
    if framing is not None:
        key_at += framing
    key_at += extras_length
    value_at = key_at + key_length
    if options.collections:
        collection_ids, prefix, unreadable = _read_collection_ids(buffer, key_at, key_length)
        bad |= unreadable
        key_at += prefix
    else:
        collection_ids = np.zeros(len(starts), np.uint32)
    if bad.any():
        at = int(starts[np.argmax(bad)])
        decode_messages(buffer, options, starts=[at])
        raise AssertionError(f"the fast check refused the message at {at}, the plain one did not")
    key, value = _take(buffer, key_at, value_at, ends)
    if only_mutations:
        flags, expiry = np.ascontiguousarray(headers.flags_field), np.ascontiguousarray(headers.expiration)
    else:
        flags, expiry = _flags_and_expiry(headers, mutation, extras_length)
    return WireChunk(
        key,
        value,
        opcode,
        np.ascontiguousarray(headers.datatype),
        np.ascontiguousarray(headers.vbucket),
        headers.cas,
        headers.seqno,
        headers.rev,
        flags,
        expiry,
        np.ascontiguousarray(headers.opaque),
        collection_ids,
        stream_ids,
    )


def _shifted(buffer: Buffer, headers: Headers, starts: Int64Array, framing: Int64Array) -> Headers:
    """The extras' words of frames with framing extras, gathered from where they are."""
    moved = np.flatnonzero(framing)
    extras = gather(buffer, starts[moved] + HEADER_BYTES + framing[moved], _COMMON_EXTRAS_BYTES)
    words = headers.words.copy()
    words[3:, moved] = swap_words(extras)
    return Headers(words)


def _read_stream_ids(
    buffer: Buffer, starts: Int64Array, framing: Int64Array, stream_ids: npt.NDArray[np.uint16]
) -> npt.NDArray[np.bool_]:
    """Fill in the stream ids; true where the framing extras cannot be read."""
    content = np.frombuffer(buffer, np.uint8)
    bad = np.zeros(len(starts), np.bool_)
    at = starts + HEADER_BYTES
    plain = framing == _STREAM_ID_BYTES
    plain[plain] = content[at[plain]] == _STREAM_ID_INFO
    rows = at[plain]
    stream_ids[plain] = content[rows + 1].astype(np.uint16) << 8 | content[rows + 2]
    for row in np.flatnonzero((framing > 0) & ~plain).tolist():
        begin = int(at[row])
        try:
            stream_ids[row] = stream_id_of(bytes(buffer[begin : begin + int(framing[row])]))
        except FieldError:
            bad[row] = True
    return bad


def _read_collection_ids(
    buffer: Buffer, key_at: Int64Array, key_length: Int64Array
) -> tuple[npt.NDArray[np.uint32], Int64Array | int, npt.NDArray[np.bool_]]:
    """(collection ids, bytes that they take, where they cannot be read)."""
    content = np.frombuffer(buffer, np.uint8)
    # An empty key at the very end has no byte to look at; any other will do, the row is bad.
    byte = content[np.minimum(key_at, len(content) - 1)]
    bad = key_length == 0
    ids = byte.astype(np.uint32)
    more = byte >= 0x80
    if not more.any():
        return ids, 1, bad
    prefix = np.ones(len(key_at), np.int64)
    wide = ids.astype(np.uint64) & 0x7F
    rows = np.flatnonzero(more & ~bad)
    for group in range(1, MAX_LEB128_BYTES):
        cut = key_length[rows] <= group
        bad[rows[cut]] = True
        rows = rows[~cut]
        byte = content[key_at[rows] + group]
        wide[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * group)
        prefix[rows] += 1
        bad[rows[byte == 0]] = True  # not the shortest form
        rows = rows[byte >= 0x80]
        if not len(rows):
            break
    bad[rows] = True
    bad |= wide > 0xFFFFFFFF
    return wide.astype(np.uint32), prefix, bad


def _take(
    buffer: Buffer, key_at: Int64Array, value_at: Int64Array, ends: Int64Array
) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """Keys and values, copied out of the buffer."""
    count = len(key_at)
    offsets = np.empty((count, 3), np.int32)
    offsets[:, 0] = key_at
    offsets[:, 1] = value_at
    offsets[:, 2] = ends
    parts = pa.Array.from_buffers(pa.binary(), 3 * count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(buffer)])
    thirds = _thirds[:count] if count <= _THIRDS_CACHED else np.arange(0, 3 * count, 3, dtype=np.int64)
    return _pick(parts, thirds), _pick(parts, thirds + 1)


def _pick(parts: pa.BinaryArray, rows: Int64Array) -> pa.BinaryArray:
    indices = pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)])
    return pc.take(parts, indices, boundscheck=False)


def _flags_and_expiry(
    headers: Headers, mutation: npt.NDArray[np.bool_], extras_length: npt.NDArray[np.uint8]
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Flags and expiration of mutations; 0 and the delete time, if there is one, of other rows."""
    none = np.uint32(0)
    field = headers.flags_field
    delete_time = np.where(extras_length >= _DELETE_TIME_EXTRAS_MIN, field, none)
    return np.where(mutation, field, none), np.where(mutation, headers.expiration, delete_time)
