"""Writes of documents in bulk, into any collection, with an outcome for each instead of an error for the first.

Theory of operation: a write that the node refuses for good (the key is too long, the document exists already) gets an
`Outcome`, and the others go on. What may pass is repeated up to a limit: a node that is busy, a vbucket that moved, a
lost connection. What no row is to blame for is raised, for example a user without the privilege to write.

A repetition must not be refused because of its own first attempt. So a refused insert, and a refused write with a CAS,
is compared with the document: if that has the same bytes and flags, the write counts as carried out (`REPEATED`). It
is not known who wrote those bytes, and it does not matter: the bucket is as the write wants it. The deletion of a
document that does not exist is carried out, too (`ABSENT`).

Writes with a condition on one key never overlap, because each has to see the one before.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum, IntEnum
from typing import NamedTuple

from dcpstream.client.kv.bulk import Answered, Operation
from dcpstream.client.kv.pool import KvPool
from dcpstream.client.kv.windows import LATER, WINDOW_BYTES, WINDOW_OPS, Windows
from dcpstream.client.machine.nodes.cluster_map import manifest_of
from dcpstream.client.machine.nodes.retry import FINAL_ERRORS
from dcpstream.client.settings.options import Access
from dcpstream.errors import ConnectionLost, StatusError
from dcpstream.model import vbucket_of_key
from dcpstream.runtime import Clock, SystemClock
from dcpstream.wire import HEADER, FrameInfoId, Magic, Opcode, Status
from dcpstream.wire.keys import MAX_KEY_BYTES, MAX_KEY_BYTES_ELSEWHERE, encode_frame_info, leb128_encode
from dcpstream.wire.messages.kv import Get, GetCollectionsManifest, GetResponse
from dcpstream.wire.status import status_error

MAX_VALUE_BYTES = 20 * 1024 * 1024
"""Longest value of a document. A node closes the connection on a much larger one instead of answering."""

WRITE_RETRY_TIMEOUT_S = 60.0
"""Default limit of repetitions: longer than a failover or a document's longest lock."""

DEFAULT_COLLECTION = "_default._default"

COLLECTION_PAUSE_S = 0.05
"""Pause before a write is repeated whose collection a node does not know yet."""

REFUSALS = frozenset(
    (
        Status.KEY_EEXISTS,
        Status.KEY_ENOENT,
        Status.E2BIG,
        Status.EINVAL,
        Status.XATTR_EINVAL,
        Status.NOT_STORED,
        Status.ERANGE,
        Status.UNKNOWN_COLLECTION,
        Status.UNKNOWN_SCOPE,
    )
)
"""Statuses that concern one document and do not pass."""

_FLEXIBLE, _PLAIN = int(Magic.FLEX_REQUEST), int(Magic.REQUEST)
_EXTRAS = struct.Struct(">II")


class Durability(IntEnum):
    """The condition for the answer to a write: a majority of copies has it in memory, or on disk."""

    NONE = 0
    MAJORITY = 1
    MAJORITY_AND_PERSIST_TO_ACTIVE = 2
    PERSIST_TO_MAJORITY = 3


class WriteOp(IntEnum):
    """The kind of a write; the numbers are opcodes."""

    UPSERT = Opcode.SET
    INSERT = Opcode.ADD
    REPLACE = Opcode.REPLACE
    DELETE = Opcode.DELETE


class Write(NamedTuple):
    """One write.

    Attributes:
        op: a `WriteOp` or its number.
        key: not empty, at most 250 bytes (246 outside of the default collection).
        value: of the document; ignored for a deletion.
        collection: "scope.collection".
        flags: u32, stored with the document.
        expiry: u32; seconds from now up to 30 days, else seconds since 1970; 0 for never.
        cas: write only over this version; 0 for any.
    """

    op: int
    key: bytes
    value: bytes = b""
    collection: str = DEFAULT_COLLECTION
    flags: int = 0
    expiry: int = 0
    cas: int = 0


class OutcomeKind(Enum):
    """The kind of outcome of a write that was not simply carried out."""

    REPEATED = "repeated"
    """The document was as wanted already; probably an earlier attempt wrote it."""
    ABSENT = "absent"
    """The document to delete did not exist."""
    REFUSED = "refused"


class Outcome(NamedTuple):
    """The outcome of a write that was not simply carried out: the kind, the node's status, and its reason."""

    kind: OutcomeKind
    status: int
    reason: str = ""


_ABSENT = Outcome(OutcomeKind.ABSENT, Status.KEY_ENOENT)


