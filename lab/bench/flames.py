"""Flame graphs of where the time goes, for docs/explanation/performance.md.

python -m lab.bench.flames [set] [backfill] [decode] [spark]

py-spy, which is no dependency of this project (`pip install py-spy`), samples a workload in a process of its own, with
the functions of the native kernel and of Python's library. Its stacks become a picture: each box is a function, as wide
as its share of the time, above the function that called it.
"""

from __future__ import annotations

import html
import multiprocessing
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click

PICTURES = Path(__file__).parents[2] / "docs" / "images"
RATE_HZ = 500
SECONDS = 6.0
SPACE_MB = 100
"""History that a backfill sends again and again."""
REQUESTS, WINDOW = 50_000, 50
DOCUMENTS = 200_000
"""Documents that a task reads again and again."""
DRAINED_BYTES = 64 * 1024
"""Bytes that Spark's JVM is assumed to read at once."""
LEAST_SHARE = 0.004
"""Narrower boxes are left out: nobody could read them, and the pictures stay small."""
WIDTH, ROW, LETTER, HEAD = 960, 17, 6.3, 40
LEAST_LETTERS = 3
KERNEL, PYTHON, SYSTEM = "#e8a33d", "#7fb2d9", "#c9c9c9"
KERNEL_FILES = frozenset(path.name for path in Path(__file__).parents[2].glob("native/*.[ch]"))
WAITING = frozenset({"EpollSelector.select", "Condition.wait"})
"""Stacks with these functions take no CPU time: py-spy counts them if it looks at native functions."""
_PLACE = re.compile(r" \(([^()]*?)(?::\d+)?\)$")


def work_set() -> None:
    """SETs of known keys in pipelines of 50, in process."""
    from dcpstream.wire import HEADER_BYTES
    from lab.bench.ingest import new_session, requests

    data = requests(REQUESTS, b"\x80" + b"v" * 255)
    step = (HEADER_BYTES + int.from_bytes(data[8:12], "big")) * WINDOW
    pieces = [data[at : at + step] for at in range(0, len(data), step)]
    until = time.monotonic() + SECONDS

    def answering() -> None:
        for piece in pieces:
            engine.set_time(time.monotonic(), time.time_ns())
            session.receive(piece)
            engine.end_turn()

    while time.monotonic() < until:
        session = new_session()
        engine = session.engine
        for _ in range(4):
            answering()


def work_backfill() -> None:
    """A node's backfills to eight readers in another process."""
    from dcpstream_node import Node
    from lab.bench.latency import VBUCKETS, run_backfills
    from lab.bench.send import PASSWORD, fill

    context = multiprocessing.get_context("spawn")
    with Node(vbuckets=VBUCKETS, system_scope=False, password=PASSWORD) as node:
        fill(node, 256, SPACE_MB * 1024 * 1024)
        control, other = context.Pipe()
        readers = context.Process(target=run_backfills, args=(node.port, other), daemon=True)
        readers.start()
        control.recv()
        time.sleep(SECONDS)
        control.send("stop")
        control.recv()
        readers.join()


def work_decode() -> None:
    """Decoding received bytes into the columns of the wire."""
    from lab.bench.decode import RECEIVE_BYTES, corpus
    from tests.kit.wire_columns import batch_of, decode_wire

    buffers = corpus(256, 4 * RECEIVE_BYTES, RECEIVE_BYTES)
    until = time.monotonic() + SECONDS

    def decoding() -> None:
        for buffer in buffers:
            batch_of(decode_wire(buffer))

    while time.monotonic() < until:
        decoding()


def work_spark() -> None:
    """A task of the Spark source with all columns, without Spark: its batches go into a socket as Spark writes them.

    Two threads, as in a worker: the task's own, and the one that reads ahead. Another process takes the bytes.
    """
    from pyspark.sql.pandas.serializers import ArrowStreamSerializer

    from dcpstream_spark.data_source import DcpBatchReader
    from dcpstream_spark.options import SourceOptions
    from lab.bench.spark import access, load_documents, node_process

    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    ours, other = socket.socketpair()
    drain = multiprocessing.get_context("fork").Process(target=_take_all, args=(ours, other), daemon=True)
    drain.start()
    other.close()
    with ours, node_process() as connection_string, os.fdopen(os.dup(ours.fileno()), "wb", DRAINED_BYTES) as output:
        load_documents(connection_string, DOCUMENTS, 256)
        reader = DcpBatchReader(SourceOptions.parse({**access(connection_string), "numPartitions": "2"}))
        tasks = reader.partitions()
        until = time.process_time() + SECONDS  # most of the rest is waiting, the more on a busy machine
        while time.process_time() < until:
            for task in tasks:
                ArrowStreamSerializer().dump_stream(reader.read(task), output)
    drain.join()


