"""Lets Spark find the format `dcp` without registration.

Spark imports every top-level module whose name begins with `pyspark_` when a format is first looked up, in a process
that does nothing else, and registers its `DefaultSource`. So this module must be quick and must never fail: it loads
the source when Spark makes one, and without the Spark extra it has no `DefaultSource`. Spark keeps the process, which
must end without a traceback when the session stops.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dcpstream_spark.worker import end_quietly_when_spark_leaves

if TYPE_CHECKING:
    from dcpstream_spark.data_source import DcpDataSource

__all__: list[str] = []

end_quietly_when_spark_leaves()

# Without pyarrow Spark does not find this format, but still finds others.
if all(importlib.util.find_spec(package) is not None for package in ("pyspark", "numpy", "pyarrow")):
    from pyspark.sql.datasource import DataSource

    class DefaultSource(DataSource):
        """The name under which Spark registers the format; making one makes a `DcpDataSource`."""

        def __new__(cls, options: Mapping[str, str]) -> DcpDataSource:  # type: ignore[misc]
            """The source itself, with what it needs."""
            from dcpstream_spark.data_source import DcpDataSource

            return DcpDataSource(options)

        @classmethod
        def name(cls) -> str:
            """The format's name."""
            return "dcp"

    __all__ += ["DefaultSource"]
