"""A pipeline over Spark Connect: its batches run in a process of the server, all else in the client.

Theory of operation. Over Spark Connect Spark sends the function of each batch to a process of the server, which lives
as long as the query. So that process makes a pipeline of its own, from the arguments of the client's, at its first
batch. It knows what the tables hold as every pipeline does: it asks them. What it must not decide alone:

- The lease is the client's, which renews it. The process looks at it before each batch and each fold, and refuses to
  write once another pipeline has it. A client that is gone no longer renews it, so another one can take it.
- Folds run in the batch that makes them due, never beside batches: when Spark ends the process, no fold is cut off in
  a thread of its own. While a query runs, only the server folds; before and after it, only the client.
- Both have one session of Spark's. Its configuration is the mailbox for reports, which are for people: nothing that the
  tables must know is in it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

from dcpstream_spark.tables.engine import FoldReport
from dcpstream_spark.tables.lease import Terms
from dcpstream_spark.tables.progress import BatchReport, RollbackReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REPORTS_KEPT = 50
"""Reports in the mailbox. The client looks each second, and a batch takes longer than a fiftieth of that."""

LOOK_S = 1.0
"""Seconds between two looks of the client into the mailbox."""

_log = logging.getLogger(__name__)


class Writer(Protocol):
    """A pipeline, as the process of the server uses it."""

    def borrow(self, terms: Terms) -> None:
        """Work for a process that holds the lease."""
        ...

    def apply(self, frame: DataFrame, batch_id: int) -> None:
        """Write one micro-batch."""
        ...

    def totals(self) -> dict[str, Any]:
        """The fields of the progress that the process which writes the batches knows."""
        ...


class RemoteBatches:
    """The function of each batch, sent to the server once for each run.

    Args:
        make: the constructor of a pipeline.
        path: of the pipeline.
        arguments: of its constructor, besides the session and the path.
        terms: of the client's lease.
    """

    def __init__(self, make: Callable[..., Writer], path: str, arguments: Mapping[str, Any], terms: Terms) -> None:
        self._make = make
        self._path = path
        self._arguments = dict(arguments)
        self._terms = terms
        self._pipeline: Writer | None = None
        self._reports: deque[dict[str, Any]] = deque(maxlen=REPORTS_KEPT)
        self._number = 0

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write one batch; called by Spark in the process of the server."""
        spark = frame.sparkSession
        if self._pipeline is None:
            self._pipeline = self._make(
                spark,
                self._path,
                **self._arguments,
                folds_in_background=False,
                on_batch=lambda report: self._report("batch", report),
                on_fold=lambda report: self._report("fold", report),
            )
            self._pipeline.borrow(self._terms)
        self._post(spark, batch_id)
        self._pipeline.apply(frame, batch_id)
        self._post(spark, None)

    def _report(self, kind: str, report: BatchReport | FoldReport) -> None:
        self._number += 1
        self._reports.append({"number": self._number, "kind": kind, "report": asdict(report)})

    def _post(self, spark: SparkSession, batch_id: int | None) -> None:
        """Write the mail: the totals, the reports, and the batch that is being written."""
        assert self._pipeline is not None
        totals = self._pipeline.totals()
        mail = {"batch": batch_id, "totals": totals, "reports": list(self._reports), "holder": self._terms.holder}
        spark.conf.set(mailbox_of(self._path), json.dumps(mail))


class Mailbox:
    """The mail of the server's process, as the client reads it.

    Args:
        spark: the client's session.
        path: of the pipeline.
        deliver: called with each report, once.
    """

    def __init__(self, spark: SparkSession, path: str, deliver: Callable[[BatchReport | FoldReport], None]) -> None:
        self._spark = spark
        self._name = mailbox_of(path)
        self._deliver = deliver
        self._seen = 0
        self._lock = threading.Lock()

    def empty(self) -> None:
        """Before a run: forget the last one."""
        with self._lock:
            self._spark.conf.unset(self._name)
            self._seen = 0

    def totals(self) -> dict[str, Any]:
        """Those of `Pipeline.totals` after the last batch; empty before it."""
        found: dict[str, Any] = self._mail().get("totals", {})
        return found

    @property
    def is_cut(self) -> bool:
        """Whether a batch began and did not end."""
        return self._mail().get("batch") is not None

    def look(self) -> None:
        """Deliver the reports that are new."""
        with self._lock:
            for one in self._mail().get("reports", ()):
                if one["number"] > self._seen:
                    self._seen = one["number"]
                    self._deliver(_report_of(one["kind"], one["report"]))

    def watch(self, is_running: Callable[[], bool]) -> None:
        """Look again and again in a thread, as long as the query runs."""

        def watch() -> None:
            ended = threading.Event()
            try:
                while is_running():
                    self.look()
                    ended.wait(LOOK_S)
            except Exception as error:  # noqa: BLE001 - whatever Spark raises, for example after the session has ended
                _log.debug("no more reports: %s", error)

        threading.Thread(target=watch, name="dcpstream-mailbox", daemon=True).start()

    def _mail(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._spark.conf.get(self._name, None) or "{}")
        return found


def mailbox_of(path: str) -> str:
    """The setting of the session that the mail of a pipeline is in."""
    return f"dcpstream.mailbox.{hashlib.sha256(path.encode()).hexdigest()[:16]}"


def _report_of(kind: str, fields: dict[str, Any]) -> BatchReport | FoldReport:
    if kind == "fold":
        return FoldReport(**fields)
    rollbacks = tuple(RollbackReport(**one) for one in fields["rollbacks"])
    return BatchReport(**{**fields, "rollbacks": rollbacks})
