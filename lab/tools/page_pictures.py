"""Take the pictures of the status pages for the documentation: `make pictures`. It needs a Chromium (`make browser`).

Three nodes serve a bucket of flights that somebody writes to and two clients and a pipeline read, so that no page is
empty.

    python -m lab.tools.page_pictures [NAME...]     all pictures by default
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from PIL import Image

from dcpstream.client import Client, KvClient
from dcpstream_node import Cluster
from dcpstream_spark import Pipeline, build_session
from dcpstream_spark.tables import Monitor
from tests.kit.browser import NARROW, WHY_SKIPPED, WIDE, Browser, browser_path, browsing
from tests.kit.rest import ask
from tests.kit.waiting import wait_until

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
VBUCKETS = 64
FLIGHTS = 2_000
WRITE_PAUSE_S = 0.02
"""Pause between two batches of writes: some hundred documents a second."""
PLOT_POINTS = 12
"""Points of a plot before its picture is taken; the page adds one every two seconds."""
COLOURS = 256
"""Colours of a picture: the pages have few, and a palette makes a file a third as large."""
HEIGHT_MAX = 1500
"""Pixels; what is further down is left out."""
PIPELINE = "pipeline"
"""The name of the picture of a pipeline."""
BATCHES = 8
"""Batches of the pipeline before its picture is taken."""
IS_DRAWN = (
    "[...document.querySelectorAll('.plot')].every((plot) =>"
    f" plot.querySelector('.line')?.getAttribute('d').split('L').length >= {PLOT_POINTS})"
)
"""Also true of a page without a plot."""


def main() -> int:
    """Take the pictures. Returns the exit status."""
    if browser_path() is None:
        raise SystemExit(WHY_SKIPPED)
    wanted = sys.argv[1:]
    with Cluster(nodes=3, replicas=1, vbuckets=VBUCKETS) as cluster, busy(cluster) as reader, browsing() as browser:
        node = cluster.nodes[0].node
        browser.log_in(node.username, node.password)
        for name, path, size, is_dark in pages(reader):
            if not wanted or name in wanted:
                url = f"http://127.0.0.1:{node.mgmt_port}{path}"
                take(browser, url, IMAGES / f"page-{name}.png", size, is_dark=is_dark)
        if not wanted or PIPELINE in wanted:
            with watched(cluster) as monitor:
                take(browser, f"http://127.0.0.1:{monitor.port}/", IMAGES / f"{PIPELINE}.png", WIDE, is_dark=False)
    return 0


def pages(reader: str) -> Iterator[tuple[str, str, tuple[int, int], bool]]:
    """Name of the picture, path, size of the window, and whether the colour scheme is dark."""
    yield "node", "/ui", WIDE, False
    yield "node-dark-narrow", "/ui", NARROW, True
    yield "bucket", "/ui/buckets/travel?vbucket=7", WIDE, False
    yield "documents", "/ui/buckets/travel/documents/air/flights?prefix=flight::B61", WIDE, False
    yield "document", "/ui/buckets/travel/documents/air/flights?key=flight::B61", WIDE, False
    yield "reader", f"/ui/buckets/travel/readers/{quote(reader)}", WIDE, False
    yield "cluster", "/ui/cluster", WIDE, False
    yield "faults", "/ui/faults", WIDE, False


def take(browser: Browser, url: str, file: Path, size: tuple[int, int], *, is_dark: bool) -> None:
    """Open a page, wait for its plots, and save its picture."""
    browser.look(size, is_dark=is_dark)
    browser.open(url)
    browser.wait_for(IS_DRAWN)
    browser.picture(file)
    with Image.open(file) as picture:
        seen = picture.convert("RGB").crop((0, 0, picture.width, min(picture.height, HEIGHT_MAX)))
    small = seen.quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    small.save(file, optimize=True)
    print(f"wrote {file}  {file.stat().st_size / 1000:.0f} kB", flush=True)


@contextmanager
def watched(cluster: Cluster) -> Iterator[Monitor]:
    """The monitor of a pipeline that follows the flights into tables on this machine."""
    access = {"connectionString": cluster.connection_string, "bucket": "travel"}
    access |= {"username": cluster.username, "password": cluster.password}
    session = build_session("dcpstream pictures", master="local[2]", driver_memory="1g", tables=("delta",))
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            with Pipeline(session, f"{folder}/flights", access) as pipeline, Monitor([pipeline]) as monitor:
                pipeline.start()
                wait_until(lambda: (pipeline.progress().batch_id or 0) >= BATCHES, "the pipeline is too slow")
                yield monitor
        finally:
            session.stop()


@contextmanager
def busy(cluster: Cluster) -> Iterator[str]:
    """Write flights into a bucket that two clients read; yields the name of a reader's connection to the first node."""
    node = cluster.nodes[0].node
    cluster.create_bucket("travel", vbuckets=VBUCKETS)
    login: dict[str, Any] = {"username": node.username, "password": node.password, "bucket": "travel"}
    for path, name in (("", "air"), ("/air/collections", "flights")):
        answer = ask(node, "POST", f"/pools/default/buckets/travel/scopes{path}", {"name": name})
        assert answer.status == 200, answer
    ask(node, "POST", "/_dcpstream/faults", {"kind": "delay", "delay_s": "0.01", "connection": "slow-client"})
    ask(
        node,
        "POST",
        "/_dcpstream/faults",
        {"kind": "refuse", "status": "TMPFAIL", "share": "0.05", "connection": "app"},
    )
    is_enough, over = threading.Event(), threading.Event()  # for who reads, and then for who writes

    def write() -> None:
        with KvClient(node.connection_string, **login, collection="air.flights") as documents:
            number = 0
            while not over.wait(WRITE_PAUSE_S):
                batch = [(f"flight::B6{(number + each) % FLIGHTS}", '{"dest": "BQN"}') for each in range(10)]
                documents.set_many(batch)
                number += len(batch)

    def read(client: Client) -> None:
        for _ in client.changes():
            if is_enough.is_set():
                return

    def readers() -> list[str]:
        assert node.engine is not None, "the nodes are in this process"
        return [
            name
            for name in node.engine.buckets["travel"].dcp_sessions
            if "replication" not in name and "control" not in name
        ]

    with ExitStack() as stack:
        writing = threading.Thread(target=write)
        writing.start()
        stack.callback(writing.join)  # at last: a reader ends at the next change
        stack.callback(over.set)
        for _ in range(2):
            client = stack.enter_context(Client(node.connection_string, **login))
            reading = threading.Thread(target=read, args=(client,))
            reading.start()
            stack.callback(reading.join)
        stack.callback(is_enough.set)
        wait_until(readers)
        yield readers()[0]


if __name__ == "__main__":
    sys.exit(main())
