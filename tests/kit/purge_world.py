"""The world of `consumer_world` with deletions that nodes purge: does a deleted document stay with a consumer?

Documents are deleted. Each copy compacts its files when it likes, also between any two messages to the client, and has
a purge seqno of its own; a replica that lacks what its source has purged takes over the source's. Vbuckets also move to
another node and back, on the same branch, to a copy that may have purged less. A node that ends a stream may send
STREAM_END long after the client could ask other things.

The client must resume first snapshots that were cut (`Counts` says how often it did), and its consumers must end with
the bucket's documents. `WRONG` holds variants of the client that the model must notice.
"""

from __future__ import annotations

import contextlib
import random
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dcpstream.client.machine.connection.events import PurgeChecked, Purged, Stream
from dcpstream.client.machine.connection.purge_check import PurgeCheck
from dcpstream.client.machine.connection.session import DcpSession
from dcpstream.client.machine.reader import next_step
from dcpstream.client.machine.tracker import PositionTracker
from dcpstream.dcp.producer.rollback import Accept, Refuse, Rollback, StreamFacts, decide
from dcpstream.errors import HistoryPurged
from dcpstream.model import MAX_SEQNO, VbucketState
from dcpstream.wire import (
    Frame,
    MarkerFlag,
    Opcode,
    Status,
    StreamFlag,
    decode_message,
    encode_request,
    encode_response,
)
from dcpstream.wire.messages.dcp import StreamRequest
from dcpstream.wire.messages.kv import Stat
from dcpstream.wire.values import encode_failover_log
from tests.kit.consumer_world import (
    STATE_CHANGED,
    VBUCKETS,
    Consumer,
    InexactError,
    Kind,
    Link,
    Serving,
    World,
    Wrong,
    row_frame,
)
from tests.kit.messages import DISK, marker, marker_v22, purge_statistics, seqno_advanced, stream_end
from tests.kit.recorded import split_frames
from tests.kit.resume_world import DELETED, Copy, Item, Producer

KEYS = 12
ROLLBACK = 6
MEMORY = int(MarkerFlag.MEMORY | MarkerFlag.CHECKPOINT)


def purge(copy: Copy, seqno: int) -> None:
    """Compact a copy's file: forget the deletions up to a seqno, but never the last change."""
    gone = {
        key: at
        for at, key, value in copy.deduplicated(0, copy.high_seqno)
        if value == DELETED and at <= seqno and at < copy.high_seqno
    }
    if gone:
        copy.items = [item for item in copy.items if item[1] not in gone]
        copy.purge_seqno = max(copy.purge_seqno, *gone.values())
        copy.horizon = max(copy.horizon, copy.purge_seqno)


