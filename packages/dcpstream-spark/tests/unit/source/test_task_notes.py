"""Notes of tasks in a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcpstream.errors import StoreError
from dcpstream_spark.source.task_notes import DIRECTORY, TaskNotes


def test_the_highest_start_of_each_vbucket_counts(tmp_path: Path) -> None:
    notes = TaskNotes(str(tmp_path / "new"))
    assert notes.starts_left() == {}
    for vbid, seqno in ((3, 7), (3, 5), (3, 7), (1023, 2**63)):
        notes.went_below(vbid, seqno)
    (tmp_path / "new" / DIRECTORY / ".9-9.crc").touch()
    assert notes.starts_left() == {3: 7, 1023: 2**63}


def test_one_note_for_each_vbucket_is_kept(tmp_path: Path) -> None:
    notes = TaskNotes(str(tmp_path))
    for vbid, seqno in ((3, 7), (3, 5), (4, 1), (3, 10)):
        notes.went_below(vbid, seqno)
    assert notes.starts_left() == {3: 10, 4: 1}
    assert sorted(file.name for file in (tmp_path / DIRECTORY).iterdir()) == ["3-10", "4-1"]
    assert notes.starts_left() == {3: 10, 4: 1}


def test_no_checkpoint_has_no_notes() -> None:
    assert TaskNotes.of(None) is None


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="executors write there"):
        TaskNotes(str(tmp_path / "file")).went_below(1, 2)
