"""The named results of every run, and their goals, with the native kernel."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Goal:
    """A named result.

    Attributes:
        name: key under `ratios`.
        part: the bench module that measures it.
        meaning: for the table.
        limit: its goal, or None.
        at_most: whether the limit is an upper one.
        unit: "" for ratios.
    """

    name: str
    part: str
    meaning: str
    limit: float | None = None
    at_most: bool = False
    unit: str = ""

    def is_reached(self, value: float) -> bool | None:
        """Whether `value` meets the goal; None without one."""
        if self.limit is None:
            return None
        return value <= self.limit if self.at_most else value >= self.limit

    @property
    def limit_text(self) -> str:
        """The limit for people."""
        if self.limit is None:
            return "-"
        return f"{'≤' if self.at_most else '≥'} {self.limit:g}{' ' + self.unit if self.unit else ''}"


GOALS = (
    Goal("decode.64.of_memcpy", "decode", "decode, 64 B values, of memcpy (bytes per CPU second)"),
    Goal("decode.256.of_memcpy", "decode", "decode, 256 B values, of memcpy", 0.60),
    Goal("decode.1024.of_memcpy", "decode", "decode, 1 KiB values, of memcpy", 0.55),
    Goal("send.256.of_sendall", "send", "backfill send, 256 B, of sendall of a constant buffer"),
    Goal("send.1024.of_sendall", "send", "backfill send, 1 KiB, of sendall of a constant buffer"),
    Goal("send.256.of_bare", "send", "backfill send, 256 B, of copy, opaque and sendall alone", 0.95),
    Goal("send.1024.of_bare", "send", "backfill send, 1 KiB, of the same", 0.95),
    Goal("send.256.superseded.of_bare", "send", "backfill send, 30 % of rows superseded, of the same", 0.95),
    Goal("send.256.superseded.of_scattered", "send", "the same, where the bare sender has to pick the rows, too", 0.95),
    Goal("send.256.million_per_s", "send", "backfill send, 256 B, one connection, wall clock", 4, unit="M msg/s"),
    Goal("send.256.superseded.million_per_s", "send", "the same, 30 % of rows superseded", 4, unit="M msg/s"),
    Goal("client.256.of_receive", "client", "end to end to discard, 256 B, of receive only", 0.60),
    Goal("client.1024.of_receive", "client", "end to end to discard, 1 KiB, of receive only", 0.60),
    Goal("client.256.turns.of_receive", "client", "the same, 256 B, streams in short turns as of a server", 0.45),
    Goal("client.1024.turns.of_receive", "client", "the same, 1 KiB, streams in short turns as of a server", 0.45),
    Goal("spark_read.256.of_ready", "spark", "Spark read to noop, 256 B, of ready Arrow batches", 0.8),
    Goal("spark_read.1024.of_ready", "spark", "Spark read to noop, 1 KiB, of ready Arrow batches", 0.8),
    Goal("spark_read.256.turns.of_ready", "spark", "the same, 256 B, streams in short turns as of a server", 0.6),
    Goal("spark_read.1024.turns.of_ready", "spark", "the same, 1 KiB, streams in short turns as of a server", 0.6),
    Goal("spark_read.256.jvm.of_parquet", "spark", "JVM of a Spark read, 256 B, of reading Parquet", 1.3, True),
    Goal("spark_read.256.two.jvm.of_parquet", "spark", "the same, two columns", 1.3, True),
    Goal("spark_read.256.python_us", "spark", "Python of a Spark read, 256 B, a row", 1.5, True, "us"),
    Goal("spark_stream.floor_ms", "spark", "micro-batch of ten rows", 80, True, "ms"),
    Goal("planning_cpu_ms", "planning", "planning of a batch at 1,024 vbuckets", 50, at_most=True, unit="CPU ms"),
    Goal("ingest.per_op.of_scan", "ingest", "ingest op by op, of the bare boundary loop"),
    Goal("over_socket.insert.1.of_bare", "over_socket", "SET of new keys over a socket one by one, of a bare server's"),
    Goal("over_socket.insert.50.of_bare", "over_socket", "the same, 50 in a pipeline"),
    Goal("over_socket.overwrite.50.of_bare", "over_socket", "SET of keys that are there, 50 in a pipeline"),
    Goal("over_socket.insert.1000.of_bare", "over_socket", "SET of new keys, 1,000 in a pipeline"),
    Goal("over_socket.overwrite.1000.of_bare", "over_socket", "SET of keys that are there, 1,000 in a pipeline"),
    Goal("over_socket.insert.1.us", "over_socket", "SET of new keys, one by one", 12, at_most=True, unit="CPU us"),
    Goal("over_socket.insert.50.us", "over_socket", "the same, 50 in a pipeline", 4, at_most=True, unit="CPU us"),
    Goal("over_socket.overwrite.50.us", "over_socket", "SET of known keys, 50", 4, at_most=True, unit="CPU us"),
    Goal("over_socket.insert.1000.us", "over_socket", "SET of new keys, 1,000", 4, at_most=True, unit="CPU us"),
    Goal("over_socket.overwrite.1000.us", "over_socket", "SET of known keys, 1,000", 4, at_most=True, unit="CPU us"),
    Goal("over_socket.get.50.us", "over_socket", "GET, 50 in a pipeline", 4, at_most=True, unit="CPU us"),
    Goal("node_start_s", "ingest", "node start, 1,024 vbuckets", 0.5, at_most=True, unit="s"),
    Goal("reopen_1m_cpu_s", "store", "reopen 1 M documents from disk", 1.0, at_most=True, unit="CPU s"),
    Goal(
        "write_p99_above_fdatasync_ms",
        "latency",
        "durable write, p99 while 8 backfills run, less fdatasync's p99",
        10,
        at_most=True,
        unit="ms",
    ),
    Goal(
        "delivery.p99_ms", "delivery", "acknowledged write to client, p99 at 5,000 a second", 5, at_most=True, unit="ms"
    ),
    Goal("growth.load.of_tenth", "growth", "load: CPU a document at 10 M, of that at 1 M", 2, at_most=True),
    Goal("growth.reopen.of_tenth", "growth", "reopen: the same", 2, at_most=True),
    Goal("growth.backfill.of_tenth", "growth", "backfill: the same", 2, at_most=True),
    Goal("growth.compact.of_tenth", "growth", "compaction: the same", 2, at_most=True),
    Goal("index_bytes_per_document", "store", "memory of the index for a document", 180, at_most=True, unit="B"),
    Goal("load.connection_bytes", "load", "memory for a connection, 2,000 at once", 32768, at_most=True, unit="B"),
    Goal("load.memory_mib", "load", "most memory that mean clients cost", 320, at_most=True, unit="MiB"),
    Goal("load.login_s", "load", "2,000 connections at once, all answered", 5, at_most=True, unit="s"),
    Goal("load.streams.p99_ms", "load", "another client's p99 while 10,240 streams open", 250, at_most=True, unit="ms"),
    Goal("load.garbage.p99_ms", "load", "another client's p99 during 200 MB of garbage", 250, at_most=True, unit="ms"),
    Goal("load.stalled.p99_ms", "load", "another client's p99 with 500 that do not read", 100, at_most=True, unit="ms"),
)

PARTS = (
    "decode",
    "store",
    "growth",
    "latency",
    "delivery",
    "ingest",
    "over_socket",
    "send",
    "client",
    "spark",
    "planning",
    "load",
    "spread",
)
"""Modules of this package that have `run(quick)`, in the order in which they run."""
