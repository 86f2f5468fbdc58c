"""The queries of a round on Spark: the only module that uses the code that is judged.

`SparkHost` runs them in this process. Run as a program, the module serves a `RemoteHost` over its standard streams: one
JSON object a line in each direction. The remote one can be killed, with its JVM and all of its Python workers.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import psutil
import pyarrow as pa

from lab.chaos.preload import python_command
from lab.chaos.typed import columns_of
from lab.tools.patience import patient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from dcpstream_spark import Pipeline

SINKS = ("delta-rs", "delta", "parquet")
"""The table engines, and the sink of Spark's own that only appends."""

ROOT = Path(__file__).parents[2]
_MEMORY, _MEMORY_BYTES_MIN = Path("/dev/shm"), 1 << 30
TASK_WORKER = "pyspark.daemon pyspark.worker"
_MARK = "\x01"
"""Begins a line of the protocol; Spark writes to the same stream."""
_KILL_TIMEOUT_S = 60.0
EXECUTOR_MEMORY_MB = 512
CLUSTER = f"local-cluster[2,1,{EXECUTOR_MEMORY_MB}]"
"""The master for rounds with executors: two, of one task each, in processes of their own."""
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m -XX:MetaspaceSize=256m"
"""Short lives, so little is compiled; without the larger code cache the JVM drops what it has compiled, again and
again."""
ANSWER_TIMEOUT_S = patient(60.0)
"""The longest that Spark's process may take for one order. A process that was just started starts its JVM first."""
_FOLD_THREAD = "dcpstream-fold"
_DUMP_S = 1.0
"""Time for a process to write down its stacks."""
_STACKS_CHARS = 30_000
_JAVA_THREADS = ("stream execution", "Executor task", "Thread-", "dag-scheduler")
"""Parts of the names of the JVM's threads that do a query's work."""


@dataclass(frozen=True, slots=True)
class Order:
    """A query to start.

    Attributes:
        sink: see `SINKS`.
        path: of its checkpoint and tables.
        options: of the source.
        until: "available" or "stopped".
        die_at: a moment of the writing of tables at which the query dies, such as "append after"; "" for none.
        die_nth: at which passing of that moment.
        fold_rows: rows of the tail from which `current` is folded.
        fold_pause_s: seconds that a fold in the background takes longer.
        schema: of the typed columns of `current`; "" for none.
        mode: of documents that do not fit.
    """

    sink: str
    path: str
    options: Mapping[str, str] = field(default_factory=dict)
    until: str = "available"
    die_at: str = ""
    die_nth: int = 1
    fold_rows: int | None = None
    fold_pause_s: float = 0.0
    schema: str = ""
    mode: str = "PERMISSIVE"

    def pipeline(self, spark: SparkSession, engine: str) -> Pipeline:
        """The pipeline of the tables."""
        from pyspark.sql import types as t

        from dcpstream_spark import Pipeline

        kinds = {"INT": t.IntegerType(), "BIGINT": t.LongType(), "STRING": t.StringType()}
        fields = [t.StructField(name, kinds[kind]) for name, kind in columns_of(self.schema).items()]
        # Text would need a session.
        more: dict[str, Any] = {"schema": t.StructType(fields), "mode": self.mode} if fields else {}
        return Pipeline(spark, self.path, self.options, engine=engine, fold_rows_min=self.fold_rows, **more)


class Host(Protocol):
    """The place where queries run."""

    def start(self, order: Order) -> None:
        """Start a query."""

    def state(self) -> tuple[bool, str]:
        """Whether the query runs, and the error that has ended it, or an empty text."""

    def has_died(self) -> bool:
        """Whether the round's own order ended the query; its error is that order's."""

    def stop(self) -> None:
        """Stop the query."""

    def table(self, order: Order, name: str) -> pa.Table:
        """The table `changes` or `current`, as Spark reads it, or `live` or `rejects`, of a query that does not run."""

    def kill(self) -> None:
        """Kill the driver, and have another one; it runs no query."""

    def stacks(self) -> str:
        """The stacks of the host's threads, for people."""

    @property
    def pid(self) -> int:
        """The process that has Spark's JVM among its children."""


