"""Lets Spark find the format `dcp` without registration.

Spark imports every top-level module whose name begins with `pyspark_` when a format is first looked up, and registers
its `DefaultSource`. So this module must be quick and must never fail: without the Spark extra it has no
`DefaultSource`.
"""

try:
    from dcpstream.spark.source import DcpDataSource as DefaultSource
except ImportError:  # pyarrow is not installed: Spark does not find this format, but still finds others
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
