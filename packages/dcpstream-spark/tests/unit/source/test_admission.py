from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dcpstream_node
from dcpstream.client.machine.values import VbucketRange
from dcpstream.errors import ConnectionLost
from dcpstream.model import StreamOffset
from dcpstream_spark.source.admission import (
    ASSUMED_BYTES_PER_SEQNO,
    SAMPLE_PLANS,
    SAMPLE_POINTS,
    SAMPLE_ROUNDS,
    SAMPLE_SEQNOS,
    Limits,
    SizeEstimate,
    sample_rounds,
)
from tests.kit.spark import Stream, kv_of

ZERO = StreamOffset.ZERO


@given(st.dictionaries(st.integers(0, 1023), st.integers(1, 5_000), min_size=1, max_size=60))
def test_a_sample_is_spread_over_what_would_be_read(takes: dict[int, int]) -> None:
    begin = {vbid: StreamOffset(9, 10, 4, 12) for vbid in takes}
    rounds = sample_rounds(begin, takes, dict.fromkeys(takes, 9))
    assert 1 <= len(rounds) <= SAMPLE_ROUNDS
    ranges = [one for members in rounds for one in members]
    assert 1 <= len(ranges) <= SAMPLE_POINTS
    for members in rounds:
        assert len({one.vbid for one in members}) == len(members), "a read takes a vbucket once"
    for one in ranges:
        assert 10 <= one.start.seqno < one.end_seqno <= 10 + takes[one.vbid]
        assert one.end_seqno - one.start.seqno <= SAMPLE_SEQNOS
        assert one.keeps_start, "a failover in between must not read a vbucket from zero"


class Sizes:
    """Counts the samples; each row has the same size."""

    def __init__(self, row_bytes: int) -> None:
        self.row_bytes = row_bytes
        self.samples = 0

    def __call__(self, ranges: Sequence[VbucketRange]) -> int:
        self.samples += 1
        return self.row_bytes * sum(one.end_seqno - one.start.seqno for one in ranges)


def within(estimate: SizeEstimate, limits: Limits, takes: dict[int, int], sample: Sizes) -> int | None:
    return estimate.seqnos_within(limits, dict.fromkeys(takes, ZERO), takes, dict.fromkeys(takes, 9), sample)


def test_the_smaller_limit_counts() -> None:
    takes = dict.fromkeys(range(16), 10000)
    assert within(SizeEstimate(), Limits(160_000, 1_000_000), takes, Sizes(100)) == 10_000
    assert within(SizeEstimate(), Limits(5_000, 1_000_000), takes, Sizes(100)) == 5_000
    assert within(SizeEstimate(), Limits(None, 1_000_000), takes, Sizes(100)) == 10_000
    assert within(SizeEstimate(), Limits(7), takes, Sizes(100)) == 7
    assert within(SizeEstimate(), Limits(None, 50), takes, Sizes(100)) == 1, "a row larger than the limit is read"
    assert within(SizeEstimate(), Limits(7, 50), takes, Sizes(0)) == 7, "nothing of it is selected"


def test_small_batches_are_seldom_sampled() -> None:
    estimate, sample = SizeEstimate(), Sizes(100)
    small = dict.fromkeys(range(16), 4)
    for _ in range(SAMPLE_PLANS):
        within(estimate, Limits(None, 1_000_000), small, sample)
    assert sample.samples == 1
    within(estimate, Limits(None, 1_000_000), small, sample)
    assert sample.samples == 2
    large = dict.fromkeys(range(16), 1000)
    for _ in range(3):
        within(estimate, Limits(None, 1_000_000), large, sample)
    assert sample.samples == 5


def test_without_an_answer_a_size_is_assumed(caplog: pytest.LogCaptureFixture) -> None:
    def fails(_: Sequence[VbucketRange]) -> int:
        raise ConnectionLost("nobody listens")

    found = SizeEstimate().seqnos_within(Limits(None, 10 * ASSUMED_BYTES_PER_SEQNO), {0: ZERO}, {0: 99}, {0: 9}, fails)
    assert found == 10
    assert "nobody listens" in caplog.text


@pytest.mark.usefixtures("closes_connections")
@pytest.mark.parametrize("kind", ["two halves", pytest.param("mixed", marks=pytest.mark.slow)])
def test_batches_keep_the_limit_of_bytes(kind: str) -> None:
    """On a real node, from the first batch on, with documents of 100 bytes to 20 KB."""
    random = Random(4)
    limit = 2_000_000
    with dcpstream_node.Node(vbuckets=16) as node:
        with kv_of(node) as kv:
            for part in range(2):
                small = part == 0 if kind == "two halves" else None
                kv.set_many(
                    (f"{part} {n}", b"x" * (100 if small else random.randint(100, 20_000))) for n in range(1_500)
                )
        stream = Stream(node, maxBytesPerTrigger=str(limit), numPartitions="4")
        sizes = []
        while True:
            end = stream.plan()
            if end == stream.at:
                break
            rows = stream.read(end)
            stream.at = end
            sizes.append(sum(len(row["value"]) for row in rows))
    print(f"{kind}: limit {limit}, batches of {sizes} bytes of values")
    assert sum(sizes) > 7 * limit
    assert max(sizes) <= 1.5 * limit
    assert len(sizes) <= 3 * sum(sizes) / limit