class Died(RuntimeError):
    """A query was ordered to die."""


class Lost(Exception):
    """Spark's process has ended by itself, or gives no answer."""


class SparkHost:
    """Queries in this process."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._pipeline: Pipeline | None = None
        self._query: StreamingQuery | None = None
        self._deaths: list[str] = []
        # How the query has ended: an error is reported once.
        self._outcome: str | None = None

    @property
    def pid(self) -> int:
        """This process."""
        return os.getpid()

    def start(self, order: Order) -> None:
        """Start a query."""
        if self._pipeline is not None:
            # A dead process has no fold that still runs.
            with contextlib.suppress(Exception):
                self._pipeline.stop()
        self._pipeline = self._query = self._outcome = None
        self._deaths = []
        if order.sink == "parquet":
            stream = self._spark.readStream.format("dcp").options(**order.options).load()
            writer = stream.writeStream.format("parquet").option("path", f"{order.path}/files")
            writer = writer.option("checkpointLocation", f"{order.path}/checkpoint")
            if order.until == "available":
                writer = writer.trigger(availableNow=True)
            self._query = writer.start()
            return
        self._pipeline = order.pipeline(self._spark, order.sink)
        plant_pause(self._pipeline, order.fold_pause_s)
        if order.die_at:
            plant_death(self._pipeline, order.die_at, order.die_nth, self._deaths)
        self._pipeline.start(until=order.until, trigger=None)  # type: ignore[arg-type]

    def state(self) -> tuple[bool, str]:
        """Whether the query runs, and its error."""
        if self._outcome is None:
            if self._pipeline is not None:
                is_active = self._pipeline.is_running
            else:
                is_active = self._query is not None and bool(self._query.isActive)
            if is_active:
                return True, ""
            self._outcome = self._ended()
        return False, self._outcome

    def _ended(self) -> str:
        """The error of a query that has ended, or an empty text."""
        failure: Exception | None = None if self._query is None else self._query.exception()
        if self._pipeline is not None:
            failure = self._pipeline.failure
            if failure is None:
                # As a user does who waits for the end.
                try:
                    self._pipeline.await_end()
                except Exception as error:  # noqa: BLE001 - whatever ends a run is reported
                    failure = error
        return "" if failure is None else f"{type(failure).__name__}: {failure}"

    def has_died(self) -> bool:
        """Whether the round's own order ended the query."""
        return bool(self._deaths)

    def stop(self) -> None:
        """Stop the query."""
        try:
            if self._pipeline is not None:
                self._pipeline.stop()
            if self._query is not None:
                self._query.stop()
        except Exception as error:
            self._outcome = f"{type(error).__name__}: {error}"
            raise

    def kill(self) -> None:
        """Only another process can be killed; this one stops the query."""
        self.stop()
        self._pipeline = self._query = None

    def stacks(self) -> str:
        """This process's own are left to the test runner."""
        return ""

    def table(self, order: Order, name: str) -> pa.Table:
        """A table as Spark reads it, or the view `live`."""
        if name in {"live", "rejects"}:
            found = getattr(order.pipeline(self._spark, order.sink), name)()
            return found if isinstance(found, pa.Table) else found.toArrow()
        return self._spark.read.format("delta").load(f"{order.path}/{name}").toArrow()


def plant_death(pipeline: Pipeline, moment: str, nth: int, deaths: list[str]) -> None:
    """Have the writing of tables fail once it has passed a moment so many times; `deaths` gets an entry then."""
    method, when = moment.split()
    target: Any = pipeline.engine
    original: Callable[..., Any] = getattr(target, method)
    passed = 0

    def dying(*arguments: Any, **named: Any) -> Any:
        nonlocal passed
        passed += 1
        if passed == nth and when == "before":
            deaths.append(moment)
            raise Died(f"before {method}")
        result = original(*arguments, **named)
        if passed == nth and when == "after":
            deaths.append(moment)
            raise Died(f"after {method}")
        return result

    setattr(target, method, dying)


