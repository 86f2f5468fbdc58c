"""Couchbase's changes in Spark: the data source and sink `dcp`, and tables kept up to date from them.

- `commands`: `dcpstream lake`, `compare` and `jars`.
- `tables`: `Pipeline`, jobs on top of the source; comparison of tables with buckets.
- `data_source`: the classes that Spark calls, for reading and writing.
- `source`: reading. On the driver, `coordinator` asks the cluster, `starting` and `planner` compute the start and the
  end of a batch (pure functions), and `offsets` is the JSON that Spark logs. On the executors, `reading` yields the
  rows of a task as RecordBatches with the columns of `schema`, with `prefetch` in a thread.
- `sink`: writing. `writing` has the classes that Spark calls, `write_options` checks the options, `documents` turns
  rows into writes, and `rejects` keeps the rows that the bucket refuses.
- Both use `options`, the user's checked options, and `pool`, which keeps connections. `session`, `java` and `jars` make
  a session with the connector of a table format.

Spark finds the format without registration through the top-level module `pyspark_dcpstream`. The names below are loaded
when they are first used, because Spark starts many workers, and most need only a part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcpstream.lazy import lazy_names

if TYPE_CHECKING:
    from dcpstream_spark.data_source import DcpDataSource
    from dcpstream_spark.session import SHORT_RUN, build_session, session_settings
    from dcpstream_spark.tables.pipeline import Pipeline

__version__ = "0.1.0"

__all__ = ["SHORT_RUN", "DcpDataSource", "Pipeline", "__version__", "build_session", "session_settings"]

_NAMES_IN = {
    "dcpstream_spark.data_source": ("DcpDataSource",),
    "dcpstream_spark.session": ("SHORT_RUN", "build_session", "session_settings"),
    "dcpstream_spark.tables.pipeline": ("Pipeline",),
}

__getattr__, __dir__ = lazy_names(__name__, _NAMES_IN)
