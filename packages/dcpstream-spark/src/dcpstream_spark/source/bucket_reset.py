"""A bucket that is no longer the one of the checkpoint: flushed, deleted and created again, or of another size.

Its positions are void, all of them. They are distinguished from those of a rollback, which voids a part of some
vbuckets' history, because a table that loses all of its rows is rarely what its owner expects.
"""

from __future__ import annotations

from collections.abc import Mapping

from dcpstream.client.machine.resume import BranchState
from dcpstream.model import StreamOffset
from dcpstream_spark.source.offsets import SourceOffset

FLUSHED_VBUCKETS_MIN = 2
"""Least number of vbuckets with a position, none of which is known any more, that count as a flushed bucket. A single
vbucket may also have lost its history in a failover."""

ADVICE = (
    "Set onBucketReset=rebuild to take back all rows and read the bucket from its beginning, or start with another "
    "checkpointLocation and empty tables."
)


def another_bucket(start: SourceOffset, uuid: str, vbucket_count: int) -> str | None:
    """The reason, from the cluster map, why the bucket is not the checkpoint's; None if it is the same.

    Args:
        start: the end of the previous batch.
        uuid: of the bucket now; empty if it is not known.
        vbucket_count: of the bucket now.
    """
    if start.bucket_uuid and uuid and start.bucket_uuid != uuid:
        return f"bucket {start.bucket!r} was deleted and created again (its uuid was {start.bucket_uuid}, now {uuid})"
    if len(start.vbuckets) != vbucket_count:
        return f"bucket {start.bucket!r} had {len(start.vbuckets)} vbuckets and has {vbucket_count} now"
    return None


def flushed(start: SourceOffset, observed: Mapping[int, BranchState]) -> str | None:
    """The reason, from the branches, why no position is valid any more; None if one may be.

    Args:
        start: the end of the previous batch.
        observed: the branches now. A vbucket that is missing may still have its history.
    """
    positions = {vbid: entry.at for vbid, entry in start.vbuckets.items() if entry.at.seqno}
    if len(positions) < FLUSHED_VBUCKETS_MIN or not _all_unknown(positions, observed):
        return None
    return f"bucket {start.bucket!r} was flushed: none of its vbuckets knows the history that was read"


def may_be_flushed(start: SourceOffset, observed: Mapping[int, BranchState]) -> bool:
    """Whether the vbuckets that were observed look like those of a flushed bucket, so that all should be observed."""
    positions = {vbid: start.vbuckets[vbid].at for vbid in observed if vbid in start.vbuckets}
    positions = {vbid: at for vbid, at in positions.items() if at.seqno}
    return bool(positions) and _all_unknown(positions, observed)


def _all_unknown(positions: Mapping[int, StreamOffset], observed: Mapping[int, BranchState]) -> bool:
    return all(
        (state := observed.get(vbid)) is not None
        and all(entry.vbuuid != at.vbuuid for entry in state.failover_log.entries)
        for vbid, at in positions.items()
    )


def reset_message(cause: str) -> str:
    """The message with onBucketReset fail."""
    return f"{cause[0].upper()}{cause[1:]}. Every row that was read of it is void. {ADVICE}"