class PurgingProducer(Producer):
    """A vbucket whose documents are deleted, and whose copies purge the deletions."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.moves = 0
        self.source_purge_seqnos: dict[int, int] = {}

    def write(self, count: int) -> None:
        for _ in range(count):
            self.next_value += 1
            self.active.high_seqno += 1
            value = DELETED if self.rng.random() < 0.4 else self.next_value
            self.active.items.append((self.active.high_seqno, self.rng.randrange(KEYS), value))

    def replicate(self, replica: Copy) -> None:
        before = replica.high_seqno
        if 0 < before < self.active.purge_seqno and not replica.pending:
            replica.is_streaming = False  # its source ends the stream, and asks for a rollback then
        if before < self.active.purge_seqno and not replica.pending:
            self.source_purge_seqnos[id(replica)] = self.active.purge_seqno
        super().replicate(replica)
        lacks = min(self.source_purge_seqnos.get(id(replica), 0), replica.high_seqno)
        replica.purge_seqno = max(replica.purge_seqno, lacks)

    def _join(self, replica: Copy) -> None:
        super()._join(replica)
        if not replica.high_seqno:
            self.source_purge_seqnos[id(replica)] = self.active.purge_seqno

    def compact(self) -> None:
        """Purge some deletions of the active copy, of those on disk."""
        persisted = self.active.persisted_seqno
        purge(self.active, max(self.rng.randint(0, persisted), self.rng.randint(0, persisted)))

    def move(self) -> None:
        """Another node takes the vbucket over, on the same branch; the copy that was left may go."""
        rng, old = self.rng, self.active
        replica = rng.choice([copy for copy in self.copies if copy is not old])
        for _ in range(20):
            if replica.is_streaming and replica.high_seqno == old.high_seqno and not replica.pending:
                break
            self.replicate(replica)
        else:
            return
        replica.failover_log, replica.state = old.failover_log, VbucketState.ACTIVE
        replica.snapshot = (replica.high_seqno, replica.high_seqno)
        replica.persisted_seqno = replica.horizon = replica.high_seqno
        old.state, old.snapshot = VbucketState.REPLICA, (old.high_seqno, old.high_seqno)
        if rng.random() < 0.5:
            old.cut(0)
            old.snapshot = (0, 0)
        self.active = replica
        self.moves += 1
        for copy in self.copies:
            copy.pending, copy.is_streaming = [], False

    def stir(self) -> None:
        """What matters to a guarded stream happens: a compaction, or another copy."""
        rng, chance = self.rng, self.rng.random()
        if chance < 0.5:
            self.write(rng.randint(0, 4))
            for replica in self.copies if rng.random() < 0.5 else ():
                for _ in range(3 * (replica is not self.active)):
                    self.replicate(replica)  # the replica has the deletions that are purged now
            self.persist()
            self.compact()
        elif chance < 0.8:
            self.move()
        else:
            self.happen()

    def happen(self) -> None:
        rng = self.rng
        chance = rng.random()
        if chance < 0.3:
            self.write(rng.randint(1, 6))
        elif chance < 0.45:
            self.replicate(rng.choice([copy for copy in self.copies if copy is not self.active]))
        elif chance < 0.5:
            self.persist()
        elif chance < 0.75:
            self.persist()
            self.compact()
        elif chance < 0.82:
            replica = rng.choice([copy for copy in self.copies if copy is not self.active])
            purge(replica, rng.randint(0, replica.high_seqno))
        elif chance < 0.89:
            self.fail_over()
        elif chance < 0.97:
            self.move()
        else:
            self.crash()


class PurgeWorld(World):
    """The bucket and its node.

    Args:
        seed: of all that happens.
        has_v22: whether markers of snapshots from disk have the purge seqno, as from a server of 8.0.
    """

    def __init__(self, seed: int, *, has_v22: bool) -> None:
        super().__init__(seed)
        self.producers: list[Any] = [PurgingProducer(self.rng) for _ in range(VBUCKETS)]
        self.has_v22 = has_v22
        self.counts: Counter[str] = Counter()

    def happen(self) -> None:
        """Something happens to a vbucket; its streams end with the copy that they read."""
        vbid = self.rng.randrange(VBUCKETS)
        self._let(vbid, self.producers[vbid].happen)

    def _stir(self, vbid: int) -> None:
        if not self.is_calm and self.rng.random() < 0.4:
            self._let(vbid, self.producers[vbid].stir)

    def _let(self, vbid: int, something_happen: Callable[[], None]) -> None:
        producer = self.producers[vbid]
        copy, branch = producer.active, producer.active.failover_log.newest
        something_happen()
        if producer.active is not copy or producer.active.failover_log.newest != branch:
            self._end_streams(vbid)

    def _end_streams(self, vbid: int) -> None:
        for link in self.links.values():
            if self.rng.random() < 0.3:
                link.is_cut = link.is_cut or any(one.vbid == vbid for one in link.streams.values())
            for opaque, serving in list(link.streams.items()):
                if serving.vbid == vbid and not is_dead(serving):
                    # What was on its way comes, and STREAM_END some time later.
                    kept = serving.pending[: self.rng.randint(0, len(serving.pending))]
                    serving.pending = [*kept, stream_end(opaque, STATE_CHANGED, vbid=vbid)]
                    serving.at = DEAD

    def _fill(self, link: Link, serving: Serving) -> bool:
        rng, vbid, opaque, asked = self.rng, serving.vbid, serving.opaque, serving.asked
        if is_dead(serving):
            link.streams.pop(opaque, None)
            return False
        ignores_purged = asked.flags & StreamFlag.IGNORE_PURGED_TOMBSTONES
        if ignores_purged:
            self._stir(vbid)  # between the request and the snapshot, or between two
        if is_dead(serving):
            return bool(serving.pending)
        active, begin = self.producers[vbid].active, serving.at
        is_of_disk = bool(asked.flags & StreamFlag.DISK_ONLY)
        if begin >= asked.end_seqno or begin >= active.high_seqno:
            return super()._fill(link, serving)
        if begin and begin < active.purge_seqno and not ignores_purged:
            serving.pending = [stream_end(opaque, ROLLBACK, vbid=vbid)]
            serving.at = DEAD
            return True
        first, last = active.snapshot_ends(begin)
        start = begin + rng.randint(0, 1)
        if serving.is_first:
            start = min(start, asked.snapshot_start)
            if asked.start_seqno < asked.snapshot_end:
                first = max(first, min(asked.snapshot_end, active.high_seqno))
        serving.is_first = False
        end = last if rng.random() < 0.5 else rng.randint(first, last)
        is_from_disk = is_of_disk or begin < active.purge_seqno or rng.random() < 0.7
        if is_of_disk:
            end = max(begin + 1, active.persisted_seqno)
        rows = active.deduplicated(begin, end)
        if not is_from_disk:  # several versions of a document may come from memory
            rows = [item for item in active.items if begin < item[0] <= end]
        messages = [deletion(opaque, vbid, row) if row[2] == DELETED else row_frame(opaque, vbid, row) for row in rows]
        if self.has_v22 and is_from_disk:
            begun = marker_v22(opaque, start, end, min(active.purge_seqno, end), vbid=vbid)
        else:
            begun = marker(opaque, start, end, vbid=vbid, flags=DISK if is_from_disk else MEMORY)
        serving.pending = [begun, *messages]
        if not rows or rows[-1][0] < end:
            serving.pending.append(seqno_advanced(opaque, end, vbid=vbid))
        serving.at = end
        return True

    def _answer(self, link: Link, frame: Frame) -> None:
        if frame.opcode == Opcode.STAT and not frame.is_response:
            self.counts["asked for the purge seqno"] += 1
            vbid = int(frame.key.split()[1])
            self._stir(vbid)
            purge_seqno = self.producers[vbid].active.purge_seqno
            link.answers += split_frames(purge_statistics(frame, purge_seqno, vbid=vbid))
            self._stir(vbid)  # between the two questions
        else:
            super()._answer(link, frame)

    def _open(self, link: Link, frame: Frame) -> bytes:
        asked = decode_message(frame)
        assert isinstance(asked, StreamRequest)
        active = self.producers[frame.vbid].active
        has_stream = any(one.vbid == frame.vbid and not is_dead(one) for one in link.streams.values())
        decision = decide(asked, active, StreamFacts(has_stream=has_stream))
        if isinstance(decision, Rollback):
            self.counts["rollback to 0" if not decision.seqno else "rollback"] += 1
            value = struct.pack(">Q", decision.seqno)
            return encode_response(frame.opcode, status=Status.ROLLBACK, opaque=frame.opaque, value=value)
        if isinstance(decision, Refuse):
            return encode_response(frame.opcode, status=decision.status, opaque=frame.opaque)
        assert isinstance(decision, Accept)
        branch = active.failover_log.newest
        if asked.flags & StreamFlag.DISK_ONLY:
            asked = replace(asked, end_seqno=decision.end_seqno)
        link.streams[frame.opaque] = Serving(frame.opaque, frame.vbid, asked, branch, asked.start_seqno)
        return encode_response(frame.opcode, opaque=frame.opaque, value=encode_failover_log(active.failover_log))


DEAD = MAX_SEQNO + 1
"""The seqno of a stream that brings nothing any more."""


def is_dead(serving: Serving) -> bool:
    return serving.at == DEAD


def deletion(opaque: int, vbid: int, row: Item) -> bytes:
    extras = struct.pack(">QQIB", row[0], 1, 0, 0)
    return encode_request(Opcode.DCP_DELETION, vbid=vbid, opaque=opaque, cas=row[0], extras=extras, key=b"%d" % row[1])


class PurgeConsumer(Consumer):
    """A consumer that begins anew where nothing was recorded: deletions before that do not come."""

    def run(self, *, to_the_end: bool = False) -> None:
        for vbid, table in enumerate(self.tables):
            if not self.store.seqno(vbid):
                table.roll_back(0)
        with contextlib.suppress(HistoryPurged):
            super().run(to_the_end=to_the_end)


def run(
    seed: int, kind: Kind, *, has_v22: bool, keeps_newest: bool = False, counts: Counter[str] | None = None
) -> str | None:
    """One life of a bucket and its consumer; what was lost, or None.

    Args:
        seed: of all that happens.
        kind: what the consumer takes.
        has_v22: see `PurgeWorld`.
        keeps_newest: whether the consumer keeps one version of each document only.
        counts: gets the number of guarded streams that were of use, and of those that were not.
    """
    world = PurgeWorld(seed, has_v22=has_v22)
    rng = world.rng
    for producer in world.producers:
        producer.write(rng.randint(5, 40))
        producer.persist()
        if rng.random() < 0.5:
            producer.compact()
    consumer = PurgeConsumer(world, kind, keeps_newest=keeps_newest, reads_stable=False)
    try:
        for _ in range(rng.randint(1, 5)):
            consumer.run()
            for _ in range(rng.choice((0, 1, 3, 6))):
                world.happen()
        world.is_calm = consumer.is_calm = True
        for producer in world.producers:
            producer.persist()
        for _ in range(2):
            consumer.run(to_the_end=True)
    except InexactError as error:
        return f"seed {seed}: {error}"
    finally:
        if counts is not None:
            counts.update(world.counts)
    for vbid, producer in enumerate(world.producers):
        found, expected = consumer.tables[vbid].documents(), producer.active.documents()
        if found != expected:
            return f"seed {seed}: vbucket {vbid}: consumer {found}, bucket {expected}"
    return None


# ------------------------------------------------------------------------------------------------------ wrong clients


def _limit_of_each_snapshot(tracker: PositionTracker, start: int, end: int, *, is_unique: bool = False) -> None:
    _marker(tracker, start, end, is_unique=is_unique)
    if is_unique:
        tracker._purge_limit = end


def _limit_of_any_snapshot(tracker: PositionTracker, start: int, end: int, *, is_unique: bool = False) -> None:
    del is_unique
    _marker(tracker, start, end, is_unique=True)


def _always(*_: object) -> next_step.Confirm:
    return next_step.Confirm()


def _question_about_another(check: PurgeCheck) -> Stat:
    return Stat(key=b"vbucket-seqno %d" % (check.stream.vbid ^ 1))


def _item_of_another(check: PurgeCheck, frame: Frame) -> bool:
    if frame.opcode == Opcode.STAT and frame.key.endswith(b":purge_seqno"):
        check.found = int(frame.value)
    return _takes_item(check, frame)


def _asked_before_the_stream(session: DcpSession, vbid: int, *arguments: Any, **options: Any) -> Stream:
    check = None
    if options.get("purged") is Purged.GUARD:
        check = PurgeCheck(Stream(0, vbid, 0, PositionTracker(arguments[0]), 0))
        session._checks[session.request(check.question(), arguments[2])] = check
    stream = _open_stream(session, vbid, *arguments, **options)
    if check is not None:
        session._checks[-stream.opaque] = check  # not an opaque: kept until the marker
    return stream


def _known_before(session: DcpSession, frame: Frame, stream: Stream, turn: Any, *, is_unique: bool) -> None:
    del frame, is_unique
    turn.first.append(PurgeChecked(stream, session._checks.pop(-stream.opaque).found))


def _without_bounds(session: DcpSession, vbid: int, offset: Any, *arguments: Any, **options: Any) -> Stream:
    if options.get("purged") is Purged.GUARD:
        offset = replace(offset, snapshot_start=offset.seqno, snapshot_end=offset.seqno, purge_limit=None)
    return _open_stream(session, vbid, offset, *arguments, **options)


def _read_beyond_the_first_snapshot(
    session: DcpSession, frame: Frame, stream: Stream, turn: Any, *, is_unique: bool
) -> None:
    _check_purged(session, frame, stream, turn, is_unique=is_unique)
    stream.is_guarded = False


_marker = PositionTracker.marker
_takes_item = PurgeCheck.takes_item
_open_stream = DcpSession.open_stream
_check_purged = DcpSession._check_purged

Patches = tuple[Wrong, ...]

WRONG: dict[str, Patches] = {
    "the limit is that of the snapshot that was resumed": (
        Wrong(PositionTracker, "marker", _limit_of_each_snapshot, "changes", 117),
    ),
    "a limit from a snapshot with several versions": (
        Wrong(PositionTracker, "marker", _limit_of_any_snapshot, "changes", 35),
    ),
    "no comparison": (Wrong(next_step, "checked", _always, "changes", 60),),
    "the purge seqno of another vbucket": (
        Wrong(PurgeCheck, "question", _question_about_another, "changes", 30),
        Wrong(PurgeCheck, "takes_item", _item_of_another, "changes"),
    ),
    "asked before the snapshot": (
        Wrong(DcpSession, "open_stream", _asked_before_the_stream, "changes", 92),
        Wrong(DcpSession, "_check_purged", _known_before, "changes"),
    ),
    "the guarded stream read beyond its first snapshot": (
        Wrong(DcpSession, "_check_purged", _read_beyond_the_first_snapshot, "changes", 13),
    ),
    "the bounds dropped in the guarded request": (Wrong(DcpSession, "open_stream", _without_bounds, "changes", 646),),
}
"""Each shows in the life with its first seed; the small model also has those that are rarer."""
