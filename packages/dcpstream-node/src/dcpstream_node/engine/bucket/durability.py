"""Durable writes of one vbucket: prepared, decided by the nodes of its topology, committed or aborted.

Theory of operation. A durable write becomes a prepare in the vbucket's history. The topology, which SET_VBUCKET gave,
is one chain of node names, two during a rebalance; the first name of a chain is the active copy, this node. A prepare
is decided when in every chain a majority has it, in the order of seqnos: the active copy has it at once, or once it is
persisted where the level asks for that; a replica has it when its DCP connection, known by its consumer name,
acknowledges a seqno at or above it. Deciding appends the commit, a mutation or deletion with the prepare's CAS and
revision, and answers the client. A prepare that is not decided in time is aborted, and its client gets an ambiguous
outcome. When the vbucket leaves the active role its prepares stay, and their clients get the same outcome.

A document with an undecided prepare refuses other writes; reads return its previous version.

A checkpoint never holds both a commit and another version of a document, nor two of its prepares and aborts. The later
one begins the next checkpoint, because a replica refuses a checkpoint with both and drops the connection.

Source: kv_engine engines/ep/src/durability/active_durability_monitor.cc, checkpoint_manager.cc; checked against a
recording of durable writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dcpstream.wire import Status
from dcpstream.wire.codes import Opcode
from dcpstream.wire.stored.block import BlockKind, Version, encode_stored_deletion, encode_stored_mutation, frame_kinds
from dcpstream.wire.stored.durable import StoredPrepare, encode_stored_abort, encode_stored_prepare, read_prepare
from dcpstream_node.engine.bucket.topology import is_possible, parse_topology

if TYPE_CHECKING:
    from dcpstream_node.engine.bucket.vbucket import VBucket
    from dcpstream_node.engine.session.session import Session

LEVEL_MAJORITY = 1
"""Durability levels: 1 a majority has it; 2 also persisted on the active; 3 persisted by a majority."""

DEFAULT_TIMEOUT_S = 30.0
"""The server's default for a write with a level and no time-out."""

COMMITS_REMEMBERED = 10_000
"""Commits whose prepare is remembered, about as many as count as being in memory; older ones are streamed as
mutations."""

UNDECIDED_MAX = 100_000
"""Undecided prepares of a vbucket; beyond them durable writes are TMPFAIL. A session waits for one at most, so only
closed sessions could leave so many."""

FREQUENCY_OF_NEW = 2
"""The use counter of a fresh document, sent in the last byte of a mutation's extras, as recorded from a server."""


class Requirement(NamedTuple):
    """The durability that a write must have: the level, and how long it may take."""

    level: int
    timeout_s: float


@dataclass(slots=True)
class Undecided:
    """A prepare that waits.

    Attributes:
        deadline: monotonic seconds; None for a prepare that was taken over, which has none.
        client: the session that waits for the outcome, or None.
    """

    prepare: StoredPrepare
    deadline: float | None
    client: Session | None

    @property
    def is_maybe_visible(self) -> bool:
        """Whether clients may have seen it committed: it was taken over from another time or node."""
        return self.deadline is None


