"""Our client compared with others: each drains the same senders, one after the other, in several rounds.

python -m lab.bench.peers [--documents N] [--rounds N] [--server CONNECTION-STRING] [--page FILE.md] [--plot FILE.svg]

The senders are one that behaves as a server does (`server_turns`), our node, and a server if one is given. All clients
read the same bucket from its beginning to its end and drop what comes. CPU time is that of the client's
whole process, user and system; next to it stands the same less a run that only connects, because a Java machine and an
import of pyarrow take their time before the first message. Rounds alternate, so a slow stretch affects all clients. The
programs of the others are in `lab/bench/drains`, and are built with the archives and modules of `interop`.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click

from lab.bench.client import LOGIN, TURNS_VBUCKETS, load, node_process, read_all, turns_process
from lab.bench.run import machine, versions
from lab.interop import building
from lab.layout import ROOT

HERE = Path(__file__).parent
DRAINS = HERE / "drains"
BUILT = ROOT / ".cache" / "peers"
PAGE = ROOT / "docs" / "explanation" / "peers.md"
PLOT = ROOT / "docs" / "images" / "peers.svg"
RESULTS = HERE / "peers.json"
VALUE_BYTES = 256
VBUCKETS = 1024
FIRST, LAST = "<!-- figures: make bench-peers -->", "<!-- end of the figures -->"


@dataclass(frozen=True, slots=True)
class Peer:
    """A client that drains a node.

    Attributes:
        name: for the table.
        version: of the library.
        command: without connection string and count.
        more: arguments after the count.
    """

    name: str
    version: str
    command: tuple[str, ...]
    more: tuple[str, ...] = ()


@dataclass(slots=True)
class Spent:
    """The costs of a client's rounds, in seconds.

    Attributes:
        cpu, wall: a drain.
        start_cpu: a run that only connects.
    """

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    start_cpu: list[float] = field(default_factory=list)


def gocbcore() -> list[Peer]:
    """The program around gocbcore."""
    building.go(print)  # its modules are there afterwards
    compiler = str(shutil.which("go"))
    folder, program = BUILT / "go", BUILT / "drain"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(DRAINS / "drain.go", folder / "main.go")
    for name in ("go.mod", "go.sum"):
        shutil.copyfile(building.HERE / "go" / name, folder / name)
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": "-buildvcs=false -mod=readonly"}
    subprocess.run([compiler, "build", "-o", str(program), "."], cwd=folder, env=environment, check=True)
    modules = (folder / "go.mod").read_text(encoding="utf-8").split()
    return [Peer("gocbcore", modules[modules.index("github.com/couchbase/gocbcore/v10") + 1], (str(program),))]


def java_dcp_client() -> list[Peer]:
    """The programs around java-dcp-client, with the Java machine's own choice of compilers."""
    command = building.java(print)
    archives = command[-1].rpartition(":")[2]
    classes = BUILT / "java"
    classes.mkdir(parents=True, exist_ok=True)
    compiler = str(shutil.which("javac"))
    subprocess.run([compiler, "-d", str(classes), "-cp", archives, str(DRAINS / "Drain.java")], check=True)
    version = next(path.stem.rpartition("-")[2] for path in Path(archives).parent.glob("dcp-client-*.jar"))
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    start = (command[0], "-Xmx512m", quiet, "-cp", f"{classes}:{archives}", "Drain")
    return [Peer(f"java-dcp-client, {level} level", version, start, (level,)) for level in ("low", "high")]


def dcpstream() -> list[Peer]:
    """Our client: batches of Arrow with all columns, and single changes."""
    start = (sys.executable, str(DRAINS / "dcpstream_drain.py"))
    version = versions()["dcpstream"]
    return [
        Peer("dcpstream, Arrow batches", version, start, ("batches",)),
        Peer("dcpstream, changes()", version, start, ("changes",)),
    ]


FAMILIES: Sequence[Callable[[], list[Peer]]] = (dcpstream, gocbcore, java_dcp_client)


