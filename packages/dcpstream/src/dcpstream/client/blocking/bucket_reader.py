"""Blocking shell: a cluster's positions and bounded reads, over plain sockets.

`BucketReader` is what a planner and its workers need: observations of branches, checks of positions, and reads of
planned ranges. It is not safe for use by several threads at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dcpstream.client.blocking.loop import drive, turn
from dcpstream.client.blocking.sockets import Sockets
from dcpstream.client.machine.nodes.cluster_map import manifest_of
from dcpstream.client.machine.nodes.nodes import Nodes
from dcpstream.client.machine.nodes.questions import (
    Observer,
    Question,
    Questions,
    high_seqno_questions,
    high_seqnos_of,
    log_questions,
    logs_of,
    map_question,
)
from dcpstream.client.machine.reader.batches import ArrowConverter
from dcpstream.client.machine.reader.catalog import older_manifest
from dcpstream.client.machine.reader.reader import StreamReader
from dcpstream.client.machine.reader.selection import FixedSelection, Selection
from dcpstream.client.machine.resume import BranchState
from dcpstream.client.machine.rollback_policy import OnPurgeGap, RollbackPolicy, check_purge_gap
from dcpstream.client.machine.values import Accepted, ReaderOutput, RollbackTo, VbucketRange
from dcpstream.client.settings.client_options import CLIENT_DEFAULTS, ClientOptions, check_buffer_bytes
from dcpstream.client.settings.connection_string import ConnectionString
from dcpstream.client.settings.options import ConnectOptions, DcpSettings, access
from dcpstream.client.settings.secrets import Secret
from dcpstream.client.settings.srv import resolve_seeds
from dcpstream.client.spans import RELEASE, connect_span
from dcpstream.client.stream_options import StreamOptions
from dcpstream.errors import ConnectTimeout, DcpstreamError, NotSupported, UnknownCommand
from dcpstream.model import FailoverLog, Manifest, StreamOffset, VbucketMap
from dcpstream.runtime import Clock, Random, SystemClock, SystemRandom
from dcpstream.wire.messages.kv import GetClusterConfig, GetCollectionsManifest

if TYPE_CHECKING:
    import pyarrow as pa

    from dcpstream.arrow import Missing, RowFilter

IDLE_TIMEOUT_S = 60.0
"""Seconds that a bounded read may wait without any progress before it raises."""

ABSENCE_S = 2.0
"""Seconds that questions wait for a node without a connection, once all others are answered: what it has active is left
out then, so that one node that is down does not hold up the reading of the others."""

KNOWN_ABSENCE_S = 0.2
"""The same while a node was away at the last question, too: long enough for a connection to it to come up."""


PLANNED = StreamOptions(on_rollback="rewind")
"""The options of a bounded read, as far as a plan gives no others."""


class BucketReader:
    """A bucket of a cluster, for bounded reads and for questions about positions.

    Connects when first used, to the nodes that are needed, and keeps the connections until `close()`; a broken one
    is made again.

    Args:
        connection_string, username, password, bucket: as for `Client`.
        options: of the client.

    Raises:
        ConfigError: an option is not allowed.
        AuthenticationFailed: the node refuses user or password (when first used).
        ConnectTimeout: no seed answers in time; the message lists what was tried (when first used).
    """

    def __init__(
        self,
        connection_string: str,
        *,
        username: str = "",
        password: Secret = "",
        bucket: str,
        options: ClientOptions = CLIENT_DEFAULTS,
    ) -> None:
        given = access(connection_string, username, password, bucket, options)
        self._unresolved: ConnectionString | None = given.parsed
        self._clock: Clock = SystemClock()
        self._random: Random = SystemRandom()
        self._options = given.connect_options()
        self._was_reached = False
        self._observer = Observer()
        self._is_complete = True
        self._control = self._new_control()
        self._control_sockets: Sockets | None = None
        self._data: dict[DcpSettings, tuple[Nodes, Sockets]] = {}

    @property
    def map(self) -> VbucketMap:
        """The newest cluster map that is known."""
        if self._control.map is None:
            with connect_span(self._options) as one:
                self._ask([map_question()])
                one.set_attribute(RELEASE, str(self._control.releases))
        assert self._control.map is not None
        return self._control.map

    def manifest(self, least_uid: int = 0) -> Manifest:
        """The bucket's scopes and collections, asked now; the default ones if the node knows no others.

        Args:
            least_uid: the version that is known already: if one node has an older one, all are asked.

        Raises:
            ConnectTimeout: no node answers in time, or all have an older version.
        """
        question = Question(GetCollectionsManifest())
        try:
            machine = self._ask([question])
        except (UnknownCommand, NotSupported):
            return Manifest.DEFAULT
        if question.answer is None:
            raise machine.no_answer("the list of collections")
        found = manifest_of(question.answer)
        if found.uid < least_uid:
            questions = [Question(GetCollectionsManifest(), node=node) for node in self.map.vbuckets_by_node()]
            self._ask(questions)
            manifests = [manifest_of(one.answer) for one in questions if one.answer is not None]
            found = max((found, *manifests), key=lambda one: one.uid)
        if found.uid < least_uid:
            nodes = ", ".join(str(node) for node in self.map.vbuckets_by_node())
            raise ConnectTimeout(older_manifest(nodes, found.uid, least_uid))
        return found

    def high_seqnos(self) -> dict[int, int]:
        """Vbucket → high seqno on its active node. A vbucket that no reachable node has active is missing."""
        questions = high_seqno_questions(self.map)
        self._ask(questions)
        return high_seqnos_of(questions, self.map.vbucket_count)

    def failover_logs(self, vbids: Iterable[int] | None = None) -> dict[int, FailoverLog]:
        """Vbucket → failover log of its active node; all vbuckets if None. Unknown ones are missing."""
        questions = log_questions(range(self.map.vbucket_count) if vbids is None else vbids)
        self._ask(questions)
        return logs_of(questions)

    def observe(
        self, vbids: Iterable[int] | None = None, *, high_seqnos: Mapping[int, int] | None = None
    ) -> dict[int, BranchState]:
        """Branch and high seqno of vbuckets, each as one observation: log, high seqno, log again.

        A vbucket whose node is not known, or whose branch changed meanwhile, is missing.

        Args:
            vbids: the vbuckets, None for all.
            high_seqnos: the answer of `high_seqnos`, if it was asked since the last observation; it is not asked again.
        """
        states: dict[int, BranchState] = {}
        vbids = range(self.map.vbucket_count) if vbids is None else vbids
        for questions in self._observer.rounds(vbids, self.map, states, high_seqnos):
            self._ask(questions)
        return states

    def check_positions(
        self, positions: Mapping[int, StreamOffset], *, purge_gap: OnPurgeGap | None = None
    ) -> dict[int, Accepted | RollbackTo]:
        """The nodes' verdicts on positions, by streams of length zero, which send nothing.

        A vbucket that no reachable node has active is missing.

        Args:
            positions: vbucket → position.
            purge_gap: "ignore" accepts a position after which deletions were purged, with a warning in the log; "fail"
                raises HistoryPurged for one. Else such a position is refused like one of another branch.
        """
        policy = check_purge_gap(purge_gap, can_rewind=True)
        answers = self._check(positions, ignore_purged=False)
        doubtful = {
            vbid: positions[vbid]
            for vbid, answer in answers.items()
            if isinstance(answer, RollbackTo) and policy.needs_probe(answer.seqno, positions[vbid].seqno)
        }
        for vbid, answer in self._check(doubtful, ignore_purged=True).items():
            if isinstance(answer, Accepted):
                policy.accept_purged(vbid, positions[vbid].seqno)
                answers[vbid] = answer
        return answers

    def _check(self, positions: Mapping[int, StreamOffset], *, ignore_purged: bool) -> dict[int, Accepted | RollbackTo]:
        questions = [
            Question(vbid=vbid, position=position, ignore_purged=ignore_purged) for vbid, position in positions.items()
        ]
        if questions:
            self._ask(questions)
        return {
            question.vbid: question.result
            for question in questions
            if question.result is not None and question.vbid is not None
        }

    def read_ranges(
        self,
        ranges: Sequence[VbucketRange],
        options: StreamOptions = PLANNED,
        *,
        selection: Selection | FixedSelection | None = None,
        buffer_bytes: int | None = None,
        bucket_uuid: str = "",
        row_filter: RowFilter | None = None,
        missing: Missing = "null",
    ) -> Iterator[ReaderOutput[pa.RecordBatch]]:
        """Read ranges of several vbuckets and finish when each is done.

        A vbucket is done when its end was reached (a row, a system event or an advanced seqno at or above it, or the
        node's "end of stream"); a cut connection, a moved vbucket or any other end of the stream is resumed. If its
        start is refused, the reader goes back along the recorded positions and yields a RollbackEvent before the
        first row. If a position is accepted on another branch than that of `VbucketRange.given_vbuuid`, it yields a
        RollbackEvent to that position before the rows of the new branch. The control row of a table is
        `RollbackEvent.details`. If the branch on which the end was planned has ended below that end, the
        vbucket is done at the high seqno of the new branch.

        Args:
            ranges: at most one per vbucket; a range whose start is at its end is done at once.
            options: those of a stream, without where it begins and ends. Columns may be any of FULL_SCHEMA. A rollback
                is always an output while no row of its vbucket was given; `on_rollback` only decides the default of
                `purge_gap`. An `idle_timeout_s` of None is IDLE_TIMEOUT_S.
            selection: the collections of a plan, instead of `options.collections`.
            buffer_bytes: flow-control window of each connection, instead of that of `ClientOptions`.
            bucket_uuid: the uuid that the bucket must have; empty for any.
            row_filter: leaves out rows before their values are built; events are not filtered.
            missing: "null" fills the other columns of CHANGE_SCHEMA with nulls, "drop" leaves them out.

        Raises:
            BucketReset: the bucket has another uuid, or gets another one during the read.
            RollbackRequired: rows of a vbucket were yielded, and then its history was rolled back. Plan again.
            ConnectTimeout, ConnectionLost: a node stays away for `idle_timeout_s`.
            RemoteProtocolError, WireError: a node sends what the protocol does not allow, on five connections.
        """
        options.check_for("read_ranges")
        columns = options.columns
        converter = ArrowConverter(
            options.value_format, columns, options.max_batch_rows, row_filter=row_filter, missing=missing
        )
        idle_timeout_s = IDLE_TIMEOUT_S if options.idle_timeout_s is None else options.idle_timeout_s
        rules = replace(
            options.rules(idle_timeout_s), policy=RollbackPolicy.REWIND_UNREAD, idle_timeout_s=idle_timeout_s
        )
        if selection is not None:
            rules = replace(rules, collections=selection)

        def make_reader(nodes: Nodes) -> StreamReader[pa.RecordBatch]:
            return StreamReader(ranges, nodes, self._random, converter, rules, self._clock.monotonic())

        # A position on a branch, or an end that was planned on one, is from a bucket that was there.
        is_known = any(one.planned_vbuuid for one in ranges)
        needed = columns if columns is None or row_filter is None else (*columns, *row_filter.columns)
        settings = self._options.settings
        if buffer_bytes is not None:
            settings = replace(settings, buffer_bytes=check_buffer_bytes(buffer_bytes))
        skips_deletes = options.skip_deletes and not options.history
        settings = settings.for_columns(needed, history=options.history, skip_deletes=skips_deletes)
        return self._read(make_reader, settings, is_known, bucket_uuid)

    def _read(
        self,
        make_reader: Callable[[Nodes], StreamReader[pa.RecordBatch]],
        settings: DcpSettings,
        is_known: bool,
        bucket_uuid: str,
    ) -> Iterator[ReaderOutput[pa.RecordBatch]]:
        # Taken out while they are used, so that a second reader would make its own.
        if settings in self._data:
            nodes, sockets = self._data.pop(settings)
        else:
            options = replace(self._options, settings=settings)
            nodes = Nodes(options, self._random, was_reached=self._was_reached or is_known)
            sockets = Sockets(self._options.tls)
        if nodes.map is None or (self._control.map is not None and self._control.map.version > nodes.map.version):
            nodes.map = self._control.map
        nodes.expect(bucket_uuid)
        is_clean = False
        try:
            with contextlib.closing(drive(make_reader(nodes), nodes, sockets, self._clock)) as events:
                yield from events
            is_clean = True
        finally:
            # A reader that was left in the middle has streams open and bytes under way: its connections go.
            if is_clean and settings not in self._data:
                self._data[settings] = (nodes, sockets)
            else:
                sockets.close()

    @property
    def connect_options(self) -> ConnectOptions:
        """The options of the connections for questions; those of other connections are derived from them."""
        return self._options

    def refresh(self) -> bool:
        """Get the newest cluster map over the connection for questions that is there, and make no other.

        For a cluster that was kept without use. If this fails, the connection is dead, or the bucket is another one, or
        the cluster was never used: close it and make a new one, whose errors are about what there is now.

        Returns: whether it worked, within `ABSENCE_S`.
        """
        connection = self._control.any_ready()
        if connection is None or self._control_sockets is None:
            return False
        question = Question(GetClusterConfig(), node=connection.address)
        deadline = self._clock.monotonic() + min(ABSENCE_S, self._options.connect_timeout_s)
        machine = Questions([question], self._control, self._random, deadline)
        try:
            while self._control.has(connection):
                limit_s = machine.proceed(self._clock.monotonic())
                if limit_s is None:
                    break
                turn(machine, self._control, self._control_sockets, self._clock, limit_s)
            if question.answer is not None:
                self._control.update_map(question.answer, connection.address)
        except DcpstreamError:
            return False
        return question.answer is not None and self._control.has(connection)

    def rest(self) -> None:
        """Close the connections for questions; the next question makes others. The cluster map stays known.

        For a time in which nobody answers the probes of nodes on them: a node gives such a connection up.
        """
        if self._control_sockets is not None:
            self._control_sockets.close()
            self._control_sockets = None
            found, self._control = self._control.map, self._new_control()
            self._control.map = found

    def close(self) -> None:
        """Close all connections; a second time does nothing."""
        if self._control_sockets is not None:
            self._control_sockets.close()
            self._control_sockets = None
            self._control = self._new_control()
        for _, sockets in self._data.values():
            sockets.close()
        self._data.clear()

    def _ask(self, questions: list[Question]) -> Questions:
        """Ask and wait, for the connect time-out at most; some questions may stay unanswered.

        Raises:
            ConnectTimeout: no node could be reached at all.
        """
        if self._unresolved is not None:
            self._options = replace(self._options, seeds=resolve_seeds(self._unresolved))
            self._control = self._new_control()
            self._unresolved = None
        if self._control_sockets is None:
            self._control_sockets = Sockets(self._options.tls)
        deadline = self._clock.monotonic() + self._options.connect_timeout_s
        absence_s = ABSENCE_S if self._is_complete else KNOWN_ABSENCE_S
        machine = Questions(questions, self._control, self._random, deadline, absence_s)
        try:
            while (limit_s := machine.proceed(self._clock.monotonic())) is not None:
                turn(machine, self._control, self._control_sockets, self._clock, limit_s)
            if self._control.map is None:
                raise machine.no_answer("the cluster map")
        except BaseException:
            self.close()
            raise
        self._was_reached = True
        self._is_complete = machine.is_complete
        return machine

    def _new_control(self) -> Nodes:
        return Nodes(self._options.for_questions, self._random, was_reached=self._was_reached)

    def __enter__(self) -> BucketReader:
        """The cluster itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close."""
        self.close()