class DocumentWriter:
    """Writes documents of one bucket.

    Args:
        given: addresses, login, TLS and options.
        durability: of every write.
        durability_timeout_ms: after which a node gives up a durable write; 0 for its own time-out.
        retry_timeout_s: limit of repetitions.
        window_ops, window_bytes: size of a window; two are in flight.
        clock: for the limits.
    """

    def __init__(
        self,
        given: Access,
        *,
        durability: Durability = Durability.NONE,
        durability_timeout_ms: int = 0,
        retry_timeout_s: float = WRITE_RETRY_TIMEOUT_S,
        window_ops: int = WINDOW_OPS,
        window_bytes: int = WINDOW_BYTES,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._retry_timeout_s = retry_timeout_s
        self._pool = KvPool(given, is_unordered=durability is not Durability.NONE)
        self._windows = Windows(
            self._pool,
            is_reconnecting=True,
            retry_timeout_s=retry_timeout_s,
            window_ops=window_ops,
            window_bytes=window_bytes,
            clock=self._clock,
        )
        self._framing = b""
        if durability is not Durability.NONE:
            timeout = durability_timeout_ms.to_bytes(2, "big") if durability_timeout_ms else b""
            self._framing = encode_frame_info(FrameInfoId.DURABILITY, bytes((durability,)) + timeout)
        self._prefixes: dict[str, bytes] = {}

    @property
    def requests_repeated(self) -> int:
        """Requests that were sent again since the writer was made."""
        return self._windows.repeated

    def write(self, writes: Sequence[Write]) -> list[Outcome | None]:
        """Carry out writes, those of a key in order.

        Returns: for each write None if it was carried out, otherwise what became of it.

        Raises:
            StatusError: a node refuses all writes, or one of them with "later" until the time limit.
            ConnectionLost: there is no connection until the time limit.
        """
        outcomes: list[Outcome | None] = [None] * len(writes)
        for turn in _turns(writes):
            self._write(writes, turn, outcomes)
        return outcomes

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()

    def _write(self, writes: Sequence[Write], indexes: Sequence[int], outcomes: list[Outcome | None]) -> None:
        """Carry out writes of which none has to see another."""
        deadline: float | None = None
        while indexes:
            conflicts: list[int] = []
            misplaced: list[int] = []
            for operation, answer in self._windows.one_by_one(self._operations(writes, indexes, outcomes)):
                if answer.status == Status.SUCCESS:
                    continue
                write = writes[operation.tag]
                if answer.status == Status.KEY_EEXISTS and write.op != WriteOp.DELETE:
                    conflicts.append(operation.tag)
                elif answer.status == Status.KEY_ENOENT and write.op == WriteOp.DELETE:
                    outcomes[operation.tag] = _ABSENT
                elif answer.status in REFUSALS:
                    outcomes[operation.tag] = Outcome(OutcomeKind.REFUSED, answer.status, answer.reason)
                    if answer.status == Status.UNKNOWN_COLLECTION:
                        misplaced.append(operation.tag)
                else:
                    raise _failure(operation, answer)
            if conflicts:
                self._compare(writes, conflicts, outcomes)
            if misplaced:
                # The list of collections is out of date: ours, or that of a node.
                self._prefixes.clear()
                now = self._clock.monotonic()
                deadline = deadline or now + self._retry_timeout_s
                if now >= deadline:
                    return
                threading.Event().wait(COLLECTION_PAUSE_S)
            indexes = misplaced

    def _operations(
        self, writes: Sequence[Write], indexes: Iterable[int], outcomes: list[Outcome | None]
    ) -> Iterator[Operation]:
        """The requests of writes; those that cannot be one get their outcome here."""
        count = self._pool.map.vbucket_count
        # Asked before anything is in flight, because the answer would be taken for that of a write.
        prefixes = self._resolve({writes[index].collection for index in indexes})
        framing = self._framing
        magic = _FLEXIBLE if framing else _PLAIN
        framing_length = len(framing) << 8
        delete = int(WriteOp.DELETE)
        for index in indexes:
            op, name, value, collection, flags, expiry, cas = writes[index]
            prefix = prefixes[collection]
            if prefix is None:
                outcomes[index] = Outcome(OutcomeKind.REFUSED, Status.UNKNOWN_COLLECTION, f"no collection {collection}")
                continue
            longest = MAX_KEY_BYTES if prefix in {b"", b"\0"} else MAX_KEY_BYTES_ELSEWHERE
            if not name or len(name) > longest:
                reason = f"the key has {len(name)} bytes, allowed are 1 to {longest}"
                outcomes[index] = Outcome(OutcomeKind.REFUSED, Status.EINVAL, reason)
                continue
            if len(value) > MAX_VALUE_BYTES:
                reason = f"the value has {len(value)} bytes, allowed are {MAX_VALUE_BYTES}"
                outcomes[index] = Outcome(OutcomeKind.REFUSED, Status.E2BIG, reason)
                continue
            outcomes[index] = None
            key = prefix + name
            vbid = vbucket_of_key(name, count)
            size = len(key)
            if op == delete:
                head = HEADER.pack(magic, op, framing_length | size, 0, 0, vbid, len(framing) + size, 0, cas)
                request = b"".join((head, framing, key))
            else:
                body = len(framing) + 8 + size + len(value)
                head = HEADER.pack(magic, op, framing_length | size, 8, 0, vbid, body, 0, cas)
                request = b"".join((head, framing, _EXTRAS.pack(flags, expiry), key, value))
            yield Operation(op, vbid, key, request, index)

    def _compare(self, writes: Sequence[Write], conflicts: Sequence[int], outcomes: list[Outcome | None]) -> None:
        """Give each refused write its outcome: the document is as it wants it, or not."""
        count = self._pool.map.vbucket_count

        def reads() -> Iterator[Operation]:
            for index in conflicts:
                name = writes[index].key
                key, vbid = (self._prefixes.get(writes[index].collection) or b"") + name, vbucket_of_key(name, count)
                yield Operation(Opcode.GET, vbid, key, Get.pack(key=key, vbid=vbid), index)

        extras = GetResponse.layout.extras
        for operation, answer in self._windows.one_by_one(reads()):
            write = writes[operation.tag]
            is_there = answer.status == Status.SUCCESS
            if not is_there and answer.status not in REFUSALS:
                raise _failure(operation, answer)
            flags = extras.unpack(answer.extras)[0] if is_there and len(answer.extras) == extras.size else 0
            if is_there and answer.value == write.value and flags == write.flags:
                outcomes[operation.tag] = Outcome(OutcomeKind.REPEATED, Status.KEY_EEXISTS)
            else:
                reason = "the document has another CAS" if write.cas else "the document exists with another value"
                outcomes[operation.tag] = Outcome(OutcomeKind.REFUSED, Status.KEY_EEXISTS, reason)

    def _resolve(self, collections: Iterable[str]) -> dict[str, bytes | None]:
        """The prefixes of the keys of collections; None for a collection that does not exist."""
        if not self._prefixes:
            self._prefixes[DEFAULT_COLLECTION] = b"\0" if self._pool.any().has_collections else b""
        unknown = [path for path in collections if path not in self._prefixes]
        if unknown and self._pool.any().has_collections:
            # Asked for each time: a collection that is missing now may be created later.
            manifest = manifest_of(self._ask(GetCollectionsManifest.pack()))
            for path in unknown:
                scope, _, name = path.rpartition(".")
                if (found := manifest.find(scope, name)) is not None:
                    self._prefixes[path] = leb128_encode(found.collection_id)
        return {path: self._prefixes.get(path) for path in collections}

    def _ask(self, request: bytes) -> bytes:
        """The answer of any node, while nothing else is in flight."""
        deadline = self._clock.monotonic() + self._retry_timeout_s
        while True:
            connection = self._pool.any()
            try:
                return connection.ask(request).value
            except FINAL_ERRORS:
                raise
            except ConnectionLost:
                # A connection of an earlier batch that was closed since.
                self._pool.forget(connection)
                if self._clock.monotonic() >= deadline:
                    raise


def _turns(writes: Sequence[Write]) -> Iterator[Sequence[int]]:
    """The indexes of writes that may be in flight together.

    Writes without a condition may overlap, because a repetition takes the later writes of its key along.
    """
    unconditional = frozenset((int(WriteOp.UPSERT), int(WriteOp.DELETE)))
    everything = range(len(writes))
    if not any(write.cas or write.op not in unconditional for write in writes):
        yield everything
        return
    turns: list[list[int]] = []
    seen: dict[tuple[str, bytes], int] = {}
    for index in everything:
        write = writes[index]
        key = (write.collection, write.key)
        turn = seen.get(key, 0)
        seen[key] = turn + 1
        if turn == len(turns):
            turns.append([])
        turns[turn].append(index)
    yield from turns


def _failure(operation: Operation, answer: Answered) -> StatusError:
    why = f": {answer.reason}" if answer.reason else ""
    later = ", repeated in vain until the time limit (retryTimeout)" if answer.status in LATER else ""
    context = f"key <ud>{operation.key[:100]!r}</ud>{why}{later}"
    return status_error(answer.status, opcode=operation.opcode, vbid=operation.vbid, context=context)
