"""A run over what a bucket holds at its start, where Spark makes one batch of such a run.

Spark 4.0 and 4.1 ask a Python source once in a run with `availableNow`. The source then plans a batch within its
limits, and the query ends although there is more. The run is whole once the planned end has reached the high seqnos of
its start, or once the query has found nothing to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dcpstream_spark.options import SourceOptions
from dcpstream_spark.source.coordinator import open_cluster
from dcpstream_spark.source.offsets import SourceOffset
from dcpstream_spark.tables.progress import offset_in


def wanted_seqnos(options: SourceOptions) -> dict[int, int]:
    """Vbucket → high seqno now, of the vbuckets that are read.

    Raises:
        ConnectionLost: the cluster does not answer.
    """
    cluster = open_cluster(options)
    try:
        found = cluster.high_seqnos()
    finally:
        cluster.close()
    wanted = options.wanted_vbuckets
    return {vbid: seqno for vbid, seqno in found.items() if wanted is None or vbid in wanted}


def is_whole(progress: Mapping[str, Any] | None, bucket: str, wanted: Mapping[int, int]) -> bool:
    """Whether nothing is left to read.

    Args:
        progress: the JSON of the query's last progress; None if it had no batch.
        bucket: that it reads.
        wanted: the seqnos to reach.
    """
    if progress is None:
        return True
    (source, *_) = progress["sources"]
    start, end = offset_in(source["startOffset"]), offset_in(source["endOffset"])
    if end is None or start == end:
        return True
    reached = SourceOffset.from_json(end, bucket=bucket).vbuckets
    return all(vbid in reached and reached[vbid].at.seqno >= seqno for vbid, seqno in wanted.items())
