"""Recordings of a real server: both decoders agree on it, and the changes add up to what its documents were."""

from __future__ import annotations

import zlib
from collections import Counter

import pyarrow as pa
import pytest

from dcpstream.arrow import ChangeContext, to_changes
from tests.kit import raw_frames
from tests.kit.cases import each_case
from tests.kit.recorded import STREAMS, expected_crcs, scenario_names, server_transcript, stream_bytes
from tests.kit.wire_columns import batch_of, decode_messages, decode_wire, received

pytestmark = pytest.mark.usefixtures("each_decoder")

CONTEXT = ChangeContext()
PARTS = 3
"""Of the recorded scenarios; the fast tests decode the first part."""
EXTRA_DOCUMENTS = 40
"""Documents with empty values or keys that are not ASCII; the list of expected values leaves them out."""


def has_collections(name: str) -> bool:
    return name != "legacy"


def changes_of(name: str, value_format: str = "binary") -> pa.RecordBatch:
    buffer = stream_bytes(name)
    batch = to_changes(decode_wire(buffer, has_collections(name)), context=CONTEXT, value_format=value_format)
    batch.validate(full=True)
    return batch


@each_case("name", STREAMS)
def test_both_decoders_agree(name: str) -> None:
    buffer = stream_bytes(name)
    rows, end = received(buffer)
    assert end == len(buffer)
    chunk = decode_wire(buffer, has_collections(name))
    raw_frames.same(chunk, decode_messages(buffer, has_collections(name)))
    kinds = Counter(frame.opcode for _, frame in rows.controls)
    assert kinds == {0x53: 1024, 0x56: 1023, 0x55: 1024}
    assert Counter(chunk.opcode.tolist()) == (
        {0x57: 6734, 0x58: 700, 0x59: 90} if name in {"full", "snappy"} else {0x57: 6734, 0x58: 790}
    )
    assert (chunk.opaques == 0x1000 + chunk.vbucket).all()


@each_case("name", ["full", "legacy", "snappy"])
def test_changes_add_up_to_the_documents(name: str) -> None:
    batch = changes_of(name)
    state = {
        key: None if value is None else zlib.crc32(value)
        for key, value in zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True)
    }
    expected = expected_crcs()
    assert len(state) == len(expected) + EXTRA_DOCUMENTS
    assert {key: state[key] for key in expected} == expected


def test_keys_alone_show_what_is_gone() -> None:
    batch = changes_of("keyonly")
    gone = dict(zip(batch["key"].to_pylist(), batch["_change_type"].to_pylist(), strict=True))
    assert {key for key, value in expected_crcs().items() if value is None} == {
        key for key, kind in gone.items() if kind == "delete"
    }
    assert set(batch["value"].to_pylist()) == {b"", None}


def test_compressed_values_are_the_same_values() -> None:
    left, right = (changes_of(name).sort_by("key") for name in ("full", "snappy"))
    for column in ("key", "value", "xattrs", "op", "rev", "cas", "seqno", "_commit_timestamp", "flags"):
        assert left[column].equals(right[column]), column
    assert not left["datatype"].equals(right["datatype"])


def test_xattrs_and_expiries_are_there() -> None:
    batch = changes_of("full")
    maps = [dict(pairs) for pairs in batch["xattrs"].to_pylist() if pairs]
    assert len(maps) > 300
    assert {name for pairs in maps for name in pairs} == {"_sync", "meta"}
    rows = batch.select(["op", "expiry"]).to_pylist()
    assert sum(row["op"] == "mutation" and row["expiry"] is not None for row in rows) >= 90
    assert all(row["expiry"] is not None for row in rows if row["op"] != "mutation")


def test_values_as_text_lose_no_document() -> None:
    text, plain = changes_of("full", "string")["value"].to_pylist(), changes_of("full")["value"].to_pylist()
    assert [value is None for value in text] == [value is None for value in plain]
    escaped = sum(value is not None and value.encode() != data for value, data in zip(text, plain, strict=True))
    assert 40 <= escaped <= 60, "sixty documents hold random bytes, few of them valid text"


@each_case("name", STREAMS)
@each_case("size", [1000, 65_536])
def test_received_piece_by_piece(name: str, size: int) -> None:
    """A buffer is filled, decoded, and its incomplete rest moved to the front: the same rows come out."""
    stream, collections = stream_bytes(name)[:200_000], has_collections(name)
    batches = []
    rest = bytearray()
    for begin in range(0, len(stream), size):
        rest += stream[begin : begin + size]
        _, end = received(rest, collections=collections)
        batches.append(batch_of(decode_wire(rest, collections)))
        del rest[:end]
    assert (
        pa.Table.from_batches(batches)
        .combine_chunks()
        .to_batches()[0]
        .equals(batch_of(decode_messages(stream, collections)))
    )


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))])
def test_transcripts_of_other_features(part: int) -> None:
    """Collections, stream ids, deletions, out-of-order snapshots: what the server sent on each connection."""
    for scenario in scenario_names()[part::PARTS]:
        decode_alike(scenario)


def decode_alike(scenario: str) -> None:
    sent: dict[str, bytearray] = {}
    for line in server_transcript(scenario):
        if line.direction == "s2c" and line.frame and not line.is_malformed:
            sent.setdefault(line.connection, bytearray()).extend(line.frame)
    for stream in sent.values():
        buffer = bytes(stream) * 3
        raw_frames.same(decode_wire(buffer, collections=False), decode_messages(buffer, collections=False))
