"""The streaming query of the demo, as a process of its own: `python -m dcpstream_demo.query`.

The first line of its standard input holds the settings. It runs until SIGTERM, or until that input ends, and reports
each event as a line of JSON on standard output. A query that fails because the node is away, or because the node
rolled back in the middle of a batch, is started again from its checkpoint, a few times, as a job scheduler would do.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dcpstream.runtime import SystemClock
from dcpstream.runtime.stopping import StopSign, stop_signals
from dcpstream_demo.guarded import STANDARD_INPUT, wait_for_end_of_input

if TYPE_CHECKING:
    from dcpstream_spark.tables import BatchReport, FoldReport

FAILURES_MAX = 6
"""Limit of failures in a row without a batch: more of them have another cause than a node that is away."""

RESTART_PAUSE_S = 0.5

_POLL_S = 0.2

_CAUSE = re.compile(r"[A-Za-z_][\w.]*: \S")
"""The last line of a Python traceback."""

_log = logging.getLogger(__name__)


def emit(event: str, **detail: Any) -> None:
    """One JSON line on standard output."""
    sys.stdout.write(json.dumps({"event": event, **detail}) + "\n")
    sys.stdout.flush()


def report_batch(report: BatchReport) -> None:
    """Report a batch that is in the tables."""
    emit(
        "batch",
        batch_id=report.batch_id,
        rows=report.rows,
        seconds=[round(report.append_s, 3), round(report.wait_s, 3)],
        is_recovered=report.is_recovered,
        rollbacks=[
            {
                "vbucket": item.vbucket,
                "from_seqno": item.from_seqno,
                "to_seqno": item.to_seqno,
                "old_vbuuid": str(item.old_vbuuid),
                "new_vbuuid": str(item.new_vbuuid),
            }
            for item in report.rollbacks
        ],
    )


def report_fold(report: FoldReport) -> None:
    """Report that `current` holds further batches."""
    emit(
        "fold",
        upto=report.upto,
        documents=report.documents,
        removed=report.removed,
        seconds=round(report.fold_s, 3),
    )


def run(settings: Mapping[str, Any], stopping: StopSign) -> int:
    """Run the pipeline until `stopping` is set; returns the exit status.

    Args:
        settings: `path` of the tables, `options` of the source, `trigger`, `master` and `temp` of Spark.
    """
    from dcpstream_spark import Pipeline, build_session

    clock = SystemClock()
    began = clock.monotonic()
    spark = build_session("dcpstream demo", master=settings["master"], settings={"spark.local.dir": settings["temp"]})
    emit("session", seconds=round(clock.monotonic() - began, 2), spark=spark.version)
    failures = 0

    def on_batch(report: BatchReport) -> None:
        nonlocal failures
        failures = 0
        report_batch(report)

    # On one machine delta-rs writes small batches faster than Spark.
    pipeline = Pipeline(
        spark,
        settings["path"],
        settings["options"],
        engine="delta-rs",
        on_batch=on_batch,
        on_fold=report_fold,
    )
    try:
        while not stopping.is_set():
            pipeline.start(trigger=settings["trigger"])
            emit("started")
            while pipeline.is_running and not stopping.wait(_POLL_S):
                pass
            failure = pipeline.failure
            if failure is None:
                break
            failures += 1
            _log.warning("the query failed: %s", failure)
            emit("failed", error=root_cause(failure), failures=failures)
            if failures > FAILURES_MAX:
                return 1
            stopping.wait(RESTART_PAUSE_S)
    finally:
        pipeline.stop()
        emit("stopped")
    return 0


def root_cause(error: BaseException) -> str:
    """The line with the cause, from an exception that Spark has wrapped several times.

    It is the last line of a Python traceback, preferably one with an error of ours; else the first line of the text.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if _CAUSE.match(line) and not line.startswith(("py4j.", "org.", "pyspark."))]
    ours = [line.removeprefix("dcpstream.errors.") for line in causes if line.startswith("dcpstream.")]
    return next(iter(ours + causes + lines), type(error).__name__)[:300]


def main() -> int:
    """Read the settings, and run until a signal or the end of the input."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    with open(STANDARD_INPUT, "rb", buffering=0, closefd=False) as raw:
        settings = json.loads(raw.readline())
    with stop_signals() as stopping:

        def watch_input() -> None:
            wait_for_end_of_input()
            stopping.set()

        threading.Thread(target=watch_input, name="watch the demo", daemon=True).start()
        return run(settings, stopping)


if __name__ == "__main__":
    sys.exit(main())
