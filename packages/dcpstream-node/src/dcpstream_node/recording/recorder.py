"""Drains a bucket into a recording, and goes on with one that is there.

The file itself holds the positions: a recorder that was stopped or killed reads the file once, cuts off an incomplete
block, and goes on behind the last whole one. Memory is bounded by the flow-control window, because each receive is one
block and is written before the next one is asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, assert_never

from dcpstream.client import Client, SavedOffset, StreamOptions
from dcpstream.client.machine.reader.messages import MessageRun
from dcpstream.client.machine.values import CollectionEvents, ManifestEvent, RollbackEvent, RowsRead
from dcpstream.client.streaming import Messages
from dcpstream.errors import ConfigError, DcpstreamError
from dcpstream.model import FailoverEntry, FailoverLog, StreamOffset
from dcpstream.runtime import Clock
from dcpstream_node.recording import history
from dcpstream_node.recording.file import Header, RecordingReader, RecordingWriter, is_unbegun
from dcpstream_node.recording.history import Histories, VbucketHistory


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a recording.

    Attributes:
        changes: mutations, deletions and expirations in the file.
        file_bytes: its size.
        seqnos: the sum of the vbuckets' last seqnos in the file.
        seqnos_wanted: the sum of those at which it ends; None if it follows.
        rollbacks: in this run.
        incomplete: vbuckets whose last snapshot is incomplete.
    """

    changes: int
    file_bytes: int
    seqnos: int
    seqnos_wanted: int | None
    rollbacks: int
    incomplete: int


def record(
    client: Client,
    path: Path,
    clock: Clock,
    *,
    start: Literal["earliest", "latest"] = "earliest",
    follow: bool = False,
    collections: Sequence[str] | None = None,
    is_deflated: bool = True,
    is_over: Callable[[], bool] | None = None,
) -> Iterator[Progress]:
    """Record a bucket, and yield the progress: after each receive, and at the end.

    Args:
        client: of the bucket.
        path: the file; one that is there is continued, or begun again if it has no block.
        clock: for the times of arrival.
        start: where a new file begins.
        follow: whether to go on behind the seqnos of now.
        collections: as for `Client.stream`; a file that is gone on with keeps its own.
        is_deflated: whether blocks are deflated.
        is_over: ends the recording once it is true; asked at least once in a second.

    Raises:
        ConfigError: the file is no recording, or one of another bucket or other collections.
        CorruptLog: the file is damaged.
        DcpstreamError: see `Client.stream`.
    """
    with contextlib.ExitStack() as cleanup:
        recorder = _Recorder(client, path, clock, start, collections, is_deflated)
        cleanup.callback(recorder.writer.close)
        total = None if follow else sum(client.cluster.high_seqnos().values())
        # "latest" puts a position above the high seqno to the node, too: that history may have been rolled back.
        options = StreamOptions(
            end=None if follow else "latest",
            store=_Positions(recorder.positions),
            collections=recorder.collections,
        )
        messages = client.messages(options, is_over=is_over)
        cleanup.enter_context(contextlib.closing(messages))
        for item in messages:
            recorder.take(item)
            yield recorder.progress(total)
        yield recorder.progress(total)


class _Positions:
    """The positions of a recording as an offset store; nothing is saved, because the file itself says them."""

    def __init__(self, records: Mapping[int, SavedOffset]) -> None:
        self._records = dict(records)

    def load(self) -> dict[int, SavedOffset]:
        """The positions when the recorder began."""
        return self._records

    def save(self, offsets: Mapping[int, SavedOffset]) -> None:
        """Nothing to do."""