class Durability:
    """The durable writes of a vbucket.

    Args:
        vbucket: the vbucket.
        changed: called with the vbucket's number after an append.
        commit_soon: asks for a commit to disk at once, because a prepare waits for it; see `Bucket.commit_soon`.

    Attributes:
        undecided: key → its prepare that waits, in order of seqno.
        accepted_count, committed_count, aborted_count: durable writes since the node was started.
    """

    def __init__(self, vbucket: VBucket, changed: Callable[[int], None], commit_soon: Callable[[], None]) -> None:
        self.vbucket = vbucket
        self._commit_soon = commit_soon
        self.undecided: dict[bytes, Undecided] = {}
        self.accepted_count = self.committed_count = self.aborted_count = 0
        self._last_completed = 0
        self._changed = changed
        self._commits: dict[int, int] = {}
        self._acknowledged: dict[str, int] = {}
        self._in_checkpoint: set[bytes] = set()
        self._checkpoint_seqno = vbucket.checkpoint_start_seqno
        self.reload()

    def reload(self) -> None:
        """Read the undecided prepares from the history, after the store was opened or rolled back.

        A prepare is decided if its document was written since. Up to the purge seqno all are decided, because deletions
        are not purged beyond the first undecided prepare (`purge_limit`).
        """
        log = self.vbucket.log
        known, self.undecided = self.undecided, {}
        self._last_completed = 0
        self._commits = {seqno: prepared for seqno, prepared in self._commits.items() if seqno <= log.high_seqno}
        self._in_checkpoint.clear()
        for frame in log.prepares():
            prepare = read_prepare(frame)
            meta = log.meta(prepare.key)
            is_decided = prepare.is_abort or (meta is not None and meta.seqno > prepare.seqno)
            if is_decided or prepare.seqno <= log.purge_seqno:
                self._last_completed = max(self._last_completed, prepare.prepared_seqno)
            else:
                before = known.get(prepare.key)
                client = before.client if before is not None and before.prepare.seqno == prepare.seqno else None
                self.undecided[prepare.key] = Undecided(prepare, None, client)

    @property
    def purge_limit(self) -> int | None:
        """Deletions may be purged up to here; None: without limit."""
        return next(iter(self.undecided.values())).prepare.seqno - 1 if self.undecided else None

    @property
    def last_undecided_seqno(self) -> int:
        """The seqno of the last prepare that waits; 0 if none does."""
        return next(reversed(self.undecided.values())).prepare.seqno if self.undecided else 0

    # -------------------------------------------------------------------------------------- what a producer asks for

    @property
    def high_completed_seqno(self) -> int:
        """All prepares up to here are committed or aborted; one may be aborted before an older one is decided."""
        limit = self.purge_limit
        return self._last_completed if limit is None else min(self._last_completed, limit)

    @property
    def high_prepared_seqno(self) -> int:
        """The last prepare that is as durable here as its level asks for; in order, so one that is not stops it."""
        high = self.high_completed_seqno
        for waiting in self.undecided.values():
            if not self._is_durable_here(waiting.prepare):
                break
            high = waiting.prepare.seqno
        return high

    @property
    def commits(self) -> Mapping[int, int]:
        """Seqno of a commit in memory → seqno of its prepare."""
        return self._commits

    def visible_seqno(self, seqno: int) -> int:
        """The last seqno at or below this one that is no prepare or abort."""
        return self.vbucket.log.visible_seqno(seqno)

    def first_visible_after(self, seqno: int) -> int | None:
        """The first seqno above this one that is no prepare or abort."""
        return self.vbucket.log.first_seqno_after(seqno, is_prepare=False)

    def first_hidden_after(self, seqno: int) -> int | None:
        """The first seqno above this one that is a prepare or abort."""
        return self.vbucket.log.first_seqno_after(seqno, is_prepare=True)

    def acknowledged(self, name: str, seqno: int) -> None:
        """A replica has prepared everything up to `seqno`."""
        if seqno > self._acknowledged.get(name, 0):
            self._acknowledged[name] = seqno
            self.decide()

    # --------------------------------------------------------------------------------------------------- the active

    def prepare(
        self,
        version: Version,
        requirement: Requirement,
        client: Session,
        *,
        unix_ns: int,
        now: float,
        is_deleted: bool = False,
    ) -> None:
        """Begin a durable write; the client may get the outcome before this returns."""
        key = version.key
        if key in self._prepared_in_checkpoint():
            self._close_checkpoint()
        vbucket = self.vbucket
        seqno = vbucket.log.high_seqno + 1
        frame = encode_stored_prepare(
            version,
            vbid=vbucket.vbid,
            by_seqno=seqno,
            cas=vbucket.next_cas(unix_ns),
            level=requirement.level,
            nru=FREQUENCY_OF_NEW,
            is_deleted=is_deleted,
        )
        self._append_hidden(frame, key, seqno, version.datatype)
        self.accepted_count += 1
        self._in_checkpoint.add(key)
        self.undecided[key] = Undecided(read_prepare(frame), now + requirement.timeout_s, client)
        self.decide()
        self._make_durable(key)

    def _make_durable(self, key: bytes) -> None:
        """Have a prepare committed to disk at once if its level asks for that: somebody waits for it."""
        waiting = self.undecided.get(key)
        if waiting is not None and not self._is_durable_here(waiting.prepare):
            self._commit_soon()

    def before_plain_write(self, key: bytes) -> None:
        """Begin a checkpoint if the open one has a commit of the document that is written next."""
        meta = self.vbucket.log.meta(key)
        if meta is not None and self._is_in_checkpoint(meta.seqno) and meta.seqno in self._commits:
            self._close_checkpoint()

    def decide(self) -> None:
        """Commit, in order, the prepares that a majority has."""
        if not self.vbucket.is_active or not self.undecided:
            return
        chains = parse_topology(self.vbucket.topology)
        if not chains:
            return
        for key, waiting in list(self.undecided.items()):
            if not all(self._has_majority(chain, waiting.prepare) for chain in chains):
                return
            del self.undecided[key]
            before = self.vbucket.log.meta(key)
            if before is not None and self._is_in_checkpoint(before.seqno):
                self._close_checkpoint()
            seqno = self.vbucket.log.high_seqno + 1
            self._commit(waiting.prepare, seqno)
            if waiting.client is not None:
                prepare = waiting.prepare
                waiting.client.resume(Status.SUCCESS, prepare.cas, prepare.seqno, self.vbucket.vbuuid)

    def topology_changed(self) -> None:
        """Abort the prepares that the new topology can never decide, and commit those that it has decided.

        A prepare taken over from another node is not aborted, because it may have been committed there.
        """
        if self.vbucket.is_active and self.vbucket.topology and not is_possible(parse_topology(self.vbucket.topology)):
            self._abort_all(lambda waiting: waiting.deadline is not None)
        self.decide()

    def _has_majority(self, chain: tuple[str | None, ...], prepare: StoredPrepare) -> bool:
        count = int(self._is_durable_here(prepare))
        count += sum(name is not None and self._acknowledged.get(name, 0) >= prepare.seqno for name in chain[1:])
        return count > len(chain) // 2

    def _is_durable_here(self, prepare: StoredPrepare) -> bool:
        return prepare.level == LEVEL_MAJORITY or self.vbucket.persisted_seqno >= prepare.seqno

    def next_timeout(self) -> float | None:
        """When `handle_timeout` is to be called, monotonic seconds."""
        return min(
            (waiting.deadline for waiting in self.undecided.values() if waiting.deadline is not None), default=None
        )

    def handle_timeout(self, now: float) -> None:
        """Abort the prepares that were not decided in time."""
        if self.vbucket.is_active:
            self._abort_all(lambda waiting: waiting.deadline is not None and waiting.deadline <= now)

    def _abort_all(self, is_chosen: Callable[[Undecided], bool]) -> None:
        for key, waiting in list(self.undecided.items()):
            if is_chosen(waiting):
                del self.undecided[key]
                self._close_checkpoint()
                self._abort(key, waiting.prepare.seqno, self.vbucket.log.high_seqno + 1)
                self._answer_ambiguous(waiting)

    def leave_active(self) -> None:
        """The vbucket left the active role: clients that wait get an ambiguous outcome."""
        for waiting in self.undecided.values():
            waiting.deadline = None
            self._answer_ambiguous(waiting)
        self._acknowledged.clear()

    def _answer_ambiguous(self, waiting: Undecided) -> None:
        client, waiting.client = waiting.client, None
        if client is not None:
            client.resume(Status.SYNC_WRITE_AMBIGUOUS, 0, 0, 0)

    # ---------------------------------------------------------------------------------------------- active, replica

    def kinds_of(self, key: bytes) -> int:
        """On a replica: the additional kind of a document's new row, COMMIT if there is an undecided prepare."""
        return int(BlockKind.COMMIT) if key in self.undecided else 0

    def stored(self, frame: bytes, key: bytes, seqno: int) -> None:
        """On a replica: note a stored row that is a prepare or decides one."""
        if frame[1] == Opcode.DCP_PREPARE:
            self.undecided.pop(key, None)  # a disk snapshot may bring one in the place of another
            self.undecided[key] = Undecided(read_prepare(frame), None, None)
            self._make_durable(key)
        elif frame[1] == Opcode.DCP_ABORT:
            self._completed(key, read_prepare(frame).prepared_seqno)
        elif key in self.undecided:
            self._committed(key, self.undecided[key].prepare.seqno, seqno)

    def _commit(self, prepare: StoredPrepare, seqno: int) -> None:
        vbucket, key, datatype = self.vbucket, prepare.key, prepare.datatype
        if prepare.is_deleted:
            vbucket.max_deleted_rev = max(vbucket.max_deleted_rev, prepare.rev_seqno)
            frame = encode_stored_deletion(prepare.version, vbid=vbucket.vbid, by_seqno=seqno, cas=prepare.cas)
            kinds = frame_kinds(Opcode.DCP_DELETION, datatype, key)
        else:
            frame = encode_stored_mutation(
                prepare.version, vbid=vbucket.vbid, by_seqno=seqno, cas=prepare.cas, nru=FREQUENCY_OF_NEW
            )
            kinds = frame_kinds(Opcode.DCP_MUTATION, datatype, key)
        vbucket.log.append(frame, key, seqno, kinds=int(kinds | BlockKind.COMMIT))
        self._committed(key, prepare.seqno, seqno)

    def _committed(self, key: bytes, prepared_seqno: int, seqno: int) -> None:
        self.committed_count += 1
        self._commits[seqno] = prepared_seqno
        if len(self._commits) > COMMITS_REMEMBERED:
            oldest = next(iter(self._commits))
            del self._commits[oldest]
            if self.vbucket.is_active and self._is_in_checkpoint(oldest):
                self._close_checkpoint()  # it could not be kept apart from a later version any more
        self._completed(key, prepared_seqno)

    def _abort(self, key: bytes, prepared_seqno: int, seqno: int) -> None:
        self.aborted_count += 1
        frame = encode_stored_abort(vbid=self.vbucket.vbid, key=key, by_seqno=seqno, prepared_seqno=prepared_seqno)
        self._append_hidden(frame, key, seqno, 0)
        self._in_checkpoint.add(key)
        self._completed(key, prepared_seqno)

    def _completed(self, key: bytes, prepared_seqno: int) -> None:
        self.undecided.pop(key, None)
        self._last_completed = max(self._last_completed, prepared_seqno)
        self._changed(self.vbucket.vbid)

    def _append_hidden(self, frame: bytes, key: bytes, seqno: int, datatype: int) -> None:
        kinds = frame_kinds(frame[1], datatype, key)
        self.vbucket.log.append(frame, key, seqno, kinds=int(kinds))
        self._changed(self.vbucket.vbid)

    # --------------------------------------------------------------------------------------------------- checkpoints

    def _is_in_checkpoint(self, seqno: int) -> bool:
        return seqno >= self.vbucket.checkpoint_start_seqno

    def _prepared_in_checkpoint(self) -> set[bytes]:
        """Keys with a prepare or abort in the open checkpoint, which may have begun without this object."""
        if self._checkpoint_seqno != self.vbucket.checkpoint_start_seqno:
            self._checkpoint_seqno = self.vbucket.checkpoint_start_seqno
            self._in_checkpoint.clear()
        return self._in_checkpoint

    def _close_checkpoint(self) -> None:
        self.vbucket.close_checkpoint()
        self._prepared_in_checkpoint()
