"""The rows of a batch, kept in files until the next batch, so that a replay of the batch gives the very same rows.

A change feed is deduplicated: a batch that Spark repeats after a failure may hold fewer rows than at its first attempt.
That is harmless for tables that merge by key. A sink that cannot repeat anything, and is not transactional, needs
`replay=spool`.

Theory of operation. A task writes all of its rows to a file before it gives the first of them to Spark, and publishes
the file under a name that follows from the batch. Every attempt of the task, also a speculative one, gives out the rows
of the published file; the first that is published wins. Therefore the tasks of a repeated batch must be those of the
first attempt, although the cluster may have changed: the driver keeps the division of vbuckets among the tasks next to
the files. A file ends with a checksum. A damaged one is replaced by rows from the node.

Files of a batch are deleted when Spark says that the batch is done, and when the next one is planned. So the directory
holds the rows of one batch at a time, which `maxOffsetsPerTrigger` bounds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import fs

from dcpstream.errors import StoreError
from dcpstream.runtime import Random, SystemRandom
from dcpstream_spark.files import opened
from dcpstream_spark.source.planner import PlannedRange

TRAILER_MAGIC = b"dcpspool"
TRAILER_BYTES = len(TRAILER_MAGIC) + 4
"""A file ends with the CRC-32 of all before, little-endian, and the magic."""

READ_BYTES = 1024 * 1024
"""Bytes of a read while a checksum is verified: large compared with the cost of a call, small compared with a task's
memory."""

_PREFIX = "batch-"
_DIVISION = "division.json"

_log = logging.getLogger(__name__)

Tasks: TypeAlias = Sequence[tuple[str, tuple[PlannedRange, ...]]]
"""(node, ranges) of each task."""


def batch_name(start: Any, end: Any, rows: str) -> str:
    """The name of a batch's directory: the same for each attempt, another for each other batch.

    Args:
        start, end: its offsets, parsed JSON.
        rows: all that decides about the rows between them: columns, types, filters.
    """
    text = json.dumps([end, start, rows], sort_keys=True)
    return f"{_end_name(end)}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _end_name(end: Any) -> str:
    return _PREFIX + hashlib.sha256(json.dumps(end, sort_keys=True).encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """The file of one task.

    Attributes:
        directory: an absolute path, or a URL that Arrow can open.
        name: path of the file in it.
    """

    directory: str
    name: str

    def replayed(self, rows: Iterable[pa.RecordBatch], *, random: Random | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of the file; `rows` are read and written to it if there is none that can be used.

        Raises:
            StoreError: the file cannot be written, or cannot be read although it was whole a moment ago.
        """
        system, base = opened(self.directory)
        path = f"{base}/{self.name}"
        try:
            is_kept = _is_whole(system, path)
            if is_kept:
                _log.info("the rows of this task come from %s, as at its first attempt", self.name)
            else:
                _publish(system, path, rows, random or SystemRandom())
        except OSError as error:
            raise StoreError(f"The spool file {self.name} in {self.directory} cannot be written: {error}") from error
        try:
            yield from _batches(system, path)
        except (OSError, pa.ArrowInvalid) as error:
            raise StoreError(
                f"The spool file {self.name} in {self.directory} cannot be read any more: {error}. Spark repeats the "
                "task; if the error stays, check that every executor can reach the directory."
            ) from error


