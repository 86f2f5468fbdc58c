"""Limits of a micro-batch: most seqnos, most bytes, and the least number of seqnos that is worth a batch.

The end of a batch is planned before it is read, so a limit of bytes needs an estimate of the size of rows that nobody
has read yet. The driver reads a small sample of just those rows: a few seqnos at points that are spread evenly over
what a limit of rows alone would take. Tasks cannot keep an exact limit, because Spark has logged the end by then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dcpstream.client.machine.values import VbucketRange
from dcpstream.errors import DcpstreamError
from dcpstream.model import StreamOffset

SAMPLE_POINTS = 16
"""Places of a batch at which rows are sampled."""

SAMPLE_SEQNOS = 32
"""Seqnos that are read at each place: with 16 places 512 rows, whose mean is within a few percent of that of documents
whose sizes vary tenfold, for some 20 ms of the driver's time."""

SAMPLE_ROUNDS = 4
"""Reads of one sample. A read takes a vbucket at one place only, so a few vbuckets need several."""

SAMPLE_SHARE = 4
"""A batch is sampled if the last estimate puts it above this part of the limit; smaller ones cannot exceed it."""

SAMPLE_PLANS = 64
"""Batches after which even small ones are sampled again, because the sizes of documents may change."""

ASSUMED_BYTES_PER_SEQNO = 1_024
"""Estimate while no sample could be read."""

_log = logging.getLogger(__name__)

Sampler = Callable[[Sequence[VbucketRange]], int]
"""Reads ranges, at most one for each vbucket, and returns the bytes of their rows."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one micro-batch.

    Attributes:
        seqnos: largest number; None for all.
        size: largest number of bytes of its rows, as estimated; None for no limit.
        least: number of seqnos below which a batch waits; 0 for none.
    """

    seqnos: int | None = None
    size: int | None = None
    least: int = 0


class SizeEstimate:
    """Bytes per seqno of a query's rows; kept between batches.

    Attributes:
        bytes_per_seqno: the newest estimate; None before the first.
    """

    def __init__(self) -> None:
        self.bytes_per_seqno: float | None = None
        self._plans = 0

    def seqnos_within(
        self,
        limits: Limits,
        begin: Mapping[int, StreamOffset],
        takes: Mapping[int, int],
        branches: Mapping[int, int],
        sample: Sampler,
    ) -> int | None:
        """The limit of seqnos that keeps both limits; at least 1.

        Args:
            limits: of the batch.
            begin: vbucket → start of the batch.
            takes: vbucket → seqnos that the limit of seqnos alone allows.
            branches: vbucket → its branch.
            sample: reads a sample.
        """
        if limits.size is None or not takes:
            return limits.seqnos
        self._plans += 1
        expected = sum(takes.values()) * (self.bytes_per_seqno or 0)
        is_old = self.bytes_per_seqno is None or self._plans >= SAMPLE_PLANS
        if is_old or expected * SAMPLE_SHARE > limits.size:
            self._sample(begin, takes, branches, sample)
        mean = ASSUMED_BYTES_PER_SEQNO if self.bytes_per_seqno is None else self.bytes_per_seqno
        most = max(1, int(limits.size / mean)) if mean else None
        return min((limit for limit in (most, limits.seqnos) if limit is not None), default=None)

    def _sample(
        self,
        begin: Mapping[int, StreamOffset],
        takes: Mapping[int, int],
        branches: Mapping[int, int],
        sample: Sampler,
    ) -> None:
        seqnos = size = 0
        try:
            for ranges in sample_rounds(begin, takes, branches):
                size += sample(ranges)
                seqnos += sum(one.end_seqno - one.start.seqno for one in ranges)
        except DcpstreamError as error:
            _log.warning("the sizes of rows could not be sampled: %s", error)
        if seqnos:
            self.bytes_per_seqno = size / seqnos
            self._plans = 0


def sample_rounds(
    begin: Mapping[int, StreamOffset], takes: Mapping[int, int], branches: Mapping[int, int]
) -> list[list[VbucketRange]]:
    """The ranges of a sample, by rounds in which each vbucket occurs once."""
    total = sum(takes.values())
    rounds: list[list[VbucketRange]] = [[] for _ in range(SAMPLE_ROUNDS)]
    points = [total * (2 * n + 1) // (2 * SAMPLE_POINTS) for n in range(SAMPLE_POINTS)]
    passed = 0
    for vbid in sorted(takes):
        depths = [point - passed for point in points if passed <= point < passed + takes[vbid]]
        # Of more points than rounds, every n-th, so that they still are spread over the vbucket.
        for turn, depth in enumerate(depths[:: -(-len(depths) // SAMPLE_ROUNDS) or 1]):
            seqnos = min(SAMPLE_SEQNOS, takes[vbid] - depth)
            rounds[turn].append(_sample_range(begin[vbid], depth, seqnos, vbid, branches[vbid]))
        passed += takes[vbid]
    return [ranges for ranges in rounds if ranges]


def _sample_range(begin: StreamOffset, depth: int, seqnos: int, vbid: int, vbuuid: int) -> VbucketRange:
    seqno = begin.seqno + depth
    start = StreamOffset(vbuuid, seqno, seqno, seqno) if seqno else StreamOffset.ZERO
    return VbucketRange(vbid, start, seqno + seqnos, end_vbuuid=vbuuid, given_vbuuid=0, keeps_start=True)
