"""The Spark data source `dcp`: a bucket's changes as a batch or a stream.

`options` checks what the user writes, `offsets` is what Spark logs, `planner` decides (pure functions), `coordinator`
asks the cluster from the driver, `reading` runs in the executors, `source` is what Spark sees. The format is found
without registration through the top-level module `pyspark_dcpstream`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dcpstream.spark.session import build_session
    from dcpstream.spark.source import DcpDataSource

__all__ = ["DcpDataSource", "build_session"]


def __getattr__(name: str) -> Any:
    # Loaded when used: a worker that only plans does not need them all, and Spark starts many.
    if name == "DcpDataSource":
        from dcpstream.spark.source import DcpDataSource

        return DcpDataSource
    if name == "build_session":
        from dcpstream.spark.session import build_session

        return build_session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