class _Recorder:
    """Writes what the client brings."""

    def __init__(
        self,
        client: Client,
        path: Path,
        clock: Clock,
        start: Literal["earliest", "latest"],
        collections: Sequence[str] | None,
        is_deflated: bool,
    ) -> None:
        self._path = path
        self._clock = clock
        self._histories = Histories()
        self._rollbacks = 0
        cluster = client.cluster
        found = cluster.map
        wanted = None if collections is None else tuple(collections)
        is_there = path.exists()
        is_left = is_there and is_unbegun(path)
        if is_there and not is_left:
            header, end = self._read(path)
            _check_source(path, header, found.bucket, found.uuid, found.vbucket_count, wanted)
            self.writer = RecordingWriter.go_on(path, end, is_deflated=is_deflated)
        else:
            header = Header(found.bucket, found.uuid, found.vbucket_count, cluster.manifest(), wanted)
            states = cluster.observe()
            missing = found.vbucket_count - len(states)
            if missing and start == "latest":
                raise ConfigError(
                    "--from",
                    "latest",
                    "a cluster whose nodes are all there",
                    message=f"--from latest: {missing} of {found.vbucket_count} vbuckets have no node that can be "
                    "reached, so their high seqnos are not known",
                )
            begun = []
            for vbid, state in sorted(states.items()):
                at = StreamOffset.ZERO
                if start == "latest":
                    at = StreamOffset(state.vbuuid, state.high_seqno, state.high_seqno, state.high_seqno)
                self._histories.of(vbid).open(at, state.failover_log)
                begun.append(history.opened(vbid, at, state.failover_log))
            if is_left:
                path.unlink()
            self.writer = RecordingWriter.create(path, header, is_deflated=is_deflated)
            self.writer.write(b"".join(begun), clock.time_ns())
        self.collections = header.collections

    def _read(self, path: Path) -> tuple[Header, int]:
        with RecordingReader(path) as reader:
            end = reader.start
            for block in reader.blocks():
                self._histories.take(block.frames)
                end = block.end
            return reader.header, end

    @property
    def positions(self) -> dict[int, SavedOffset]:
        """Vbucket → where to go on."""
        return {vbid: SavedOffset(one.offset, one.earlier) for vbid, one in self._histories.vbuckets.items()}

    def progress(self, wanted: int | None) -> Progress:
        """The progress so far."""
        found = self._histories
        return Progress(found.changes, self.writer.size, found.high_seqnos, wanted, self._rollbacks, found.incomplete)

    def take(self, messages: Messages) -> None:
        """Write what one receive brought."""
        parts: list[bytes] = []
        output = messages.output
        match output:
            case RowsRead(runs):
                for run in runs:
                    self._run(run, messages, parts)
            case CollectionEvents(events, moved):
                for event in events:
                    if isinstance(event, ManifestEvent):  # no recording asks for every version
                        self._event(event, messages, parts)
                for vbid, at in moved.items():
                    self._advance(self._histories.of(vbid), at, parts)
            case RollbackEvent():
                self._rollbacks += 1
                one = self._histories.of(output.vbid)
                parts.append(history.rolled_back(one.vbid, output.to_seqno))
                one.roll_back(output.to_seqno)
                self._open(one, output.resumed_at, output.new_vbuuid, messages.failover_logs, parts)
            case _:
                assert_never(output)
        self.writer.write(b"".join(parts), self._clock.time_ns())

    def _run(self, run: MessageRun, messages: Messages, parts: list[bytes]) -> None:
        one, at = self._histories.of(run.run.vbid), run.run.offset()
        self._follow_branch(one, at.vbuuid, messages, parts)
        if not run.frames:
            self._advance(one, at, parts)
            return
        if int.from_bytes(run.frames[0].extras[:8], "big") <= one.seqno:
            raise DcpstreamError(
                f"vbucket {one.vbid}: a collection that is wanted was made again below seqno {one.seqno}, which is "
                f"recorded already. Record into a new file; {self._path} is sound up to here"
            )
        self._snapshot(one, at, parts)
        parts += [history.message(frame, has_collections=run.has_collections) for frame in run.frames]
        one.changes += len(run.frames)
        one.seqno = at.seqno

    def _event(self, event: ManifestEvent, messages: Messages, parts: list[bytes]) -> None:
        one, at = self._histories.of(event.vbid), event.offset
        # Reports that stand for no message have another seqno than the position, or one that is recorded already.
        if at.seqno != event.seqno or at.seqno <= one.seqno:
            return
        self._follow_branch(one, at.vbuuid, messages, parts)
        self._snapshot(one, at, parts)
        parts.append(history.system_event(event))
        one.seqno, one.manifest_uid = at.seqno, max(one.manifest_uid, event.manifest_uid)

    def _advance(self, one: VbucketHistory, at: StreamOffset, parts: list[bytes]) -> None:
        if at.seqno > one.seqno:
            self._snapshot(one, at, parts)
            parts.append(history.advanced(one.vbid, at.seqno))
            one.seqno = at.seqno

    def _snapshot(self, one: VbucketHistory, at: StreamOffset, parts: list[bytes]) -> None:
        start, end = at.snapshot_start, at.request_bounds()[2]
        if (start, end) != one.snapshot:
            parts.append(history.marker(one.vbid, start, end))
            one.begin_snapshot(start, end)

    def _follow_branch(self, one: VbucketHistory, vbuuid: int, messages: Messages, parts: list[bytes]) -> None:
        if one.log is None or one.log.newest.vbuuid != vbuuid:
            self._open(one, one.offset, vbuuid, messages.failover_logs, parts)

    def _open(
        self, one: VbucketHistory, at: StreamOffset, vbuuid: int, logs: Mapping[int, FailoverLog], parts: list[bytes]
    ) -> None:
        log = branch_log(logs.get(one.vbid), vbuuid, one)
        parts.append(history.opened(one.vbid, at, log))
        one.open(at, log)


def branch_log(answered: FailoverLog | None, vbuuid: int, one: VbucketHistory) -> FailoverLog:
    """The failover log of a branch.

    Args:
        answered: the newest log that a stream was answered with: of this branch or of a later one.
        vbuuid: the branch.
        one: the vbucket so far, for a branch that a later log does not know any more.
    """
    for index, entry in enumerate(answered.entries if answered is not None else ()):
        if entry.vbuuid == vbuuid and answered is not None:
            return FailoverLog(answered.entries[index:])
    entry = FailoverEntry(vbuuid, one.seqno)
    return FailoverLog((entry,)) if one.log is None else one.log.pushed(entry)


def _check_source(
    path: Path, header: Header, bucket: str, uuid: str, vbuckets: int, collections: tuple[str, ...] | None
) -> None:
    """Refuse to go on with a recording of something else. Raises: ConfigError."""
    why = None
    if (header.bucket, header.vbuckets) != (bucket, vbuckets):
        why = f"bucket {header.bucket} with {header.vbuckets} vbuckets, not {bucket} with {vbuckets}"
    elif header.bucket_uuid and uuid and header.bucket_uuid != uuid:
        why = f"a bucket {bucket} that was deleted and created again since"
    elif collections is not None and collections != header.collections:
        why = f"the collections {', '.join(header.collections or ('all',))}, not {', '.join(collections)}"
    if why is not None:
        message = f"{path} is a recording of {why}. Choose another file, or remove this one"
        raise ConfigError("FILE", str(path), "a new file, or a recording of this bucket", message=message)
