"""Stores of positions: saved positions come back, and damage is reported."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest

from dcpstream.client.offsets import FORMAT, VERSION, FileOffsetStore, OffsetStore, SavedOffset, SqliteOffsetStore
from dcpstream.errors import ConfigError, OffsetError
from dcpstream.model import MAX_SEQNO, CollectionName, StreamOffset
from dcpstream.model.position_text import CollectionSets
from tests.kit.rules import rule

Make = Callable[[Path], OffsetStore]
RECORD = SavedOffset(
    StreamOffset(2**64 - 5, 2**63 + 1, 7, MAX_SEQNO, 3), (StreamOffset(9, 5, 2, None), StreamOffset(8, 1, 1, 1))
)


@pytest.fixture(params=["file", "sqlite"])
def make(request: pytest.FixtureRequest) -> Make:
    kind = FileOffsetStore if request.param == "file" else SqliteOffsetStore
    return lambda directory: kind(directory / "offsets")


def test_nothing_saved_yet(make: Make, tmp_path: Path) -> None:
    assert make(tmp_path).load() == {}
    assert list(tmp_path.iterdir()) == []


def test_a_rollback_that_is_not_acknowledged_comes_back(make: Make, tmp_path: Path) -> None:
    record = SavedOffset(RECORD.offset, RECORD.earlier, is_rolling_back=True)
    make(tmp_path).save({5: record, 6: RECORD})
    assert make(tmp_path).load() == {5: record, 6: RECORD}
    assert "rolling_back" not in RECORD.to_json()
    assert record.to_json()["rolling_back"] is True


@rule("CLI-01")
def test_all_values_of_a_record_come_back(make: Make, tmp_path: Path) -> None:
    make(tmp_path).save({5: RECORD})
    assert make(tmp_path).load() == {5: RECORD}


def test_other_vbuckets_stay(make: Make, tmp_path: Path) -> None:
    store, other = make(tmp_path), SavedOffset(StreamOffset(1, 2, 2, 2))
    store.save({5: RECORD, 6: RECORD})
    store.save({6: other, 1023: RECORD})
    assert make(tmp_path).load() == {5: RECORD, 6: other, 1023: RECORD}


def test_a_directory_is_no_file_of_offsets(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a directory: give the name of a file in it"):
        FileOffsetStore(tmp_path)


@rule("CLI-25")
def test_a_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileOffsetStore(tmp_path / "offsets")
    store.save({5: RECORD})

    def broken(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        store.save({6: RECORD})
    assert [path.name for path in tmp_path.iterdir()] == ["offsets"]
    assert FileOffsetStore(tmp_path / "offsets").load() == {5: RECORD}


def with_body(body: bytes) -> bytes:
    """A file whose checksum is right."""
    header = {"format": FORMAT, "version": VERSION, "vbuckets": 1, "crc32": f"{crc32(body):08x}"}
    return json.dumps(header).encode() + b"\n" + body


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-3],
        lambda content: content.replace(b"<", b"@"),
        lambda content: b"{}\n" + content,
        lambda content: b"\xff\x00",
        lambda content: b"",
        lambda content: content.replace(b'"version": 3', b'"version": 2'),
        lambda content: b"[1]\n",
        lambda content: b"[" * 100_000,
        lambda content: with_body(b"[" * 100_000),
        lambda content: with_body(b"{}"),
        lambda content: with_body(b'{"vbuckets": 7}'),
        lambda content: with_body(b'{"vbuckets": "- !"}'),
        lambda content: with_body(b'{"vbuckets": "1@2/9="}'),
        lambda content: with_body(b'{"vbuckets": "1@2<3="}'),
    ],
)
def test_a_damaged_file_is_reported_and_kept(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "offsets"
    FileOffsetStore(path).save({5: RECORD})
    path.write_bytes(damage(path.read_bytes()))
    before = path.read_bytes()
    with pytest.raises(OffsetError, match="move it away") as caught:
        FileOffsetStore(path).load()
    assert str(path) in str(caught.value)
    with pytest.raises(OffsetError):
        FileOffsetStore(path).save({6: RECORD})
    assert path.read_bytes() == before


def test_a_damaged_database_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "offsets"
    path.write_bytes(b"this is no database, " * 100)
    with pytest.raises(OffsetError, match="move it away"):
        SqliteOffsetStore(path).load()
    with pytest.raises(OffsetError, match="move it away"):
        SqliteOffsetStore(path).save({5: RECORD})


@pytest.mark.parametrize(
    ("record", "what"), [("{}", "entry"), ('{"entry": "1e999"}', "not a position"), ("[" * 100_000, "recursion")]
)
def test_a_damaged_record_in_a_database_is_reported(tmp_path: Path, record: str, what: str) -> None:
    path = tmp_path / "offsets"
    SqliteOffsetStore(path).save({5: RECORD})
    connection = sqlite3.connect(path)
    connection.execute("UPDATE offsets SET record = ?, crc32 = ?", (record, crc32(f"default 5 {record}".encode())))
    connection.commit()
    connection.close()
    with pytest.raises(OffsetError, match=what):
        SqliteOffsetStore(path).load()


def test_a_flipped_bit_of_a_record_in_a_database_is_reported(tmp_path: Path) -> None:
    """SQLite has no checksums: a digit of a seqno would change silently."""
    path, records = tmp_path / "offsets", {5: RECORD, 6: RECORD}
    SqliteOffsetStore(path).save(records)
    content = path.read_bytes()
    entry = b'{"entry": '
    told = 0
    for first in (content.index(entry), content.rindex(entry)):
        for at in range(first - 12, content.index(b"}", first) + 5):
            changed = bytearray(content)
            changed[at] ^= 1 << at % 8
            path.write_bytes(changed)
            try:
                assert SqliteOffsetStore(path).load() == records, f"bit of byte {at}"
            except OffsetError:
                told += 1
    assert told > 2 * len(RECORD.entry(CollectionSets()))
    path.write_bytes(content)
    assert SqliteOffsetStore(path).load() == records


@pytest.mark.parametrize("kind", [FileOffsetStore, SqliteOffsetStore])
def test_collections_are_kept_with_their_positions(kind: type, tmp_path: Path) -> None:
    one, other = CollectionName(8, "shop", "orders"), CollectionName(9, "shop", "returns")
    positions = [StreamOffset(5, seqno, seqno, seqno) for seqno in (9, 6, 3)]
    newest = positions[0].with_collections([other, one])
    records = {
        0: SavedOffset(newest, (positions[1].with_collections([one]), positions[2])),
        1: SavedOffset(newest, (positions[1].with_collections([one, other]),)),
        2: SavedOffset(positions[0], (positions[1],)),
    }
    kind(tmp_path / "positions").save(records)
    loaded = kind(tmp_path / "positions").load()
    assert loaded == records
    found = {vbid: [at.collections for at in (record.offset, *record.earlier)] for vbid, record in loaded.items()}
    assert found == {0: [(one, other), (one,), None], 1: [(one, other), (one, other)], 2: [None, None]}


def test_a_vbucket_that_stays_costs_no_new_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[SavedOffset] = []
    entry = SavedOffset.entry

    def counted(record: SavedOffset, sets: CollectionSets) -> str:
        made.append(record)
        return entry(record, sets)

    first, second = StreamOffset(1, 2, 2, 2), StreamOffset(1, 5, 5, 5)
    store = FileOffsetStore(tmp_path / "offsets")
    store.save({vbid: SavedOffset(first) for vbid in range(100)})
    monkeypatch.setattr(SavedOffset, "entry", counted)
    changed = SavedOffset(second, (first,))
    store.save({5: changed})
    assert made == [changed]
