"""Positions in the form of other readers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dcpstream.cli.foreign_offsets import Format, read, write
from dcpstream.client import SavedOffset
from dcpstream.errors import OffsetError
from dcpstream.model import MAX_SEQNO, StreamOffset
from tests.kit.cases import each_case

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


@each_case("form", ["kafka-connect", "go-dcp"])
def test_a_position_with_an_open_end_is_not_exported(form: Format) -> None:
    """The bucket rolls a reader back to 0 that begins with an open end; seen with the Kafka connector 4.3.1."""
    with pytest.raises(OffsetError, match="vbuckets 0 lack the end of their snapshot"):
        write({0: SavedOffset(StreamOffset(1, 40, 0, None)), 1: SavedOffset(StreamOffset.ZERO)}, form, "b")


@each_case(("form", "end"), [("kafka-connect", -1), ("go-dcp", MAX_SEQNO)], ids=["kafka-connect", "go-dcp"])
def test_the_mark_of_an_open_end_is_read_as_one(form: Format, end: int) -> None:
    text = write({0: SavedOffset(StreamOffset(1, 40, 0, 77))}, form, "b").replace("77", str(end))
    assert read(text, form, "b") == {0: StreamOffset(1, 40, 0, None)}


def test_a_rollback_that_is_not_finished_is_not_exported() -> None:
    saved = {3: SavedOffset(StreamOffset.ZERO, is_rolling_back=True)}
    with pytest.raises(OffsetError, match="vbuckets 3 is not finished"):
        write(saved, "go-dcp", "b")
