"""The writers, driven as Spark drives them, against a real node."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import types as t

import dcpstream_node
from dcpstream.errors import ConfigError, RowsRefused
from dcpstream.wire import Opcode, encode_request
from dcpstream_spark.data_source import DcpDataSource
from dcpstream_spark.sink.writing import MAX_REJECTS_REPORTED, DcpBatchWriter, RowStreamWriter, WriteCounts
from lab.tools.patience import patient
from tests.kit.proxy import Proxy
from tests.kit.spark import access, kv_of

pytestmark = pytest.mark.usefixtures("closes_connections")

VBUCKETS = 4
SCHEMA = t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.StringType())])


@pytest.fixture
def node() -> Iterator[dcpstream_node.Node]:
    with dcpstream_node.Node(vbuckets=VBUCKETS) as node:
        node.set_collections("default", {"shop": ["orders"]})
        yield node


def writer(options: dict[str, str], schema: t.StructType = SCHEMA, *, overwrite: bool = False) -> DcpBatchWriter:
    made = DcpDataSource({"valueColumn": "value", **options}).writer(schema, overwrite)
    assert isinstance(made, DcpBatchWriter)
    copy: DcpBatchWriter = pickle.loads(pickle.dumps(made))
    return copy


def batches(rows: list[tuple[str | None, str | None]], size: int = 1000) -> Iterator[pa.RecordBatch]:
    for at in range(0, len(rows), size):
        part = rows[at : at + size]
        yield pa.RecordBatch.from_pydict({"key": [key for key, _ in part], "value": [value for _, value in part]})


def documents(node: dcpstream_node.Node, keys: list[str]) -> list[bytes | None]:
    with kv_of(node) as kv:
        return [None if found is None else found.value for found in kv.get_many(keys)]


ROWS: list[tuple[str | None, str | None]] = [(f"key {n}", f'{{"n":{n}}}') for n in range(3000)]
KEYS = [str(key) for key, _ in ROWS]
VALUES = [str(value).encode() for _, value in ROWS]


def test_rows_become_documents_and_counts(node: dcpstream_node.Node) -> None:
    counts = writer(access(node)).write(batches(ROWS))
    assert counts == WriteCounts(rows=3000, written=3000)
    assert documents(node, KEYS) == VALUES
    counts = writer(access(node, operation="delete")).write(batches([*ROWS[:10], ("no such", "")]))
    assert counts == WriteCounts(rows=11, written=10, absent=1)
    assert documents(node, KEYS[:10]) == [None] * 10


def test_a_replayed_insert_is_not_refused(node: dcpstream_node.Node) -> None:
    insert = writer(access(node, operation="insert"))
    assert insert.write(batches(ROWS[:2000])).written == 2000
    counts = insert.write(batches(ROWS))
    assert (counts.written, counts.repeated, counts.rejected) == (1000, 2000, 0)


def test_a_refused_row_fails_the_task(node: dcpstream_node.Node) -> None:
    writer(access(node)).write(batches([("key 1", "other")]))
    with pytest.raises(RowsRefused, match=r"insert of <ud>b'key 1'</ud>.*KEY_EEXISTS.*onReject"):
        writer(access(node, operation="insert")).write(batches(ROWS))


def test_refused_rows_are_skipped_and_counted(node: dcpstream_node.Node) -> None:
    writer(access(node)).write(batches(ROWS[:5]))
    replace = writer(access(node, operation="replace", onReject="skip", maxRejectsListed="2"))
    counts = replace.write(batches([*ROWS[:10], (None, "x")]))
    assert (counts.rows, counts.written, counts.rejected) == (11, 5, 6)
    assert len(counts.rejects) == 2


def test_refused_rows_go_to_a_place(node: dcpstream_node.Node, tmp_path: Path) -> None:
    options = access(node, operation="replace", onReject="path", rejectsPath=str(tmp_path / "r"))
    counts = writer(options).write(batches([("missing", "1"), ("x" * 251, "2")]))
    assert counts.rejected == 2
    (file,) = (tmp_path / "r").iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["key"], line["value"], line["status"]) for line in lines] == [
        ("missing", "1", "KEY_ENOENT"),
        ("x" * 251, "2", "EINVAL"),
    ]


def test_a_task_that_fails_leaves_no_file(node: dcpstream_node.Node, tmp_path: Path) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches([("missing", "1")])
        raise OSError("the executor lost its input")

    with pytest.raises(OSError, match="input"):
        writer(access(node, operation="replace", onReject="path", rejectsPath=str(tmp_path))).write(broken())
    assert list(tmp_path.iterdir()) == []


def test_collections_from_a_column(node: dcpstream_node.Node) -> None:
    schema = t.StructType([*SCHEMA.fields, t.StructField("c", t.StringType()), t.StructField("s", t.StringType())])
    rows = {
        "key": ["a", "b", "c"],
        "value": ["1", "2", "3"],
        "c": ["orders", None, "none"],
        "s": ["shop", None, "shop"],
    }
    made = writer(access(node, collectionColumn="c", scopeColumn="s", onReject="skip"), schema)
    counts = made.write(iter([pa.RecordBatch.from_pydict(rows)]))
    assert (counts.written, counts.rejected) == (2, 1)
    assert "no collection shop.none" in counts.rejects[0]
    assert documents(node, ["a", "b"]) == [None, b"2"]


def test_cut_connections_lose_nothing(node: dcpstream_node.Node) -> None:
    with Proxy(node.port) as proxy:
        proxy.cut_after(3_000, 10_000, 20_000)
        insert = writer({**access(node, operation="insert"), "connectionString": proxy.connection_string})
        counts = insert.write(batches(ROWS))
        assert proxy.connections > 3
    assert (counts.rejected, counts.written + counts.repeated) == (0, 3000)
    assert counts.requests_repeated > 0
    assert documents(node, KEYS) == VALUES


def test_a_vbucket_that_is_away_for_a_while(node: dcpstream_node.Node) -> None:
    with kv_of(node) as kv:
        vbid = kv.vbucket_of("key 1")

        def become(state: bytes) -> None:
            kv._pool.of(vbid).ask(encode_request(Opcode.SET_VBUCKET, vbid=vbid, extras=state))

        def rows() -> Iterator[pa.RecordBatch]:
            for number, batch in enumerate(batches([*ROWS, *ROWS], 500)):
                if number == 3:
                    become(b"\x02")
                    timer.start()
                yield batch

        timer = threading.Timer(0.1, become, (b"\x01",))
        counts = writer(access(node)).write(rows())
        timer.join(patient(10))
    assert counts.written == 6000
    assert counts.requests_repeated > 0
    assert documents(node, KEYS) == VALUES


def test_the_mode_overwrite_is_refused(node: dcpstream_node.Node) -> None:
    with pytest.raises(ConfigError, match="never empties a bucket"):
        writer(access(node), overwrite=True)


def test_a_place_that_cannot_be_is_refused_on_the_driver(node: dcpstream_node.Node) -> None:
    with pytest.raises(ConfigError, match="rejectsPath"):
        writer(access(node, onReject="path", rejectsPath="nowhere://x/y"))


def test_single_rows_of_a_stream_on_spark_4_0(node: dcpstream_node.Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dcpstream_spark.sink.writing.HAS_STREAM_ARROW_WRITER", False)
    made = DcpDataSource(access(node, valueColumn="value")).streamWriter(SCHEMA, False)
    assert isinstance(made, RowStreamWriter)
    counts = made.write(iter(Row(key=key, value=value) for key, value in ROWS))
    assert counts.written == 3000
    assert documents(node, KEYS) == VALUES


def test_the_driver_adds_up(caplog: pytest.LogCaptureFixture, node: dcpstream_node.Node) -> None:
    part = WriteCounts(rows=70, written=10, rejected=60, rejects=("one",) * 60)
    total = WriteCounts.total([part, None, part])
    assert (total.rows, total.written, total.rejected) == (140, 20, 120)
    assert len(total.rejects) == MAX_REJECTS_REPORTED
    with caplog.at_level("INFO", "dcpstream_spark"):
        writer(access(node)).commit([part, None, part])
    assert "140 rows, 20 written, 120 rejected" in caplog.text
    assert caplog.text.count(": one") == MAX_REJECTS_REPORTED
    assert json.loads(total.to_json())["rows"] == 140


def test_a_failed_write_says_what_stays(caplog: pytest.LogCaptureFixture, node: dcpstream_node.Node) -> None:
    stream: Any = DcpDataSource(access(node, valueColumn="value")).streamWriter(SCHEMA, False)
    stream.abort([WriteCounts(rows=5, written=5), None], 7)
    assert "batch 7 failed" in caplog.text
    assert "5 written" in caplog.text
