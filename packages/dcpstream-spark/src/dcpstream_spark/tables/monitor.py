"""Pages, metrics and a watchdog for running pipelines.

`Monitor` answers HTTP requests in a thread of its own: `/` is a page for people, with a page for each pipeline if there
are several; `/metrics` is Prometheus' text format, `/progress` is the same as JSON, and `/health` answers 200, or 503
with the reason if a pipeline failed or stalled. Everything is read from the pipelines at the time of the request; only
the newest reports are kept.

A pipeline has *failed* if its run ended with an error, or could not begin; it stays so until it starts again. It is
*stopped* if it was stopped, or has read what it was to read.

The watchdog calls a pipeline stalled if no batch and no fold ended for `stall_s` although there is work: Spark is in
the middle of a micro-batch, or the newest progress has a lag.
"""

from __future__ import annotations

import http.server
import json
import logging
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import unquote

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dcpstream.errors import ConfigError
from dcpstream.pages.frame import HEADERS, Link, static_file
from dcpstream.pages.hosts import is_own_host
from dcpstream.pages.markup import empty, path
from dcpstream.pages.markup import text as escaped
from dcpstream.runtime import Clock, SystemClock
from dcpstream_spark.tables.engine import FoldReport
from dcpstream_spark.tables.failures import failure_of
from dcpstream_spark.tables.monitor_page import (
    ALL_VBUCKETS,
    HOME,
    PIPELINES,
    SHOWN_BATCHES,
    SHOWN_FOLDS,
    SHOWN_ROLLBACKS,
    STALL_ADVICE,
    STATIC,
    Batch,
    Details,
    Fold,
    Rollback,
    overview_content,
    page,
    pipeline_content,
)
from dcpstream_spark.tables.progress import BatchReport, PipelineProgress, VbucketProgress

STALL_S = 300.0
"""Default time without a batch after which a pipeline with work to do is stalled: longer than a fold of a table of a
hundred million rows, and than `idleTimeout`, after which the query itself reports a cluster that stays away."""

CHECKS_PER_STALL = 10
"""Checks of the watchdog in `stall_s`."""

_PLAIN = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
"""Headers of answers for machines."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_log = logging.getLogger(__name__)


class Watched(Protocol):
    """The part of `Pipeline` that the monitor reads."""

    @property
    def name(self) -> str:
        """The query's name."""
        ...

    @property
    def is_running(self) -> bool:
        """Whether a query is active."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether a micro-batch is under way."""
        ...

    @property
    def failure(self) -> Exception | None:
        """The error that its run failed with; None if it runs, ended or was stopped."""
        ...

    def progress(self) -> PipelineProgress:
        """The current progress."""
        ...

    @property
    def rejects_place(self) -> str | None:
        """The place of the documents that do not fit the schema; None without a schema."""
        ...

    def vbuckets(self) -> list[VbucketProgress]:
        """The progress of each vbucket."""
        ...

    def add_listener(
        self,
        on_batch: Callable[[BatchReport], None] | None = None,
        on_fold: Callable[[FoldReport], None] | None = None,
    ) -> None:
        """Subscribe to reports."""
        ...


@dataclass
class _Entry:
    """One pipeline, and what it has reported.

    Attributes:
        pipeline: the pipeline.
        since: when the last batch was written, or the pipeline was added (monotonic seconds).
        worked: when the last batch or fold ended, or the pipeline was added.
        batches, folds, rejected, append_s, wait_s, fold_s: totals.
        reports, fold_reports, rollbacks: the newest, oldest first.
        is_logged: whether the log has the present stall already.
    """

    pipeline: Watched
    since: float
    worked: float
    batches: int = 0
    folds: int = 0
    rejected: int = 0
    append_s: float = 0.0
    wait_s: float = 0.0
    fold_s: float = 0.0
    reports: deque[Batch] = field(default_factory=lambda: deque(maxlen=SHOWN_BATCHES))
    fold_reports: deque[Fold] = field(default_factory=lambda: deque(maxlen=SHOWN_FOLDS))
    rollbacks: deque[Rollback] = field(default_factory=lambda: deque(maxlen=SHOWN_ROLLBACKS))
    is_logged: bool = False


