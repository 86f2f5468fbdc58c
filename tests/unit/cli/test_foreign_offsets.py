"""Positions in the form of other readers."""

from __future__ import annotations

import json

import pytest

from dcpstream.cli.foreign_offsets import Format, read, write
from dcpstream.client import SavedOffset
from dcpstream.errors import OffsetError
from dcpstream.model import StreamOffset

HIGH = (1 << 63) + 5
KAFKA = {
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
    written = json.loads(write(saved, "kafka-connect", "travel", connector="source"))
    assert written == {"offsets": KAFKA["offsets"][:1]}
    assert "connector" not in write(saved, "kafka-connect", "travel")


def test_go_dcp_is_read_and_written() -> None:
    offset = StreamOffset(HIGH, 40, 30, 50)
    assert read(json.dumps(GO_DCP), "go-dcp", "travel") == {7: offset}
    assert json.loads(write({7: SavedOffset(offset)}, "go-dcp", "travel", bucket_uuid="ab")) == GO_DCP


@pytest.mark.parametrize("form", ["kafka-connect", "go-dcp"])
def test_an_open_end_stays_open_for_others(form: Format) -> None:
    saved = {0: SavedOffset(StreamOffset(1, 40, 0, None))}
    assert read(write(saved, form, "b"), form, "b")[0].snapshot_end == (1 << 64) - 1


def test_a_rollback_that_is_not_finished_is_not_exported() -> None:
    saved = {3: SavedOffset(StreamOffset.ZERO, is_rolling_back=True)}
    with pytest.raises(OffsetError, match="vbuckets 3 is not finished"):
        write(saved, "go-dcp", "b")


@pytest.mark.parametrize("text", ["", "[]", "7", '{"offsets": 7}', '{"offsets": [{}]}', '{"x": {"checkpoint": 1}}'])
@pytest.mark.parametrize("form", ["kafka-connect", "go-dcp"])
def test_other_texts_are_refused(text: str, form: Format) -> None:
    with pytest.raises(OffsetError, match=f"this is no checkpoint of {form}"):
        read(text, form, "b")
