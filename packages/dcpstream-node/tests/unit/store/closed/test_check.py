"""Looking at a store without opening it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from dcpstream.errors import StoreError
from dcpstream.runtime import is_locked
from dcpstream_node.store import DiskBucketStore
from dcpstream_node.store.closed import check
from dcpstream_node.store.closed.check import check_store
from dcpstream_node.store.log import blocks
from tests.kit.stores import fill, key_of, put

FIRST = "segment-0000000001.log"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two vbuckets with pages of about two documents; key1 to key6 in both, the first two overwritten."""
    monkeypatch.setattr(blocks, "PAGE_BYTES", 220)
    path = tmp_path / "bucket"
    with DiskBucketStore(path, 3) as made:
        fill(made)
        for number in (1, 2, 1, 2, 3, 4, 5, 6):
            for vbid in (0, 1):
                put(made.vbuckets[vbid], key_of(f"key{number}"), b"value %d" % number * 5)
            if number == 2:
                made.commit()
    return path


def damage_at(path: Path, found: Callable[[bytes], int]) -> int:
    data = bytearray(path.read_bytes())
    at = found(bytes(data))
    data[at] ^= 4
    path.write_bytes(data)
    return at


def test_a_sound_store(store: Path) -> None:
    before = {path: path.read_bytes() for path in store.iterdir()}
    progress: list[tuple[int, int]] = []
    report = check_store(store, lambda done, total: progress.append((done, total)))
    assert report.is_sound
    assert (report.format, report.is_in_use, report.was_closed, report.vbuckets) == ("2", False, True, 3)
    (segment,) = report.segments
    assert (segment.number, segment.size) == (1, (store / FIRST).stat().st_size)
    assert (segment.frames, segment.live_frames, segment.rollbacks, segment.void_blocks) == (16, 12, 0, 0)
    assert segment.superseded_bytes * 4 == segment.frame_bytes
    assert progress[-1] == (2 * segment.size, 2 * segment.size)
    assert {path: path.read_bytes() for path in store.iterdir()} == before


def test_rollbacks_and_deleted_vbuckets(store: Path) -> None:
    with DiskBucketStore(store, 3) as opened:
        opened.vbuckets[0].rollback(6)
        opened.delete_vbucket(1)
    report = check_store(store)
    assert report.is_sound
    (segment,) = report.segments
    assert (segment.rollbacks, segment.void_blocks > 0, segment.live_frames) == (1, True, 4)
    assert report.vbuckets == 2


def test_a_damaged_page_says_whose_it_was(store: Path) -> None:
    at = damage_at(store / FIRST, lambda data: data.index(b"value 4"))
    (damage,) = check_store(store).damage
    assert damage.file == str(store / FIRST)
    assert damage.offset <= at < damage.offset + damage.size
    assert (damage.vbid, damage.first_seqno, damage.last_seqno) == (0, 5, 6)
    assert damage.keys == ("key3", "key4")


def test_damaged_tables_and_headers(store: Path) -> None:
    second = (store / FIRST).read_bytes().index(blocks.BLOCK_MAGIC, 200)
    damage_at(store / FIRST, lambda data: second + 60)
    (damage,) = check_store(store).damage
    assert (damage.offset, damage.what, damage.vbid, damage.first_seqno) == (second, "the tables of a block", 1, 1)
    damage_at(store / FIRST, lambda data: second + 20)
    (damage,) = check_store(store).damage
    assert (damage.offset, damage.vbid) == (second, None)
    assert "whose frames these were is unknown" in damage.what
    damage_at(store / FIRST, lambda data: 3)
    (damage,) = check_store(store).damage
    assert "the segment's header" in damage.what


def test_a_torn_end_is_no_damage_but_a_cut_one_is(store: Path) -> None:
    whole = (store / FIRST).read_bytes()
    (store / FIRST).write_bytes(whole[:-10])
    report = check_store(store)
    assert report.damage
    assert "was closed with segment 1" in report.problems[0]
    (store / FIRST).write_bytes(whole)
    opened = DiskBucketStore(store, 3)
    assert check_store(store).is_in_use
    opened.close(clean=False)
    assert not is_locked(store)
    (store / FIRST).write_bytes(whole + whole[100:150])
    report = check_store(store)
    assert (report.is_sound, report.was_closed, report.segments[0].torn_bytes) == (True, False, 50)


def test_a_store_that_was_killed_reports_where_its_last_commit_ends(store: Path) -> None:
    """A file that was cut between two commits cannot be told from one to which nothing more was written."""
    DiskBucketStore(store, 3).close(clean=False)
    whole = (store / FIRST).read_bytes()
    report = check_store(store)
    assert report.last_commit == (str(store / FIRST), len(whole))
    assert report.last_seqnos == {0: 8, 1: 8}
    second_commit = whole.index(blocks.BLOCK_MAGIC, whole.index(blocks.BLOCK_MAGIC, 200) + 4)
    (store / FIRST).write_bytes(whole[: second_commit + 20])
    report = check_store(store)
    assert report.is_sound
    assert report.last_commit == (str(store / FIRST), second_commit)
    assert report.last_seqnos == {0: 2, 1: 2}


def test_files_that_are_missing_or_unknown(store: Path) -> None:
    opened = DiskBucketStore(store, 3, segment_bytes=100)
    put(opened.vbuckets[0], key_of("a"), b"")
    opened.commit()
    put(opened.vbuckets[0], key_of("b"), b"")
    opened.commit()
    opened._segments.begin_rewrite()
    opened.close()
    assert check_store(store).others == ["segment-0000000004.log"]
    (store / FIRST).rename(store / "segment-0000000009.log")
    report = check_store(store)
    assert [damage.what for damage in report.damage] == ["the file is missing"]
    (store / FIRST).write_bytes((store / "segment-0000000009.log").read_bytes())
    assert check_store(store).is_sound is False


def test_damaged_metadata(store: Path) -> None:
    for name in ("meta.sqlite-wal", "meta.sqlite-shm"):
        assert not (store / name).exists()
    with sqlite3.connect(store / "meta.sqlite") as other:
        other.execute("UPDATE vbuckets SET incarnation = 5 WHERE vbid = 2")
    other.close()
    report = check_store(store)
    assert str(store / "meta.sqlite") in report.problems[0]
    (store / "meta.sqlite").write_bytes(b"not a database" * 100)
    assert "not a database" in check_store(store).problems[0]
    (store / "meta.sqlite").unlink()
    assert "is missing" in check_store(store).problems[0]


def test_another_format_is_refused(store: Path) -> None:
    with sqlite3.connect(store / "meta.sqlite") as other:
        other.execute("UPDATE store SET value = '1' WHERE name = 'format'")
    other.close()
    with pytest.raises(StoreError, match=f"{store}.*is in store format 1"):
        check_store(store)


def test_what_moves_while_a_node_writes_is_no_damage(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def look(directory: Path, on_progress: object) -> check.StoreReport:
        nonlocal looks
        looks += 1
        problems = [] if looks == 3 else [f"a file that came and went at look {looks}"]
        return check.StoreReport(directory=str(directory), is_in_use=True, problems=problems)

    monkeypatch.setattr(check, "_look", look)
    assert check_store(store).is_sound
    looks = -10
    assert not check_store(store).is_sound
    assert looks == -10 + check.MAX_LOOKS