def drained(peer: Peer, connection_string: str, count: int) -> tuple[float, float]:
    """(CPU seconds, wall seconds) of one run.

    Raises:
        RuntimeError: it failed, or brought another number of documents.
    """
    began = time.perf_counter()
    command = [*peer.command, connection_string, str(count), *peer.more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said = child.stdout.read().split()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode or not said or int(said[-1]) != count:
        raise RuntimeError(f"{peer.name}: exit status {child.returncode}, {said[-1:]} of {count} documents")
    return used.ru_utime + used.ru_stime, time.perf_counter() - began


def measured(peers: Sequence[Peer], connection_string: str, count: int, rounds: int) -> dict[str, Spent]:
    """The cost of each client, in alternating rounds."""
    spent = {peer.name: Spent() for peer in peers}
    for _ in range(rounds):
        for peer in peers:
            start_cpu, _ = drained(peer, connection_string, 0)
            cpu, wall = drained(peer, connection_string, count)
            mine = spent[peer.name]
            mine.start_cpu.append(start_cpu)
            mine.cpu.append(cpu)
            mine.wall.append(wall)
            print(f"{peer.name}: {cpu:.2f} s of CPU, {start_cpu:.2f} to start, {wall:.2f} s", flush=True)
    return spent


def table(peers: Sequence[Peer], spent: Mapping[str, Spent], left_out: Sequence[str]) -> list[str]:
    """The figures as Markdown."""
    net = {name: statistics.median(mine.cpu) - statistics.median(mine.start_cpu) for name, mine in spent.items()}
    lines = [
        "| client | version | CPU, s | CPU without the start, s | times ours | wall, s | range of CPU, s |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for peer in peers:
        mine = spent[peer.name]
        lines.append(
            f"| {peer.name} | {peer.version} | {statistics.median(mine.cpu):.2f} | {net[peer.name]:.2f} | "
            f"{net[peer.name] / net[peers[0].name]:.1f} | {statistics.median(mine.wall):.2f} | "
            f"{min(mine.cpu):.2f} to {max(mine.cpu):.2f} |"
        )
    return [*lines, *[line for why in left_out for line in ("", f"Left out: {why}.")]]


def plot(peers: Sequence[Peer], spent: Mapping[str, Spent]) -> str:
    """The CPU time of each client as bars, SVG."""
    most = max(statistics.median(mine.cpu) for mine in spent.values())
    height, left, width = 30, 220, 460
    rows = []
    for number, peer in enumerate(peers):
        mine, top = spent[peer.name], number * height + 8
        cpu, start = statistics.median(mine.cpu), statistics.median(mine.start_cpu)
        ends = [round(value / most * width, 1) for value in (start, cpu)]
        rows += [
            f'<text x="{left - 8}" y="{top + 14}" text-anchor="end">{peer.name}</text>',
            f'<rect x="{left}" y="{top}" width="{ends[1]}" height="18" fill="#2f6f9f"/>',
            f'<rect x="{left}" y="{top}" width="{ends[0]}" height="18" fill="#a9bccb"/>',
            f'<text x="{left + ends[1] + 6}" y="{top + 14}">{cpu:.2f} s</text>',
        ]
    foot = "CPU seconds of the client; the light part is its start"
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {len(peers) * height + 34}"
 font-family="sans-serif" font-size="13" fill="#333">
<rect width="100%" height="100%" fill="#fff"/>
{chr(10).join(rows)}
<text x="{left}" y="{len(peers) * height + 24}">{foot}</text>
</svg>
"""


def written(page: str, lines: Sequence[str], first: str = FIRST, last: str = LAST) -> str:
    """The page with other figures between two lines."""
    before, _, rest = page.partition(first)
    _, _, after = rest.partition(last)
    return "\n".join((before + first, "", *lines, "", last)) + after


@dataclass(frozen=True, slots=True)
class Sender:
    """A sender of documents to the clients.

    Attributes:
        title: the heading of its table.
        vbuckets: of the bucket; None if they are not known.
        start: a context with its connection string, for so many documents; None for a server that is there.
        connection_string: of a server that is there.
    """

    title: str
    vbuckets: int | None
    start: Callable[[int], AbstractContextManager[str]] | None = None
    connection_string: str = ""


def turns(vbuckets: int) -> Sender:
    """A sender that behaves as a server does."""
    title = f"A sender that behaves as a server does, {vbuckets:,} vbuckets"
    return Sender(title, vbuckets, lambda count: turns_process(count, VALUE_BYTES, vbuckets))


@contextmanager
def _own_node(count: int) -> Iterator[str]:
    with node_process(VBUCKETS) as connection_string:
        load(connection_string, count, VALUE_BYTES)
        yield connection_string


SENDERS = (
    turns(VBUCKETS),
    turns(TURNS_VBUCKETS),
    Sender(f"The embedded node, {VBUCKETS:,} vbuckets", VBUCKETS, _own_node),
)
"""Those that are always there; the first one is that of the plot."""


def documents_of(connection_string: str) -> int:
    """The number of documents that a server sends: what our client reads."""
    from dcpstream.client import BucketReader

    with BucketReader(connection_string, **LOGIN) as cluster:
        ends = cluster.high_seqnos()
    return read_all(connection_string, ends, ["seqno"])


def compared(
    sender: Sender, peers: Sequence[Peer], documents: int, rounds: int, left_out: Sequence[str]
) -> tuple[dict[str, Spent], str, list[str]]:
    """(costs of each client, conditions, the section of the page)."""
    load_at_start = os.getloadavg()[0]
    if sender.start is None:
        documents = documents_of(sender.connection_string)
        spent = measured(peers, sender.connection_string, documents, rounds)
        what = f"{documents:,} documents"
    else:
        with sender.start(documents) as connection_string:
            spent = measured(peers, connection_string, documents, rounds)
        what = f"{documents:,} documents of {VALUE_BYTES} bytes"
    conditions = (
        f"{what}, medians of {rounds} alternating rounds; load average {load_at_start:.1f} at the start and "
        f"{os.getloadavg()[0]:.1f} at the end."
    )
    return spent, conditions, ["", f"### {sender.title}", "", conditions, "", *table(peers, spent, left_out)]


@click.command()
@click.option("--documents", default=1_000_000, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--server", default="", help="connection string of a server with a bucket `default`, also measured")
@click.option("--server-title", default="A server", help="the heading of its table, such as its release")
@click.option("--page", type=click.Path(path_type=Path), default=PAGE, show_default="docs/explanation/peers.md")
@click.option("--plot", "picture", type=click.Path(path_type=Path), default=PLOT, show_default="docs/images/peers.svg")
@click.option("--output", type=click.Path(path_type=Path), default=RESULTS, show_default="lab/bench/peers.json")
def main(documents: int, rounds: int, server: str, server_title: str, page: Path, picture: Path, output: Path) -> None:
    """Measure our client and others, and write the tables and the plot into the documentation."""
    peers: list[Peer] = []
    left_out: list[str] = []
    for family in FAMILIES:
        try:
            peers += family()
        except building.Missing as why:
            left_out.append(f"{family.__name__} ({why})")
    facts = machine()
    lines = [f"{facts['cpu']}, {facts['cores']} cores, {facts['system']}, Python {versions()['python']}."]
    results: dict[str, object] = {}
    senders = [*SENDERS, *([Sender(server_title, None, connection_string=server)] if server else [])]
    for sender in senders:
        print(sender.title, flush=True)
        spent, conditions, section = compared(sender, peers, documents, rounds, left_out)
        lines += section
        if not results:
            picture.write_text(plot(peers, spent), encoding="utf-8")
        results[sender.title] = {
            "conditions": conditions,
            "clients": {
                peer.name: {
                    "version": peer.version,
                    "cpu_s": spent[peer.name].cpu,
                    "start_cpu_s": spent[peer.name].start_cpu,
                    "wall_s": spent[peer.name].wall,
                }
                for peer in peers
            },
        }
        # After each sender, for the whole takes half an hour and may be interrupted.
        output.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        page.write_text(written(page.read_text(encoding="utf-8"), lines), encoding="utf-8")
    click.echo("\n".join(lines))


if __name__ == "__main__":
    main()