class Monitor:
    """Watches pipelines and serves what it sees.

    ```
    with Pipeline(spark, "/data/flights", options) as pipeline, Monitor([pipeline], port=9464):
        pipeline.start()
        pipeline.await_end()
    ```

    Args:
        pipelines: to watch; `add` adds further ones.
        host: address to listen on. The page has names of pipelines and error messages, so it is for this machine only
            unless you say otherwise.
        port: 0 for any free one.
        names: at which browsers and other programs reach the monitor, in addition to addresses, localhost, `host` and
            the name of the machine. Requests with another name in their header Host are refused.
        stall_s: see `STALL_S`.
        on_stall: called once for each stall, with the pipeline's name.
        clock: for the watchdog.

    Raises:
        ConfigError: the port is taken.
    """

    def __init__(
        self,
        pipelines: Sequence[Watched] = (),
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        names: Sequence[str] = (),
        stall_s: float = STALL_S,
        on_stall: Callable[[str], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._stall_s = stall_s
        self._on_stall = on_stall
        self.names = frozenset((host, socket.gethostname(), *names))
        self._lock = threading.Lock()
        self._entries: list[_Entry] = []
        self._is_over = threading.Event()
        for pipeline in pipelines:
            self.add(pipeline)
        monitor = self

        class Handler(_Handler):
            watching = monitor

        try:
            self._server = _Server((host, port), Handler)
        except OSError as error:
            raise ConfigError("port", port, f"a free port of {host} ({error.strerror})") from None
        self.port: int = self._server.server_address[1]
        self._threads = [
            threading.Thread(target=self._server.serve_forever, name="dcpstream-monitor", daemon=True),
            threading.Thread(target=self._watch, name="dcpstream-watchdog", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Monitor:
        """The monitor itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close."""
        self.close()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_over.is_set()

    def close(self) -> None:
        """Stop serving and watching. A second call does nothing."""
        if self._is_over.is_set():
            return
        self._is_over.set()
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join()

    def add(self, pipeline: Watched) -> None:
        """Watch a further pipeline. One with the same name, such as one that was made again after a failure, leaves."""
        now = self._clock.monotonic()
        entry = _Entry(pipeline, now, now)

        def note(report: BatchReport) -> None:
            with self._lock:
                entry.since = entry.worked = self._clock.monotonic()
                entry.is_logged = False
                entry.batches += 1
                entry.append_s += report.append_s
                entry.wait_s += report.wait_s
                unix_s = self._unix_s()
                entry.reports.append(Batch(unix_s, report))
                entry.rollbacks.extend(Rollback(unix_s, report.batch_id, one) for one in report.rollbacks)

        def note_fold(report: FoldReport) -> None:
            with self._lock:
                entry.worked = self._clock.monotonic()
                entry.is_logged = False
                entry.folds += 1
                entry.rejected += report.rejected
                entry.fold_s += report.fold_s
                entry.fold_reports.append(Fold(self._unix_s(), report))

        pipeline.add_listener(note, note_fold)
        with self._lock:
            names = [one.pipeline.name for one in self._entries]
            place = names.index(pipeline.name) if pipeline.name in names else len(names)
            if place < len(names):
                # One that fails again and again has written nothing all that time.
                entry.since = self._entries[place].since
            self._entries[place : place + 1] = [entry]

    def report(self) -> list[dict[str, Any]]:
        """All pipelines, as `/progress` shows them."""
        with self._lock:
            entries = list(self._entries)
        return [self._report_of(entry) for entry in entries]

    def page(self, name: str | None = None, *, host: str = "", shows_all: bool = False) -> str | None:
        """A page for people, as HTML; None if no pipeline has the name.

        Args:
            name: of the pipeline; None for the page of all. If there is just one, its page is that of all.
            host: as which the browser reaches the monitor.
            shows_all: whether a pipeline's page shows all vbuckets.
        """
        with self._lock:
            entries = list(self._entries)
        if name is None and len(entries) != 1:
            content = overview_content([self._report_of(entry) for entry in entries])
            return page("Pipelines", content, host=host, here=HOME)
        entry = next((one for one in entries if name is None or one.pipeline.name == name), None)
        if entry is None:
            return None
        name_path = path(PIPELINES, entry.pipeline.name)
        here, trail = (HOME, []) if name is None else (name_path, [Link("Pipelines", HOME)])
        content = pipeline_content(self._report_of(entry), self._details_of(entry), here=here, shows_all=shows_all)
        return page(entry.pipeline.name, content, host=host, here=here, trail=trail)

    def check(self) -> list[str]:
        """Names of the pipelines that are stalled now; new stalls are logged and reported to `on_stall`."""
        with self._lock:
            entries = list(self._entries)
        stalled = [entry for entry in entries if self._state(entry, entry.pipeline.failure) == "stalled"]
        for entry in stalled:
            if not entry.is_logged:
                entry.is_logged = True
                name = entry.pipeline.name
                _log.error(
                    "%s has work but has written nothing for %.0f s. %s",
                    name,
                    self._clock.monotonic() - entry.worked,
                    STALL_ADVICE,
                )
                if self._on_stall is not None:
                    self._on_stall(name)
        return [entry.pipeline.name for entry in stalled]

    def _watch(self) -> None:
        while not self._is_over.wait(self._stall_s / CHECKS_PER_STALL):
            self.check()

    def _state(self, entry: _Entry, failure: Exception | None) -> str:
        pipeline = entry.pipeline
        if failure is not None:
            return "failed"
        if not pipeline.is_running:
            return "stopped"
        has_work = pipeline.is_busy or bool(pipeline.progress().total_lag)
        if has_work and self._clock.monotonic() - entry.worked >= self._stall_s:
            return "stalled"
        return "running"

    def _report_of(self, entry: _Entry) -> dict[str, Any]:
        pipeline, progress = entry.pipeline, entry.pipeline.progress()
        failure = pipeline.failure
        with self._lock:
            batches, folds = list(entry.reports), list(entry.fold_reports)
            totals = {"batches": entry.batches, "folds": entry.folds, "rejected": entry.rejected}
            seconds = {"append_s": entry.append_s, "wait_s": entry.wait_s, "fold_s": entry.fold_s}
            since = entry.since
        return {
            "name": pipeline.name,
            "state": self._state(entry, failure),
            "error": None if failure is None else _reason(failure),
            "batch_id": progress.batch_id,
            "rows": progress.rows,
            "rollbacks": progress.rollbacks,
            "tail_rows": progress.tail_rows,
            "rows_per_second": progress.rows_per_second,
            "total_lag": progress.total_lag,
            "share_read": progress.share_read,
            "seconds_left": progress.seconds_left,
            "lag_s": progress.lag_s,
            "worst_lag": {str(vbid): lag for vbid, lag in progress.lag.items()},
            "vbuckets_inside_snapshot": progress.vbuckets_inside_snapshot,
            "seconds_since_batch": self._clock.monotonic() - since,
            **totals,
            **seconds,
            "last_batches": [
                {"batch_id": one.batch_id, "rows": one.rows, "append_s": one.append_s, "wait_s": one.wait_s}
                for _, one in batches
            ],
            "last_folds": [
                {"upto": one.upto, "documents": one.documents, "removed": one.removed, "fold_s": one.fold_s}
                for _, one in folds
            ],
        }

    def _details_of(self, entry: _Entry) -> Details:
        with self._lock:
            batches, folds, rollbacks = list(entry.reports), list(entry.fold_reports), list(entry.rollbacks)
        pipeline = entry.pipeline
        return Details(batches, folds, rollbacks, pipeline.vbuckets(), pipeline.rejects_place, self._unix_s())

    def _unix_s(self) -> int:
        return self._clock.time_ns() // 1_000_000_000

    def metrics(self) -> bytes:
        """`/metrics`."""
        registry = CollectorRegistry()
        registry.register(_Metrics(self.report()))
        return generate_latest(registry)


class _Metrics(Collector):
    """The reports as Prometheus' families."""

    def __init__(self, reports: list[dict[str, Any]]) -> None:
        self._reports = reports

    def collect(self) -> Iterator[Metric]:
        """One family for each metric."""
        for name, key, text in _COUNTERS:
            counter = CounterMetricFamily(f"dcpstream_pipeline_{name}", text, labels=["pipeline"])
            for report in self._reports:
                counter.add_metric([report["name"]], report[key])
            yield counter
        for name, key, text in _GAUGES:
            gauge = GaugeMetricFamily(f"dcpstream_pipeline_{name}", text, labels=["pipeline"])
            for report in self._reports:
                if report[key] is not None:
                    gauge.add_metric([report["name"]], report[key])
            yield gauge
        state = GaugeMetricFamily(
            "dcpstream_pipeline_state", "1 for the state that the pipeline is in.", labels=["pipeline", "state"]
        )
        for report in self._reports:
            for name in _STATES:
                state.add_metric([report["name"], name], report["state"] == name)
        yield state


_STATES = ("running", "stalled", "failed", "stopped")

_COUNTERS = (
    ("rows", "rows", "Data rows that were written to changes."),
    ("batches", "batches", "Micro-batches that were written."),
    ("folds", "folds", "Folds into current."),
    ("rejected_documents", "rejected", "Documents that did not fit the schema when they were folded."),
    ("rollbacks", "rollbacks", "Control rows about rollbacks."),
    ("append_seconds", "append_s", "Seconds that reading and appending took."),
    ("wait_seconds", "wait_s", "Seconds that batches waited for a fold."),
    ("fold_seconds", "fold_s", "Seconds that folding took."),
)

_GAUGES = (
    ("lag_seqnos", "total_lag", "Seqnos that the tables do not hold yet; missing if the cluster did not answer."),
    ("lag_seconds", "lag_s", "Seconds by which the tables are behind the bucket, about; missing if it is not known."),
    ("read_ratio", "share_read", "Share of the bucket's seqnos that the tables hold, 0 to 1."),
    ("left_seconds", "seconds_left", "Seconds until the rest is read, at the speed of the last batches."),
    ("tail_rows", "tail_rows", "Rows of changes that current does not hold yet."),
    ("inside_snapshot_vbuckets", "vbuckets_inside_snapshot", "vbuckets whose position lies within a snapshot."),
    ("last_batch_id", "batch_id", "Number of the last micro-batch."),
    ("last_batch_age_seconds", "seconds_since_batch", "Seconds since a batch was written."),
)


class _Server(http.server.ThreadingHTTPServer):
    """A thread for each connection."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what went wrong with a request; a browser that went away is nothing."""
        error = sys.exception()
        if not isinstance(error, OSError):
            _log.error("a page of the monitor could not be made", exc_info=error)


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers GET requests; `watching` is set by the monitor."""

    watching: Monitor
    protocol_version = "HTTP/1.1"
    timeout = 30.0

    def do_GET(self) -> None:
        """Serve one page."""
        if self.watching.is_closed:
            # A browser keeps its connection: it must not show the figures of a monitor that is closed.
            self.close_connection = True
            return
        try:
            self._serve()
        except OSError:
            raise
        except Exception:  # noqa: BLE001 - a session of Spark that ended, too
            _log.exception("a page of the monitor could not be made")
            self._answer(500, "text/plain", b"the page could not be made; the log of the process says why\n")

    def _serve(self) -> None:
        wanted, _, query = self.path.partition("?")
        monitor = self.watching
        if not is_own_host(self.headers.get("Host", ""), monitor.names):
            # A page of another site may have had its name point here, to read what it could not read otherwise.
            self._answer(421, "text/plain", b"This is not the name of the monitor. Names are given as `names`.\n")
        elif wanted == HOME:
            self._show(None, query)
        elif wanted.startswith(f"/{PIPELINES}/"):
            self._show(unquote(wanted.removeprefix(f"/{PIPELINES}/")), query)
        elif wanted.startswith(f"{STATIC}/") and (found := static_file(wanted.removeprefix(f"{STATIC}/"))):
            kind, content = found
            self._answer(200, f"{kind}; charset=utf-8", content.encode(), HEADERS)
        elif wanted == "/metrics":
            self._answer(200, CONTENT_TYPE, monitor.metrics())
        elif wanted == "/progress":
            self._answer(200, "application/json", json.dumps(monitor.report(), indent=1).encode())
        elif wanted == "/health":
            reports = monitor.report()
            is_well = not {"failed", "stalled"}.intersection(one["state"] for one in reports)
            states = {
                one["name"]: one["state"] if one["error"] is None else f"failed: {one['error']}" for one in reports
            }
            self._answer(200 if is_well else 503, "application/json", json.dumps(states).encode())
        else:
            self._answer(404, "text/plain", b"pages: /, /metrics, /progress, /health\n")

    def _show(self, name: str | None, query: str) -> None:
        """Serve a page for people."""
        host = self.headers.get("Host", "")
        html, status = self.watching.page(name, host=host, shows_all=ALL_VBUCKETS in query.split("&")), 200
        if html is None:
            missing = empty(f"No pipeline of this name is watched: <code>{escaped(name)}</code>")
            here, trail = path(PIPELINES, str(name)), [Link("Pipelines", HOME)]
            html, status = page("Pipeline", missing, host=host, here=here, trail=trail), 404
        self._answer(status, "text/html; charset=utf-8", html.encode(), HEADERS)

    def _answer(self, status: int, kind: str, body: bytes, headers: Mapping[str, str] = _PLAIN) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Leave requests out of the log."""


def _reason(error: Exception) -> str:
    """The first line of what the error means to the owner of the pipeline."""
    return (failure_of(error, {}).message.splitlines() or [type(error).__name__])[0]
