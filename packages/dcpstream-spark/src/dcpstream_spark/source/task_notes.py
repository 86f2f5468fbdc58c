"""Notes that tasks leave in the query's checkpoint, for the next plans.

A task begins at a recorded position. If the node has purged deletions above it after the batch was planned, the task
must read the vbucket from its beginning, on the same branch. The rows that a reader holds are then those of a later
snapshot: what that snapshot superseded is gone, so no position that was recorded before is one of them any more. After
a failover, the new node may know nothing of the purge and accept such a position. The plan of that rollback must not
ask for it.

Nothing that Spark logs can say so, because the end of a batch is logged before it is read. So the task leaves an empty
file whose name is the vbucket and the start, before it gives out a row. The driver lists the files only after a node
has refused a position. It deletes the files that a later one of the same vbucket covers, so at most one a vbucket
is left. That one stays: it concerns only recorded positions up to its start, which the query leaves behind, and can
only make a rollback go back further than it must.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from pyarrow import fs

from dcpstream.errors import StoreError
from dcpstream_spark.files import opened

DIRECTORY = "dcp-notes"
"""Directory of the checkpoint, next to Spark's own."""

_log = logging.getLogger(__name__)


class Notes(Protocol):
    """The notes of tasks that a planner reads."""

    def starts_left(self) -> Mapping[int, int]:
        """Vbucket → the highest start below which a task went."""
        ...


@dataclass(frozen=True, slots=True)
class TaskNotes:
    """The notes of one query.

    Attributes:
        checkpoint: its directory, as an absolute path or a URL that Arrow can open.
    """

    checkpoint: str

    @classmethod
    def of(cls, checkpoint: str | None) -> TaskNotes | None:
        """The notes in a checkpoint; None if it is not known."""
        return None if checkpoint is None else cls(checkpoint)

    def went_below(self, vbid: int, seqno: int) -> None:
        """A task that should have begun at `seqno` reads the vbucket from a lower place.

        Raises:
            StoreError: the note cannot be written.
        """
        system, base = opened(self.checkpoint)
        directory = f"{base}/{DIRECTORY}"
        try:
            system.create_dir(directory, recursive=True)
            with system.open_output_stream(f"{directory}/{vbid}-{seqno}") as file:
                file.write(b"")
        except OSError as error:
            raise StoreError(
                f"vbucket {vbid}: its deletions were purged, so it must be read from its beginning, but no note of it "
                f"can be written to {self.checkpoint}: {error}. Let the executors write there; on several machines, "
                "give the query a checkpoint that all of them reach."
            ) from error
        _log.warning("vbucket %d: deletions after seqno %d were purged before this task: it is read again", vbid, seqno)

    def starts_left(self) -> Mapping[int, int]:
        """Vbucket → the highest start below which a task went. Deletes the files of lower starts.

        Raises:
            StoreError: the directory cannot be read.
        """
        system, base = opened(self.checkpoint)
        try:
            found = system.get_file_info(fs.FileSelector(f"{base}/{DIRECTORY}", allow_not_found=True))
        except OSError as error:
            raise StoreError(f"The notes of tasks in {self.checkpoint} cannot be read: {error}") from error
        notes: list[tuple[int, int, str]] = []
        for one in found:
            vbid, dash, seqno = one.base_name.partition("-")
            if dash and vbid.isdecimal() and seqno.isdecimal():
                notes.append((int(vbid), int(seqno), one.path))
        starts: dict[int, int] = {}
        for vbid, seqno, path in sorted(notes, reverse=True):
            if starts.setdefault(vbid, seqno) != seqno:
                # It is of no use any more. One that cannot be deleted does no harm.
                with suppress(OSError):
                    system.delete_file(path)
        return starts
