"""Positions in the form of other readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dcpstream.cli.foreign_offsets import Format, read, resolved, write
from dcpstream.client import BranchState, SavedOffset
from dcpstream.errors import OffsetError
from dcpstream.model import MAX_SEQNO, FailoverLog, StreamOffset
from tests.kit.cases import each_case

RECORDED = Path(__file__).parents[5] / "tests" / "data" / "kafka-connect-offsets.json"
HIGH = (1 << 63) + 5
KAFKA: dict[str, list[dict[str, Any]]] = {
    "offsets": [
        {
            "partition": {"bucket": "travel", "partition": "7", "connector": "source"},
            "offset": {
                "bySeqno": 40,
                "vbuuid": HIGH - (1 << 64),
                "snapshotStartSeqno": 30,
                "snapshotEndSeqno": 50,
                "collectionsManifestUid": 2,
            },
        },
        {"partition": {"bucket": "travel", "partition": "8"}, "offset": {"bySeqno": 3}},
        {"partition": {"bucket": "travel", "partition": "9"}, "offset": None},
        {"partition": {"bucket": "other", "partition": "7"}, "offset": {"bySeqno": 1}},
    ]
}
GO_DCP = {
    "7": {
        "checkpoint": {"snapshot": {"startSeqno": 30, "endSeqno": 50}, "vbuuid": HIGH, "seqno": 40},
        "bucketUuid": "ab",
    }
}


def test_kafka_connect_is_read() -> None:
    assert read(json.dumps(KAFKA), "kafka-connect", "travel") == {
        7: StreamOffset(HIGH, 40, 30, 50, 2),
        8: StreamOffset(0, 3, 0, None),
    }


def test_kafka_connect_is_written() -> None:
    saved = {7: SavedOffset(StreamOffset(HIGH, 40, 30, 50, 2))}
    (written,) = json.loads(write(saved, "kafka-connect", "travel"))["offsets"]
    # A connector does not find a key with its name, as `lab/interop/python/kafka_connect.py` shows.
    assert written == {"partition": {"bucket": "travel", "partition": "7"}, "offset": KAFKA["offsets"][0]["offset"]}
    assert list(written["partition"]) == ["bucket", "partition"], "Kafka Connect compares keys as bytes"


def test_positions_that_kafka_connect_cannot_express_are_refused() -> None:
    """As Kafka Connect 4.1.0 answers for a connector with its name in the keys."""
    lost = {"partition": {"bucket": "travel", "partition": "7", "connector": "source"}, "offset": None}
    with pytest.raises(OffsetError, match=r"couchbase\.connector\.name\.in\.offsets: each is null"):
        read(json.dumps({"offsets": [lost]}), "kafka-connect", "travel")
    assert 7 in read(json.dumps({"offsets": [lost, KAFKA["offsets"][0]]}), "kafka-connect", "travel")


def test_go_dcp_is_read_and_written() -> None:
    offset = StreamOffset(HIGH, 40, 30, 50)
    assert read(json.dumps(GO_DCP), "go-dcp", "travel") == {7: offset}
    assert json.loads(write({7: SavedOffset(offset)}, "go-dcp", "travel", bucket_uuid="ab")) == GO_DCP


@each_case("form", ["kafka-connect", "go-dcp"])
def test_a_position_with_an_open_end_is_not_exported(form: Format) -> None:
    """The bucket rolls a reader back to 0 that begins with an open end; seen with the Kafka connector 4.3.1."""
    with pytest.raises(OffsetError, match="vbuckets 0 lack the end of their snapshot"):
        write({0: SavedOffset(StreamOffset(1, 40, 0, None)), 1: SavedOffset(StreamOffset.ZERO)}, form, "b")


@each_case(("form", "end"), [("kafka-connect", -1), ("go-dcp", MAX_SEQNO)], ids=["kafka-connect", "go-dcp"])
def test_the_mark_of_an_open_end_is_read_as_one(form: Format, end: int) -> None:
    text = write({0: SavedOffset(StreamOffset(1, 40, 0, 77))}, form, "b").replace("77", str(end))
    assert read(text, form, "b") == {0: StreamOffset(1, 40, 0, None)}


def test_what_lacks_is_filled_in() -> None:
    state = BranchState(9, 50, FailoverLog.of((9, 30), (7, 0)))
    assert resolved(StreamOffset(9, 40, 0, None), state) == StreamOffset(9, 40, 0, 50)
    assert resolved(StreamOffset(0, 40, 0, None, 3), state) == StreamOffset(9, 40, 0, 50, 3), "the branch of now"
    for offset in (
        StreamOffset(7, 40, 0, None),
        StreamOffset(0, 51, 0, None),
        StreamOffset(9, 40, 30, 60),
        StreamOffset.ZERO,
    ):
        assert resolved(offset, state) is offset


def test_what_a_connector_saved_is_read_and_written_back() -> None:
    """`GET /connectors/NAME/offsets` of Kafka Connect 4.1.0 with release 4.3.1 of the connector."""
    text = RECORDED.read_text(encoding="utf-8")
    offsets = read(text, "kafka-connect", "default")
    assert offsets == {
        2: StreamOffset(16088875805974, 13, 0, 13),
        63: StreamOffset(208834865675727, 16, 0, 16),
    }
    written = json.loads(
        write({vbid: SavedOffset(offset) for vbid, offset in offsets.items()}, "kafka-connect", "default")
    )
    by_number = sorted(json.loads(text)["offsets"], key=lambda row: int(row["partition"]["partition"]))
    assert written == {"offsets": by_number}


def test_a_rollback_that_is_not_finished_is_not_exported() -> None:
    saved = {3: SavedOffset(StreamOffset.ZERO, is_rolling_back=True)}
    with pytest.raises(OffsetError, match="vbuckets 3 is not finished"):
        write(saved, "go-dcp", "b")


@each_case("text", ["", "[]", "7", '{"offsets": 7}', '{"offsets": [{}]}', '{"x": {"checkpoint": 1}}'])
@each_case("form", ["kafka-connect", "go-dcp"])
def test_other_texts_are_refused(text: str, form: Format) -> None:
    with pytest.raises(OffsetError, match=f"this is no checkpoint of {form}"):
        read(text, form, "b")


@each_case("data", [b"\xff\xfe\x00", b"[" * 100_000])
@each_case("form", ["kafka-connect", "go-dcp"])
def test_bytes_that_are_no_json_are_refused(data: bytes, form: Format) -> None:
    with pytest.raises(OffsetError, match=f"no checkpoint of {form}"):
        read(data, form, "travel")