class Spool:
    """The driver's side: one directory for each batch.

    Args:
        directory: an absolute path, or a URL that Arrow can open; for one query alone.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def begin(self, batch: str, tasks: Tasks) -> list[tuple[str, tuple[PlannedRange, ...], SpoolFile]]:
        """The tasks of a batch and their files. Files of other batches are deleted.

        Args:
            batch: its name.
            tasks: as planned now; if the batch was planned before, it is divided as it was then.

        Raises:
            StoreError: the directory cannot be written.
        """
        system, base = opened(self._directory)
        try:
            system.create_dir(f"{base}/{batch}", recursive=True)
            self._trim(system, base, keep=batch)
            tasks = _as_before(system, f"{base}/{batch}/{_DIVISION}", tasks)
        except OSError as error:
            raise StoreError(f"The spool directory {self._directory} cannot be written: {error}") from error
        return [
            (node, ranges, SpoolFile(self._directory, f"{batch}/task-{index:05}.arrow"))
            for index, (node, ranges) in enumerate(tasks)
        ]

    def done(self, end: Any) -> None:
        """Delete the files of the batch that ends here. A failure is only logged: the next batch deletes them, too."""
        try:
            system, base = opened(self._directory)
            self._trim(system, base, only=_end_name(end))
        except OSError as error:
            _log.warning("files of a batch that is done stay in %s: %s", self._directory, error)

    @staticmethod
    def _trim(system: fs.FileSystem, base: str, *, keep: str | None = None, only: str = _PREFIX) -> None:
        for found in system.get_file_info(fs.FileSelector(base, allow_not_found=True)):
            if found.type == fs.FileType.Directory and found.base_name.startswith(only) and found.base_name != keep:
                with contextlib.suppress(FileNotFoundError):
                    system.delete_dir(found.path)


def _as_before(system: fs.FileSystem, path: str, tasks: Tasks) -> Tasks:
    """The ranges, divided as at the first attempt of the batch; that division is kept in a file."""
    ranges = {planned.range.vbid: planned for _, members in tasks for planned in members}
    try:
        with system.open_input_stream(path) as file:
            division = json.loads(file.read())
        known = [(node, tuple(ranges[vbid] for vbid in vbids)) for node, vbids in division]
        if sum(len(members) for _, members in known) != len(ranges):
            raise ValueError("it lacks vbuckets")
        return known
    except FileNotFoundError:
        pass
    except (ValueError, KeyError, TypeError) as error:
        _log.warning("%s is damaged (%s): the batch is divided again, and read from the nodes again", path, error)
        system.delete_dir_contents(path.rpartition("/")[0])
    division = [[node, [planned.range.vbid for planned in members]] for node, members in tasks]
    with system.open_output_stream(path) as file:
        file.write(json.dumps(division).encode())
    return tasks


def _publish(system: fs.FileSystem, path: str, rows: Iterable[pa.RecordBatch], random: Random) -> None:
    """Write the rows to a file of this name, unless another attempt has published one meanwhile."""
    own = f"{path}.{random.getrandbits(64):016x}.tmp"
    # The batch's directory may have been deleted with damaged files.
    system.create_dir(path.rpartition("/")[0], recursive=True)
    try:
        with system.open_output_stream(own) as file:
            _write(file, rows)
        if not isinstance(system, fs.LocalFileSystem):
            # An object store replaces a file as a whole. Of two attempts at the same time, the last wins.
            if not _is_whole(system, path):
                system.move(own, path)
            return
        while not _is_whole(system, path):
            try:
                os.link(own, path)
            except FileExistsError:
                if not _is_whole(system, path):
                    Path(own).replace(path)  # the published file is damaged
    finally:
        with contextlib.suppress(FileNotFoundError, OSError):
            system.delete_file(own)


class _Summed:
    """A file to write to that computes a checksum.

    Args:
        file: where the bytes go.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self.crc = 0

    closed = False

    def write(self, data: Any) -> int:
        """Write bytes."""
        view = memoryview(data)
        self.crc = zlib.crc32(view, self.crc)
        self._file.write(data)
        return view.nbytes

    def writable(self) -> bool:
        """As a file answers."""
        return True

    def readable(self) -> bool:
        """As a file answers."""
        return False

    def seekable(self) -> bool:
        """As a file answers."""
        return False

    def flush(self) -> None:
        """Nothing is held back here."""

    def close(self) -> None:
        """The owner closes the file."""


def _write(file: Any, rows: Iterable[pa.RecordBatch]) -> None:
    summed = _Summed(file)
    writer = None
    for batch in rows:
        if writer is None:
            writer = pa.ipc.new_stream(pa.PythonFile(summed, mode="w"), batch.schema)
        writer.write_batch(batch)
    if writer is not None:
        writer.close()
    file.write(summed.crc.to_bytes(4, "little") + TRAILER_MAGIC)


def _is_whole(system: fs.FileSystem, path: str) -> bool:
    """Whether there is a file with the right checksum; a damaged one is reported in the log."""
    try:
        with system.open_input_file(path) as file:
            left = file.size() - TRAILER_BYTES
            crc = 0
            while left > 0:
                data = file.read(min(left, READ_BYTES))
                if not data:
                    break
                crc = zlib.crc32(data, crc)
                left -= len(data)
            trailer = file.read() if left == 0 else b""
    except FileNotFoundError:
        return False
    if trailer == crc.to_bytes(4, "little") + TRAILER_MAGIC:
        return True
    _log.warning("spool file %s is damaged: its rows are read from the node again", path)
    return False


def _batches(system: fs.FileSystem, path: str) -> Iterator[pa.RecordBatch]:
    with system.open_input_file(path) as file:
        if file.size() > TRAILER_BYTES:
            with pa.ipc.open_stream(file) as reader:
                yield from reader
