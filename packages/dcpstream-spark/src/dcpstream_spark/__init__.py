"""The Spark data source `dcp`: a bucket's changes as a batch or a stream.

On the driver, `source` has the classes that Spark calls, `options` checks the user's options, `coordinator` asks the
cluster, `starting` and `planner` compute the start and the end of a batch (pure functions), and `offsets` is the JSON
that Spark logs. On the executors, `reading` yields the rows of a task as RecordBatches with the columns of `schema`,
over a `Cluster` of `pool`, with `prefetch` in a thread. For writing, `writing` has the classes that Spark calls,
`write_options` checks the options, `documents` turns rows into writes, and `rejects` keeps the rows that the bucket
refuses. `session`, `java` and `jars` make a session with the connector of a table format. Spark finds the format
without registration through the top-level module `pyspark_dcpstream`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dcpstream_spark.data_source import DcpDataSource
    from dcpstream_spark.session import build_session, session_settings

__all__ = ["DcpDataSource", "build_session", "session_settings"]


def __getattr__(name: str) -> Any:
    # Loaded when used, because Spark starts many workers, and most need only a part.
    if name == "DcpDataSource":
        from dcpstream_spark.data_source import DcpDataSource

        return DcpDataSource
    if name in {"build_session", "session_settings"}:
        from dcpstream_spark import session

        return getattr(session, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
