"""A reader of store files that was written from docs/explanation/store-format.md alone: the page must be enough.

The reader uses nothing of dcpstream, only the tests that make files for it do. It does not try to be fast or to mend
anything: whatever is not as the page says ends it.
"""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xxhash import xxh3_64_intdigest

from dcpstream.model import SnapshotRange, VbucketState
from dcpstream.wire import Opcode
from dcpstream_node.store import DiskBucketStore
from tests.kit.engine import Talker, engine_of
from tests.kit.stores import LOG, fill, key_of, put


class NotAsThePageSays(Exception):
    """A file is not what the page describes."""


def expect(is_so: bool, what: str) -> None:
    if not is_so:
        raise NotAsThePageSays(what)


class Reader:
    """Documents of a store: (vbucket, key with collection prefix) → (seqno, value); deletions have no value."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with sqlite3.connect(f"file:{directory / 'meta.sqlite'}?mode=ro", uri=True) as connection:
            store = connection.execute("SELECT * FROM store").fetchall()
            vbuckets = connection.execute("SELECT * FROM vbuckets").fetchall()
        connection.close()
        self.values = dict(store)
        self.check_lines(store, vbuckets)
        expect(self.values["format"] == "2", "format")
        self.incarnations = {line[0]: line[1] for line in vbuckets if line[2] is not None}
        self.states = {line[0]: line[2] for line in vbuckets}
        self.failover_logs = {line[0]: json.loads(line[3]) for line in vbuckets}
        self.rows: dict[int, list[tuple[int, bytes]]] = {vbid: [] for vbid in self.incarnations}
        self.marks: dict[int, list[tuple[int, int, int]]] = {vbid: [] for vbid in self.incarnations}
        for number, committed in json.loads(self.values["segments"]):
            self.read_segment(number, committed)

    def check_lines(self, store: list[Any], vbuckets: list[Any]) -> None:
        total = 0
        for table, lines in (("store", store), ("vbuckets", vbuckets)):
            for line in lines:
                if line[0] != "checksum":
                    text = "".join(("" if value is None else str(value)) + "\0" for value in (table, *line))
                    total ^= xxh3_64_intdigest(text.encode(), 0)
        expect(self.values["checksum"] == f"{total:016x}", "checksum of meta.sqlite")

    def read_segment(self, number: int, committed: int | None) -> None:
        data = (self.directory / f"segment-{number:010}.log").read_bytes()[:committed]
        expect(committed is None or len(data) == committed, "size of a segment")
        magic, version, said, kind, salt, crc = struct.unpack_from(">8sIIIQQ", data)
        expect((magic, version, said) == (b"dcpstore", 2, number), "segment header")
        expect(kind in {1, 2} and crc == xxh3_64_intdigest(data[:28], 0), "segment header")
        at = 36
        while at < len(data):
            at = self.read_block(data, at, salt)
        expect(at == len(data), "end of a segment")

    def read_block(self, data: bytes, at: int, salt: int) -> int:
        (magic, version, kind, vbid, incarnation, n, first, last, _, p, m, zero, _, size, crc) = struct.unpack_from(
            ">4sBBHIIQQHHHHIIQ", data, at
        )
        expect((magic, version, zero) == (b"\xdcPb2", 2, 0), f"block header at {at}")
        expect(crc == xxh3_64_intdigest(data[at : at + 48], salt), f"header checksum at {at}")
        place = at + 56
        ends = struct.unpack_from(f">{n}I", data, place)
        page_ends = struct.unpack_from(f">{p}I", data, place + 4 * n)
        checksums = struct.unpack_from(f">{p}Q", data, place + 4 * n + 4 * p)
        marks = [*struct.iter_unpack(">QQQ", data[place + 4 * n + 12 * p : place + 4 * n + 12 * p + 24 * m])]
        place += 4 * n + 12 * p + 24 * m
        expect(struct.unpack_from(">Q", data, place)[0] == xxh3_64_intdigest(data[at:place], salt), "tables")
        frames = data[place + 8 : place + 8 + size]
        for begin, end, checksum in zip((0, *page_ends), page_ends, checksums, strict=False):
            expect(checksum == xxh3_64_intdigest(frames[begin:end], salt), "page")
        if self.incarnations.get(vbid) == incarnation:
            rows = self.rows[vbid]
            if kind == 2:
                self.rows[vbid] = [row for row in rows if row[0] <= last]
                self.marks[vbid] = [mark for mark in self.marks[vbid] if mark[0] <= last]
            else:
                found = [
                    (int.from_bytes(frames[begin + 24 : begin + 32], "big"), frames[begin:end])
                    for begin, end in zip((0, *ends), ends, strict=False)
                ]
                seqnos = [seqno for seqno, _ in rows[-1:] + found]
                expect(seqnos == sorted({*seqnos}), "seqnos rise")
                expect((found[0][0], found[-1][0]) == (first, last), "first and last seqno")
                rows += found
                self.marks[vbid] += marks
        return place + 8 + size

    def documents(self, vbid: int) -> dict[bytes, tuple[int, bytes | None]]:
        newest: dict[bytes, tuple[int, bytes | None]] = {}
        for seqno, frame in self.rows[vbid]:
            magic, opcode, key_length, extras, _, vbucket, body, opaque, _ = struct.unpack_from(">BBHBBHIIQ", frame)
            expect((magic, vbucket, opaque, len(frame)) == (0x80, vbid, 0, 24 + body), "frame")
            expect(extras == {0x57: 31, 0x58: 21, 0x59: 20, 0x5F: 13}[opcode], "extras")
            if opcode != 0x5F:
                key = frame[24 + extras : 24 + extras + key_length]
                newest[key] = (seqno, frame[24 + extras + key_length :] if opcode == 0x57 else None)
        return newest

    def all_documents(self) -> Iterator[tuple[bytes, bytes]]:
        for vbid in self.rows:
            for key, (_, value) in self.documents(vbid).items():
                if value is not None:
                    yield key, value


def test_a_program_written_from_the_page_reads_what_a_node_wrote(tmp_path: Path) -> None:
    store = DiskBucketStore(tmp_path, 4, segment_bytes=20_000)
    client = Talker(engine_of(store, vbuckets=4))
    expected: dict[bytes, bytes] = {}
    for number in range(400):
        key = client.key(f"hotel_{number % 150}")
        value = json.dumps({"number": number, "text": "x" * (number % 97)}).encode()
        written = client.call(Opcode.SET, vbid=number % 150 % 4, key=key, extras=bytes(8), value=value)
        assert written.status == 0
        expected[key] = value
        if number % 30 == 0:
            store.commit()
    for number in range(0, 150, 10):
        key = client.key(f"hotel_{number}")
        assert client.call(Opcode.DELETE, vbid=number % 4, key=key).status == 0
        del expected[key]
    store.close()
    reader = Reader(tmp_path)
    assert len(json.loads(reader.values["segments"])) > 2
    assert dict(reader.all_documents()) == expected
    assert {*reader.states.values()} == {1}
    assert all(int(log[0][0]) for log in reader.failover_logs.values())
    assert reader.values["vbucket_count"] == "4"


def test_it_reads_rollbacks_copies_and_incarnations(tmp_path: Path) -> None:
    with DiskBucketStore(tmp_path, 3, segment_bytes=900) as store:
        fill(store)
        store.vbuckets[1].set_state(VbucketState.REPLICA, store.vbuckets[1].failover_log)
        for number in range(12):
            for vbid, vbucket in store.vbuckets.items():
                if vbid == 1 and number % 4 == 0:
                    vbucket.set_snapshot(SnapshotRange(number, number + 4))
                put(vbucket, key_of(number % 5), b"%d" % number)
            store.commit()
        store.vbuckets[0].rollback(9)
        put(store.vbuckets[0], key_of("new branch"), b"!")
        store.create_vbucket(2, VbucketState.ACTIVE, LOG)
        put(store.vbuckets[2], key_of("anew"), b"?")
    reader = Reader(tmp_path)
    assert reader.documents(0) == {
        key_of(0): (6, b"5"), key_of(1): (7, b"6"), key_of(2): (8, b"7"), key_of(3): (9, b"8"), key_of(4): (5, b"4"),
        key_of("new branch"): (10, b"!"),
    }  # fmt: skip
    assert reader.documents(2) == {key_of("anew"): (1, b"?")}
    assert {(start, end) for _, start, end in reader.marks[1]} == {(0, 4), (4, 8), (8, 12)}
    assert reader.states == {0: 1, 1: 2, 2: 1}


@pytest.mark.parametrize("at", [30, 50, 100, 200, 300])
def test_it_sees_damage_as_the_page_says(tmp_path: Path, at: int) -> None:
    with DiskBucketStore(tmp_path, 1) as store:
        fill(store)
        for number in range(5):
            put(store.vbuckets[0], key_of(number), b"value")
    path = tmp_path / "segment-0000000001.log"
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(NotAsThePageSays):
        Reader(tmp_path)