def _take_all(ours: socket.socket, other: socket.socket) -> None:
    ours.close()
    buffer = bytearray(DRAINED_BYTES)
    while other.recv_into(buffer):
        pass


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload to sample.

    Attributes:
        run: does it for some seconds.
        root: the name of the function above which the picture begins.
        title: the picture's.
        parts: function → label, if the picture has a box for each of several functions at its bottom; else empty.
    """

    run: Callable[[], None]
    root: str
    title: str
    parts: Mapping[str, str] = field(default_factory=dict)


WORKLOADS: Mapping[str, Workload] = {
    "set": Workload(work_set, "answering", "SET of known keys, 50 at a time, without sockets"),
    "backfill": Workload(work_backfill, "KvServer.turn", "Sending while eight backfills run"),
    "decode": Workload(work_decode, "decoding", "Decoding 4 MiB into key, value and eight fixed columns"),
    "spark": Workload(
        work_spark,
        "a task",
        "Python's part of a task of the Spark source, all columns, 256 bytes; without waiting",
        {
            "ArrowStreamSerializer.dump_stream": "the task's thread: gives batches to Spark",
            "run": "the thread that reads ahead",
        },
    ),
}


@dataclass(slots=True)
class Box:
    """A function in its callers: samples in it and above, and the functions that it called."""

    name: str
    colour: str = PYTHON
    samples: int = 0
    above: dict[str, Box] = field(default_factory=dict)


def shown(frame: str) -> tuple[str, str]:
    """A function's name without its place, and the colour of whoever wrote it; without a name, the name of its file."""
    found = _PLACE.search(frame)
    name, place = (frame[: found.start()], Path(found[1]).name) if found else (frame, "")
    colour = KERNEL if place in KERNEL_FILES else PYTHON if place.endswith(".py") else SYSTEM
    if name.startswith("0x"):
        return place.partition(".")[0], colour
    return name.rpartition(".<locals>.")[2].partition(".isra")[0].partition(".constprop")[0], colour


def tree(lines: Iterable[str], root: str, parts: Mapping[str, str] = types.MappingProxyType({})) -> Box:
    """The stacks above a function, from py-spy's lines: frames with semicolons between, then a number.

    Args:
        lines: of py-spy.
        root: the name of the function; with `parts` only that of the box at the bottom.
        parts: functions above which stacks count, and their labels.
    """
    bottom = Box(root)
    for line in lines:
        stack, _, count = line.rpartition(" ")
        frames = [shown(frame) for frame in stack.split(";") if "object.h" not in frame]  # parts of their callers
        first = next((at for at, (name, _) in enumerate(frames) if name in (parts or {root})), None)
        if first is None or any(name in WAITING for name, _ in frames):
            continue
        above = frames[first + 1 :]
        if parts:
            above.insert(0, (parts[frames[first][0]], PYTHON))
        box = bottom
        box.samples += int(count)
        for name, colour in above:
            if name != box.name:  # else a call that the compiler or py-spy shows twice
                box = box.above.setdefault(name, Box(name, colour))
                box.samples += int(count)
    return bottom


def picture(bottom: Box, title: str) -> str:
    """The stacks as SVG."""
    boxes: list[str] = []
    deepest = 0

    def place(box: Box, left: float, depth: int) -> None:
        nonlocal deepest
        width = WIDTH * box.samples / bottom.samples
        deepest = max(deepest, depth)
        share = f"{box.name}: {100 * box.samples / bottom.samples:.1f} %"
        fits = int((width - 4) / LETTER)
        label = box.name if len(box.name) <= fits else box.name[: fits - 1] + "…" if fits > LEAST_LETTERS else ""
        top = f"{{{depth}}}"
        boxes.append(
            f'<g><title>{html.escape(share)}</title><rect x="{left:.1f}" y="{top}" width="{max(width - 0.6, 0.4):.1f}" '
            f'height="{ROW - 1}" fill="{box.colour}"/>'
            + (f'<text x="{left + 3:.1f}" y="{top}" dy="12">{html.escape(label)}</text>' if label else "")
            + "</g>"
        )
        for each in sorted(box.above.values(), key=lambda each: -each.samples):
            if each.samples >= LEAST_SHARE * bottom.samples:
                place(each, left, depth + 1)
                left += WIDTH * each.samples / bottom.samples

    place(bottom, 0.0, 0)
    height = (deepest + 1) * ROW + HEAD
    drawn = [re.sub(r'y="\{(\d+)\}"', lambda found: f'y="{height - (int(found[1]) + 1) * ROW}"', box) for box in boxes]
    legend = "orange: the native kernel; blue: Python; grey: Python's own library, the C library, the system"
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="monospace" '
                'font-size="10.5">'
            ),
            '<rect width="100%" height="100%" fill="#fff"/>',
            f'<text x="3" y="14" font-size="12">{html.escape(title)}</text><text x="3" y="28">{legend}</text>',
            *drawn,
            "</svg>",
            "",
        ]
    )


def sampled(name: str) -> list[str]:
    """py-spy's lines of a workload.

    Raises:
        ClickException: py-spy is not installed, or it failed.
    """
    sampler = shutil.which("py-spy")
    if sampler is None:
        raise click.ClickException("py-spy is not on the PATH: pip install py-spy")
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder, "stacks")
        options = ["record", "--native", "--rate", str(RATE_HZ), "--format", "raw", "--output", str(raw)]
        code = f"from lab.bench.flames import WORKLOADS; WORKLOADS[{name!r}].run()"
        done = subprocess.run([sampler, *options, "--", sys.executable, "-c", code], check=False, capture_output=True)
        if not raw.exists():
            raise click.ClickException(f"py-spy failed: {done.stderr.decode()[-300:]}")
        return raw.read_text(encoding="utf-8").splitlines()


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(tuple(WORKLOADS)))
@click.option("--folder", type=click.Path(path_type=Path), default=PICTURES, show_default="docs/images")
def main(names: tuple[str, ...], folder: Path) -> None:
    """Sample the workloads, all without names, and write a flame graph of each."""
    for name in names or tuple(WORKLOADS):
        workload = WORKLOADS[name]
        bottom = tree(sampled(name), workload.root, workload.parts)
        (folder / f"flame-{name}.svg").write_text(picture(bottom, workload.title), encoding="utf-8")
        click.echo(f"{name}: {bottom.samples} samples")


if __name__ == "__main__":
    main()
