"""List the modules that one SET passes through until it is a row for Spark.

    python lab/tools/walk.py [--root DIRECTORY] [--disk] [--modules]

A node runs in this process. A client sends one SET over a socket, and a task of the Spark source reads the change over
another socket into an Arrow row (`dcpstream_spark.source.reading`; no Java is needed). Connections, logins and the
stream are opened first. From the moment of the SET until the row arrives, a profile hook in every thread notes the
functions of the packages that are called. Timers of the node run in the same moments, so the walk is made several
times, and only modules that every round needs are listed.

Two numbers follow for each thread: its modules, and its changes of module, which are the calls into another module than
that of the call before. A reader who follows the program turns a page at each of them. Both are of the round with the
fewest.

`--root` takes another checkout, to compare two versions. `--disk` keeps the bucket on disk instead of in memory.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import itertools
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from lab.layout import sources  # noqa: E402

ROUNDS = 5
"""Walks of which the common part is printed."""

PATIENCE_S = 30.0
"""A row that takes longer never comes."""


class Recorder:
    """A profile hook for all threads: which modules of the packages were called, in order, by thread."""

    def __init__(self, sources: Iterable[Path]) -> None:
        self._sources = tuple(f"{source}/" for source in sources)
        self._is_on = False
        self.modules: dict[str, str] = {}
        self.calls: list[tuple[str, str]] = []

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """Note a call while recording. Bodies of modules and classes do not count: importing is set-up."""
        if not self._is_on or event != "call":
            return
        code = frame.f_code
        if code.co_filename.startswith(self._sources) and not code.co_name.startswith("<module"):
            module = code.co_filename.rpartition("/src/")[2]
            thread = threading.current_thread().name
            self.modules.setdefault(module, thread)
            self.calls.append((thread, module))

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record what runs in the body."""
        self.modules, self.calls = {}, []
        self._is_on = True
        try:
            yield
        finally:
            self._is_on = False


@dataclasses.dataclass(frozen=True)
class Round:
    """One walk.

    Attributes:
        modules: in order of their first call, with the thread of that call.
        calls: thread and module of each call.
    """

    modules: dict[str, str]
    calls: list[tuple[str, str]]

    def of(self, thread: str) -> list[str]:
        """The modules of a thread's calls."""
        return [module for name, module in self.calls if name == thread]

    @property
    def threads(self) -> list[str]:
        """The threads that took part."""
        return list(dict.fromkeys(name for name, _ in self.calls))


def changes(modules: list[str]) -> int:
    """The number of changes of module in a sequence of calls."""
    return sum(one != other for one, other in itertools.pairwise(modules))


def walk(record: Recorder, folder: str | None) -> list[Round]:
    """The rounds."""
    node_package = importlib.import_module("dcpstream_node")
    client = importlib.import_module("dcpstream.client")
    threading.setprofile(record)
    rounds = []
    with node_package.Node(vbuckets=1, **({"path": folder} if folder else {})) as node:
        login = {"username": "Administrator", "password": "password", "bucket": "default"}
        with client.KvClient(node.connection_string, **login) as kv:
            token = kv.set("flight::UA1545", b'{"dest": "IAH"}')
            task = _task({"connectionString": node.connection_string, **login})
            for number in range(ROUNDS):
                rows: queue.Queue[Any] = queue.Queue()
                reader = threading.Thread(target=_read, args=(task, token, rows), name="spark task", daemon=True)
                reader.start()
                _wait_for_stream(kv)
                sys.setprofile(record)
                with record.recording():
                    token = kv.set("flight::UA1545", b'{"dest": "IAH", "delay": %d}' % number)
                    row = rows.get(timeout=PATIENCE_S)
                sys.setprofile(None)
                reader.join(PATIENCE_S)
                if not isinstance(row, dict) or row["seqno"] != token.seqno:
                    raise SystemExit(f"the task yielded {row!r}, not the change with seqno {token.seqno}")
                rounds.append(Round(record.modules, record.calls))
    threading.setprofile(None)
    return rounds


def _task(access: dict[str, str]) -> tuple[Any, Any]:
    """Options and a planned partition of the source; the partition is a template for the range that is read."""
    source = importlib.import_module("dcpstream_spark.data_source").DcpDataSource(access)
    options = importlib.import_module("dcpstream_spark.options").SourceOptions.parse(access)
    (partition,) = source.reader(source.schema()).partitions()
    return options, partition


def _read(task: tuple[Any, Any], token: Any, rows: queue.Queue[Any]) -> None:
    """Read the one change after `token`, as an executor does."""
    model = importlib.import_module("dcpstream.model")
    reading = importlib.import_module("dcpstream_spark.source.reading")
    options, template = task
    (planned,) = template.ranges
    start = model.StreamOffset(token.vbuuid, token.seqno, token.seqno, token.seqno)
    range_ = dataclasses.replace(planned.range, start=start, end_seqno=token.seqno + 1)
    partition = dataclasses.replace(template, ranges=(dataclasses.replace(planned, range=range_),))
    try:
        for batch in reading.read_partition(options, partition):
            for row in batch.to_pylist():
                rows.put(row)
    except Exception as error:  # noqa: BLE001 - the main thread reports it
        rows.put(error)


def _wait_for_stream(kv: Any) -> None:
    """Wait until the node says that the task's stream sends changes as they come."""
    deadline = time.monotonic() + PATIENCE_S
    while not any(name.endswith("_state") and state == "in-memory" for name, state in kv.stats("dcp").items()):
        if time.monotonic() > deadline:
            raise SystemExit("the task's stream did not open")
        time.sleep(0.01)


def main() -> None:
    """Walk, and print the modules."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="of the checkout whose packages run")
    parser.add_argument("--disk", action="store_true")
    parser.add_argument("--modules", action="store_true", help="print the names of the modules alone")
    arguments = parser.parse_args()
    folders = sources(arguments.root.resolve())
    sys.path[:0] = map(str, folders)
    with tempfile.TemporaryDirectory() as folder:
        rounds = walk(Recorder(folders), folder if arguments.disk else None)
    common = [module for module in rounds[0].modules if all(module in other.modules for other in rounds)]
    for number, module in enumerate(common, 1):
        print(module if arguments.modules else f"{number:3}  {module:52} {rounds[0].modules[module]}")
    if arguments.modules:
        return
    for thread in rounds[0].threads:
        of_thread = [each.of(thread) for each in rounds]
        modules, turns = min(len(set(each)) for each in of_thread), min(map(changes, of_thread))
        print(f"{thread}: {modules} modules, {turns} changes of module")
    print(f"one SET to a row for Spark: {len(common)} modules")


if __name__ == "__main__":
    main()
