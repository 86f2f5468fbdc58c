"""Lets Spark find the format `dcp` without registration.

Spark imports every top-level module whose name begins with `pyspark_` when a format is first looked up, and registers
its `DefaultSource`. So this module must be quick and must never fail: without the Spark extra there is no
`DefaultSource`.
"""

try:
    from dcpstream.spark.source import DcpDataSource as DefaultSource
except ImportError:  # numpy or pyarrow is not installed: then the format is not there, and other formats still are
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