def plant_pause(pipeline: Pipeline, seconds: float) -> None:
    """Have folds in the background take longer."""
    target: Any = pipeline.engine
    original: Callable[..., Any] = target.fold

    def slow(*arguments: Any, **named: Any) -> Any:
        if threading.current_thread().name.startswith(_FOLD_THREAD):
            time.sleep(seconds)
        return original(*arguments, **named)

    if seconds:
        target.fold = slow


def quick_folder() -> str | None:
    """The place where temporary folders are quick: in memory, if there is room; None for the usual place.

    A round has hundreds of commits. What a killed node or query loses does not depend on the disk.
    """
    is_roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES_MIN
    return str(_MEMORY) if is_roomy else None


def python_workers(host: Host) -> list[psutil.Process]:
    """The Python processes that run tasks: a daemon of Spark has forked them."""
    found = []
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(host.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                parent = child.parent()
                if parent is not None and all(TASK_WORKER in " ".join(one.cmdline()) for one in (child, parent)):
                    found.append(child)
    return found


def executors(host: Host) -> list[psutil.Process]:
    """The JVMs of the executors; none if the driver runs the tasks itself."""
    found = []
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(host.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "CoarseGrainedExecutorBackend" in " ".join(child.cmdline()):
                    found.append(child)
    return found


# ------------------------------------------------------------------------------------------------- in another process


class RemoteHost:
    """Queries in a process of its own, which can be killed.

    Args:
        log: file for what Spark prints.
        master: Spark's.
        environment: further variables.
    """

    def __init__(self, log: Path, *, master: str = "", environment: Mapping[str, str] | None = None) -> None:
        self._log = log
        self._master = master
        self._environment = dict(environment or {})
        self._tables = 0
        self._child = self._started()

    def _started(self) -> subprocess.Popen[str]:
        # A process that is killed leaves its files behind.
        self._folder = tempfile.mkdtemp(prefix="dcpstream-chaos-", dir=quick_folder())
        with self._log.open("a", encoding="utf-8") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "lab.chaos.host", self._master, self._folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env={**os.environ, "TMPDIR": self._folder, **self._environment},
            )
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=_pass_on, args=(child, self._answers), daemon=True)
        self._reader.start()
        return child

    @property
    def pid(self) -> int:
        """The other process."""
        return self._child.pid

    def start(self, order: Order) -> None:
        """Start a query."""
        self._ask("start", order=asdict(order))

    def state(self) -> tuple[bool, str]:
        """Whether the query runs, and its error."""
        answer = self._ask("state")
        return bool(answer["active"]), str(answer["error"])

    def has_died(self) -> bool:
        """Whether the round's own order ended the query."""
        return bool(self._ask("died")["died"])

    def stop(self) -> None:
        """Stop the query."""
        self._ask("stop")

    def table(self, order: Order, name: str) -> pa.Table:
        """A table as Spark reads it, or the view `live`."""
        self._tables += 1
        file = Path(order.path) / f"read-{self._tables}.arrow"
        self._ask("table", order=asdict(order), name=name, file=str(file))
        with pa.OSFile(str(file)) as source:
            table = pa.ipc.open_file(source).read_all()
        file.unlink()
        return table

    def kill(self) -> None:
        """Kill the driver, with everything that belongs to it, and start another one."""
        self.close()
        self._child = self._started()

    def stacks(self) -> str:
        """The stacks of the process's threads and of the interesting ones of its JVMs."""
        found = []
        before = self._log.stat().st_size
        with contextlib.suppress(psutil.Error):
            self._child.send_signal(signal.SIGUSR1)
            for child in psutil.Process(self._child.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if child.name() == "java":
                        found += _java_stacks(child.pid)
        time.sleep(_DUMP_S)
        with self._log.open(encoding="utf-8", errors="replace") as log:
            log.seek(before)
            found.insert(0, log.read(_STACKS_CHARS))
        return "\n\n".join(found)[:_STACKS_CHARS]

    def close(self) -> None:
        """Kill everything."""
        with contextlib.suppress(psutil.Error):
            family = psutil.Process(self._child.pid).children(recursive=True)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            for process in family:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(family, _KILL_TIMEOUT_S)
        self._child.wait(_KILL_TIMEOUT_S)
        self._reader.join(_KILL_TIMEOUT_S)
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                stream.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        stdin = self._child.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps({"do": what, **arguments}) + "\n")
            stdin.flush()
            text = self._answers.get(timeout=ANSWER_TIMEOUT_S)
        except queue.Empty:
            raise Lost(f"Spark's process gave no answer to '{what}' within {ANSWER_TIMEOUT_S:.0f} s") from None
        except BrokenPipeError:
            text = None
        if text is None:
            raise Lost(f"Spark's process has ended by itself; the end of its log: {self._log_end()}")
        answer: dict[str, Any] = json.loads(text)
        if "failed" in answer:
            raise RuntimeError(answer["failed"])
        return answer

    def _log_end(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")[-1000:]


def _pass_on(child: subprocess.Popen[str], answers: queue.SimpleQueue[str | None]) -> None:
    """Take the answers out of what a process prints; None follows the last one."""
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith(_MARK):
            answers.put(line[1:])
    answers.put(None)


def _java_stacks(pid: int) -> list[str]:
    tool = shutil.which("jstack")
    if tool is None:
        return []
    try:
        text = subprocess.run(
            [tool, str(pid)], capture_output=True, text=True, check=False, timeout=_KILL_TIMEOUT_S
        ).stdout
    except subprocess.TimeoutExpired:
        return [f"jstack {pid} gives no answer"]
    return [block for block in text.split("\n\n") if any(name in block.partition("\n")[0] for name in _JAVA_THREADS)]


def serve(spark: SparkSession) -> None:
    """Answer the orders of a `RemoteHost`."""
    faulthandler.register(signal.SIGUSR1)
    host = SparkHost(spark)
    for line in sys.stdin:
        order = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            if order["do"] == "start":
                host.start(Order(**order["order"]))
            elif order["do"] == "state":
                answer["active"], answer["error"] = host.state()
            elif order["do"] == "died":
                answer["died"] = host.has_died()
            elif order["do"] == "stop":
                host.stop()
            elif order["do"] == "table":
                table = host.table(Order(**order["order"]), order["name"])
                with pa.OSFile(order["file"], "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                    writer.write_table(table)
        except Exception as error:  # noqa: BLE001 - the other side raises it
            answer["failed"] = f"{type(error).__name__}: {error}"
        print(_MARK + json.dumps(answer), flush=True)


def session(master: str = "", folder: str = "") -> SparkSession:
    """A small session with the tables' formats.

    Args:
        master: Spark's.
        folder: for its files.
    """
    from dcpstream_spark import build_session

    settings = {
        **({"spark.local.dir": folder} if folder else {}),
        # So that the log of a file sink names the files of each batch.
        "spark.sql.streaming.fileSink.log.deletion": "false",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
        "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
        "spark.executor.memory": f"{EXECUTOR_MEMORY_MB}m",
        # A cluster gives an application up after so many dead executors, unless one of them runs.
        "spark.deploy.maxExecutorRetries": "-1",
        # Small batches: compiling code for them costs more than it saves.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    return build_session("chaos", master=master or "local[2,4]", driver_memory="1g", settings=settings, tables="delta")


if __name__ == "__main__":
    with python_command(Path(sys.argv[2])) as program:
        os.environ["PYSPARK_PYTHON"] = str(program)
        serve(session(*sys.argv[1:]))
