"""The bulk path of SET: many plain requests in one read, as loaders send them, answered by arithmetic on columns.

Theory of operation: the headers of all requests are gathered into columns, and each condition of the short path (shape,
vbucket, key, limits) is checked for all requests at once. Seqnos and CAS follow from each request's rank within its
vbucket. The heads of the stored frames and the answers are made as two arrays; only keys, values and the store's index
are touched one by one.

If a request needs more than a plain write (the present version has xattrs or has expired, or a key comes twice),
nothing is done, and the requests are answered one by one.

The bulk path saves a quarter of the CPU time of the short path (docs/explanation/ingest.md). A differential test
(tests/property/test_set_paths.py) holds it to the bytes and the stored state of the command table.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from dcpstream.model.json_text import JSON_STARTS, is_json
from dcpstream.node.engine.bucket import documents
from dcpstream.node.engine.bucket.durability import FREQUENCY_OF_NEW
from dcpstream.node.engine.session.session import BULK_REQUESTS
from dcpstream.wire import Magic, Opcode
from dcpstream.wire.frames import BODY_LENGTH_AT, HEADER_BYTES, unpack_body_length
from dcpstream.wire.keys import MAX_KEY_BYTES
from dcpstream.wire.messages.dcp import Mutation
from dcpstream.wire.messages.kv import SetResponse

if TYPE_CHECKING:
    from dcpstream.node.engine.bucket.bucket import Bucket
    from dcpstream.node.engine.session.session import Session

PROBE_REQUESTS = 16
"""The first requests show how long requests are, so that a read with few long ones is not searched to its end."""
PROBE_SLACK = 1.3
"""The other requests may be shorter than the first ones by this factor."""
STORE_TOGETHER = 16
"""Average number of requests of a vbucket from which they are appended to its log in one call."""

_STORED = Mutation.layout.numpy_dtype()
_PREFIX = ("prefix", "u1")
"""The id of the default collection, for keys that came without."""
_STORED_EXTRAS = Mutation.layout.extras_bytes
_ANSWER = SetResponse.layout.numpy_dtype()
_TOKEN_BYTES = SetResponse.layout.extras_bytes
_BARE = _ANSWER[: -len(SetResponse.layout.extras_fields)]
_SET = int(Opcode.SET)


def bulk_set(session: Session, data: bytes) -> int:
    """Answer the plain SETs at the start of `data`; returns how many bytes were consumed, 0 if too few are plain."""
    bucket = session.bucket
    if bucket is None or not bucket.store.has_room:
        return 0
    if not _may_be_many(data):
        return 0
    starts, end = _boundaries(data)
    if len(starts) < BULK_REQUESTS:
        return 0
    requests = _Requests(session, bucket, data, np.fromiter(starts, np.int64, len(starts)))
    if requests.count < BULK_REQUESTS:
        return 0
    if requests.count < len(starts):
        end = starts[requests.count]
    if not requests.find_revisions(session.engine.unix_ns // 1_000_000_000):
        return 0
    session.output.has_written = True
    session.ops[_SET] += requests.count
    session.output.add(requests.store(session.engine.unix_ns, has_tokens=session.has_tokens))
    return end


def _may_be_many(data: bytes) -> bool:
    """Whether so many requests as this way needs fit into `data`, judged by its first ones."""
    at, end, left = 0, len(data), PROBE_REQUESTS
    while left and end - at > 32:
        at += HEADER_BYTES + unpack_body_length(data, at + BODY_LENGTH_AT)[0]
        left -= 1
    return at * BULK_REQUESTS <= end * PROBE_REQUESTS * PROBE_SLACK


def _boundaries(data: bytes) -> tuple[list[int], int]:
    """Where whole frames with the opcode SET begin, and the end of the last one."""
    starts: list[int] = []
    at, end = 0, len(data)
    while end - at > 32 and data[at + 1] == _SET:
        (body,) = unpack_body_length(data, at + BODY_LENGTH_AT)
        stop = at + HEADER_BYTES + body
        if stop > end:
            break
        starts.append(at)
        at = stop
    return starts, at


class _Requests:
    """The plain requests at the start of a piece of input, as columns.

    Attributes:
        count: how many are plain.
    """

    def __init__(self, session: Session, bucket: Bucket, data: bytes, starts: Any) -> None:
        self._bucket = bucket
        self._data = data
        self._has_prefix = session.has_collections
        words = np.ndarray((len(data) - 7,), ">u8", data, strides=(1,))
        first, second, cas, third = (words[starts + at].astype(np.uint64) for at in (0, 8, 16, 24))
        key_lengths = (first >> 32 & 0xFFFF).astype(np.int64)
        values = (second >> 32).astype(np.int64) - 8 - key_lengths
        vbids = (first & 0xFFFF).astype(np.int64)
        prefix = int(self._has_prefix)
        is_plain = (
            (first >> 48 == Magic.REQUEST << 8 | _SET)
            & (first >> 24 & 0xFF == 8)
            & (first >> 16 & (0xFF ^ session.datatypes & 1) == 0)
            & (cas == 0)
            & (key_lengths > prefix)
            & (key_lengths <= MAX_KEY_BYTES + prefix)
            & (values >= 0)
            & (values <= documents.MAX_VALUE_BYTES)
            & _active(bucket)[np.minimum(vbids, bucket.vbucket_count)]
        )
        if prefix:
            is_plain &= np.frombuffer(data, np.uint8)[starts + 32] == 0
        self.count = count = len(starts) if is_plain.all() else int(is_plain.argmin())
        self._vbids, self._third, self._second = vbids[:count], third[:count], second[:count]
        self._key_lengths = key_lengths[:count]
        self._key_at = starts[:count] + 32
        self._value_at = self._key_at + self._key_lengths
        self._stop = self._value_at + values[:count]

    def find_revisions(self, unix_s: int) -> bool:
        """Cut out the keys and look up what they replace; False if some document there is not a plain one."""
        data, vbuckets = self._data, self._bucket.vbuckets
        parts = zip(self._key_at.tolist(), self._value_at.tolist(), strict=True)
        if self._has_prefix:
            self._keys = [data[begin:end] for begin, end in parts]
        else:
            self._keys = [b"\0" + data[begin:end] for begin, end in parts]
        if len(set(self._keys)) != self.count:
            return False
        vbids = self._vbids.tolist()
        self._logs = [vbuckets[vbid].log for vbid in vbids]
        self._known_revisions: dict[int, int] = {}
        for index, (key, log) in enumerate(zip(self._keys, self._logs, strict=True)):
            if key in log.rows.keys:
                vbucket = vbuckets[vbids[index]]
                assert vbucket is not None, "its requests are plain"
                revision = documents.plain_revision(vbucket, key, unix_s)
                if not revision:
                    return False
                self._known_revisions[index] = revision
        return True

    def store(self, unix_ns: int, *, has_tokens: bool) -> bytes:
        """Write the documents; returns the answers."""
        count, vbids = self.count, self._vbids
        order = np.argsort(vbids, kind="stable")
        ordered = vbids[order]
        firsts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
        sizes = np.diff(np.append(firsts, count))
        rank = np.arange(count) - np.repeat(firsts, sizes)
        chosen = ordered[firsts].tolist()
        seqnos, cas, revisions, vbuuids = self._numbers(chosen, sizes, rank, order, unix_ns)
        for index, revision in self._known_revisions.items():
            revisions[index] = revision
        frames = self._frames(seqnos, cas, revisions, unix_ns // 1_000_000_000)
        if count >= STORE_TOGETHER * len(chosen):
            self._append_together(chosen, order.tolist(), firsts.tolist(), sizes.tolist(), frames, seqnos)
        else:
            for log, frame, key, seqno in zip(self._logs, frames, self._keys, seqnos.tolist(), strict=True):
                log.append(frame, key, seqno)
        self._bucket.dirty.update(chosen)
        answers = np.zeros(count, _ANSWER if has_tokens else _BARE)
        answers["magic"], answers["opcode"], answers["cas"] = Magic.RESPONSE, _SET, cas
        answers["opaque"] = self._second & 0xFFFFFFFF
        if has_tokens:
            answers["extras_length"] = answers["body_length"] = _TOKEN_BYTES
            answers["vbuuid"], answers["seqno"] = vbuuids, seqnos
        result: bytes = answers.tobytes()
        return result

    def _numbers(self, chosen: list[int], sizes: Any, rank: Any, order: Any, unix_ns: int) -> tuple[Any, Any, Any, Any]:
        """Seqno, CAS, revision of a new document, and vbuuid of each request, in the requests' order."""
        numbers = array("Q")
        for vbid, size in zip(chosen, sizes.tolist(), strict=True):
            vbucket = self._bucket.vbuckets[vbid]
            assert vbucket is not None, "its requests are plain"
            first_cas = vbucket.next_cas(unix_ns)
            vbucket.max_cas = first_cas + size - 1
            numbers.extend((vbucket.log.high_seqno + 1, first_cas, vbucket.max_deleted_rev + 1, vbucket.vbuuid))
        bases = np.frombuffer(numbers, dtype=np.uint64).reshape(-1, 4).T
        spread = np.repeat(bases, sizes, axis=1)
        spread[:2] += rank.astype(np.uint64)
        placed = np.empty_like(spread)
        placed[:, order] = spread
        return placed[0], placed[1], placed[2], placed[3]

    def _frames(self, seqnos: Any, cas: Any, revisions: Any, unix_s: int) -> list[bytes]:
        """The stored frames."""
        data, extra = self._data, int(not self._has_prefix)
        heads = np.zeros(self.count, [*_STORED, _PREFIX] if extra else _STORED)
        heads["magic"], heads["opcode"] = Magic.REQUEST, Opcode.DCP_MUTATION
        heads["key_length"] = self._key_lengths + extra
        heads["extras_length"] = _STORED_EXTRAS
        heads["datatype"] = self._datatypes()
        heads["vbid"] = self._vbids
        heads["body_length"] = self._stop - self._key_at + (_STORED_EXTRAS + extra)
        heads["cas"], heads["by_seqno"], heads["rev_seqno"] = cas, seqnos, revisions
        heads["flags"] = self._third >> 32
        expirations = self._third & 0xFFFFFFFF
        is_relative = (expirations > 0) & (expirations <= documents.RELATIVE_EXPIRY_MAX_S)
        heads["expiration"] = np.where(is_relative, expirations + unix_s, expirations)
        heads["nru"] = FREQUENCY_OF_NEW
        raw, width = heads.tobytes(), heads.itemsize
        places = zip(range(0, len(raw), width), self._key_at.tolist(), self._stop.tolist(), strict=True)
        return [raw[at : at + width] + data[begin:end] for at, begin, end in places]

    def _datatypes(self) -> Any:
        """1 where the value is JSON; only values that begin like it are looked at."""
        data = self._data
        first = np.frombuffer(data, np.uint8)[np.minimum(self._value_at, len(data) - 1)]
        found = np.zeros(self.count, dtype=np.uint8)
        candidates = np.flatnonzero(_JSON_TABLE[first] & (self._value_at < self._stop))
        for index, begin, end in zip(
            candidates.tolist(), self._value_at[candidates].tolist(), self._stop[candidates].tolist(), strict=True
        ):
            found[index] = is_json(data[begin:end])
        return found

    def _append_together(
        self, chosen: list[int], order: list[int], firsts: list[int], sizes: list[int], frames: list[bytes], seqnos: Any
    ) -> None:
        """Append vbucket by vbucket."""
        keys = self._keys
        for vbid, first, size in zip(chosen, firsts, sizes, strict=True):
            vbucket = self._bucket.vbuckets[vbid]
            assert vbucket is not None, "its requests are plain"
            mine = order[first : first + size]
            begin = int(seqnos[mine[0]])
            vbucket.log.append_many(
                [frames[index] for index in mine], [keys[index] for index in mine], range(begin, begin + size)
            )


def _active(bucket: Bucket) -> Any:
    """Whether each vbucket takes plain writes; one more False at the end stands for vbuckets that do not exist."""
    states = [vbucket is not None and vbucket.takes_plain_writes for vbucket in bucket.vbuckets]
    states.append(False)
    return np.frombuffer(bytes(states), dtype=bool)


_JSON_TABLE = np.zeros(256, dtype=bool)
_JSON_TABLE[list(JSON_STARTS)] = True
