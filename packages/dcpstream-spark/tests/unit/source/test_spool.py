from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dcpstream.client.machine.values import VbucketRange
from dcpstream.errors import StoreError
from dcpstream.model import StreamOffset
from dcpstream_spark.source.planner import PlannedRange
from dcpstream_spark.source.spool import Spool, SpoolFile, Tasks, batch_name


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64()), "text": pa.array([str(n) for n in numbers])})


def numbers(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [row["n"] for one in batches for row in one.to_pylist()]


def never() -> Iterator[pa.RecordBatch]:
    raise AssertionError("the node was asked")
    yield


def planned(vbid: int) -> PlannedRange:
    return PlannedRange(VbucketRange(vbid, StreamOffset.ZERO, 9))


def files(path: Path) -> list[str]:
    return sorted(str(found.relative_to(path)) for found in path.rglob("*") if found.is_file())


@pytest.mark.parametrize("is_url", [False, True])
def test_a_repeated_task_gives_the_rows_of_its_first_attempt(tmp_path: Path, is_url: bool) -> None:
    file = SpoolFile(tmp_path.as_uri() if is_url else str(tmp_path), "batch-1/task-00000.arrow")
    assert numbers(file.replayed([batch(1, 2), batch(3)])) == [1, 2, 3]
    assert numbers(file.replayed(never())) == [1, 2, 3]
    assert files(tmp_path) == ["batch-1/task-00000.arrow"]
    none = SpoolFile(str(tmp_path), "batch-1/task-00001.arrow")
    assert numbers(none.replayed([])) == numbers(none.replayed(never())) == []


def test_nothing_is_given_out_before_the_file_is_whole(tmp_path: Path) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield batch(1)
        raise StoreError("the node is gone")

    file = SpoolFile(str(tmp_path), "batch-1/task-00000.arrow")
    rows = file.replayed(broken())
    with pytest.raises(StoreError, match="the node is gone"):
        next(rows)
    assert files(tmp_path) == []
    assert numbers(file.replayed([batch(7)])) == [7]


def test_of_two_attempts_at_once_the_first_that_is_whole_counts(tmp_path: Path) -> None:
    file = SpoolFile(str(tmp_path), "batch-1/task-00000.arrow")

    def slow() -> Iterator[pa.RecordBatch]:
        yield batch(1)
        assert numbers(file.replayed([batch(5, 6)])) == [5, 6], "the other attempt overtakes"
        yield batch(2)

    assert numbers(file.replayed(slow())) == [5, 6]
    assert files(tmp_path) == ["batch-1/task-00000.arrow"]


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "tail"])
def test_a_damaged_file_is_replaced_by_rows_of_the_node(tmp_path: Path, damage: str) -> None:
    file = SpoolFile(str(tmp_path), "batch-1/task-00000.arrow")
    assert numbers(file.replayed([batch(*range(100))])) == list(range(100))
    path = tmp_path / file.name
    whole = path.read_bytes()
    middle = len(whole) // 2
    damaged = {
        "cut": whole[:middle],
        "flip": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        "empty": b"",
        "tail": whole + b"x",
    }
    path.write_bytes(damaged[damage])
    assert numbers(file.replayed([batch(1)])) == [1]
    assert numbers(file.replayed(never())) == [1]


def test_a_file_that_breaks_while_it_is_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SpoolFile(str(tmp_path), "batch-1/task-00000.arrow")
    monkeypatch.setattr("dcpstream_spark.source.spool._publish", lambda *_: None)
    with pytest.raises(StoreError, match=r"task-00000\.arrow.*every executor"):
        list(file.replayed([batch(1)]))
    monkeypatch.setattr("dcpstream_spark.source.spool._publish", _full)
    with pytest.raises(StoreError, match="cannot be written: disk full"):
        list(file.replayed([batch(1)]))


def _full(*_: Any) -> None:
    raise OSError("disk full")


def test_a_batch_is_divided_as_at_its_first_attempt(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    first: Tasks = [("n1", (planned(0), planned(1))), ("n2", (planned(2),))]
    then: Tasks = [("n2", (planned(2), planned(1), planned(0)))]
    begun = spool.begin("batch-1", first)
    assert [file.name for _, _, file in begun] == ["batch-1/task-00000.arrow", "batch-1/task-00001.arrow"]
    list(begun[0][2].replayed([batch(1)]))
    again = Spool(str(tmp_path)).begin("batch-1", then)
    assert [(node, [one.range.vbid for one in ranges]) for node, ranges, _ in again] == [("n1", [0, 1]), ("n2", [2])]
    assert numbers(again[0][2].replayed(never())) == [1]
    # A division that cannot be read, or of other vbuckets, gives up the files with it.
    (tmp_path / "batch-1/division.json").write_text('[["n1", [0, 7]]]')
    assert [node for node, _, _ in spool.begin("batch-1", then)] == ["n2"]
    assert files(tmp_path) == ["batch-1/division.json"]


def test_only_the_files_of_one_batch_are_kept(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    ends = [{"v": 2, "n": number} for number in range(4)]
    (tmp_path / "users.txt").write_text("stays")
    for start, end in itertools.pairwise(ends[:3]):
        ((_, _, file),) = spool.begin(batch_name(start, end, ""), [("n1", (planned(0),))])
        list(file.replayed([batch(1)]))
        assert len(files(tmp_path)) == 3, "the division, the rows, and what is not ours"
    spool.done(ends[1])
    assert len(files(tmp_path)) == 3, "another batch"
    spool.done(ends[2])
    assert files(tmp_path) == ["users.txt"]
    Spool(str(tmp_path / "nowhere")).done(ends[2])


def test_the_name_of_a_batch_follows_from_all_that_decides_about_its_rows() -> None:
    start, end = {"v": 2, "n": 1}, {"n": 2, "v": 2}
    assert batch_name(start, end, "key") == batch_name({"n": 1, "v": 2}, {"v": 2, "n": 2}, "key")
    others = [batch_name(end, end, "key"), batch_name(start, start, "key"), batch_name(start, end, "value")]
    assert len({batch_name(start, end, "key"), *others}) == 4
