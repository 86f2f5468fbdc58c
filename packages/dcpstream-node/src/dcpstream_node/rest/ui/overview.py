"""The content of the node's page: its health, its buckets, and the clients that read it."""

from __future__ import annotations

from dcpstream.model import VbucketState
from dcpstream.pages.markup import (
    NONE,
    Cell,
    Row,
    counter,
    duration,
    heads,
    link,
    meter,
    number,
    path,
    plural,
    size,
    small,
    state,
    table,
    text,
    tiles,
)
from dcpstream.pages.plots import Series, plots
from dcpstream_node.engine import Bucket, Engine, User
from dcpstream_node.rest.authorization import allows, visible_buckets
from dcpstream_node.rest.health import UNSERVED, state_of
from dcpstream_node.rest.site import Site
from dcpstream_node.rest.ui.reader_page import clients_table
from dcpstream_node.rest.ui.readers import reader_of
from dcpstream_node.summary import BucketSummary, resident_bytes, summarize_bucket
from dcpstream_node.tasks.compactor import CompactionStatus

NEARLY_FULL = 0.95
"""Share of the quota from which a bucket's meter warns."""

_BUCKETS = heads("Bucket", "State", "#Documents", "#Requests/s", "#Memory", "#Disk", "#Not on disk yet", "#vBuckets")


def overview(site: Site, user: User) -> str:
    """The content, as far as a user may see it."""
    engine = site.engine
    buckets = [(bucket, summarize_bucket(bucket)) for bucket in visible_buckets(user, engine)]
    unserved = [name for name in engine.damaged if allows(user, "bucket.read", {"bucket": name})]
    seen = [figures for _, figures in buckets]
    ops = sum(sum(figures.ops.values()) for figures in seen)
    readers = [reader_of(bucket.name, each) for bucket, figures in buckets for each in figures.dcp]
    compactions = site.buckets.compactions()
    rows = [_row(bucket, figures, compactions.get(bucket.name)) for bucket, figures in buckets]
    rows += [_unserved(name) for name in unserved]
    return "\n".join(
        (
            _health(engine, buckets, unserved),
            _tiles(engine, seen, ops),
            plots(
                Series("Requests per second", "ops", ops),
                Series("Items sent per second", "sent", sum(each.seen.documents_sent for each in readers)),
                Series("Bytes sent per second", "bytes", sum(each.seen.bytes_sent for each in readers), is_bytes=True),
            ),
            table("buckets", "Buckets", _BUCKETS, rows, "There is no bucket that you may see."),
            clients_table(readers, has_bucket=True),
        )
    )


def _health(engine: Engine, buckets: list[tuple[Bucket, BucketSummary]], unserved: list[str]) -> str:
    node = engine.config.nodes[engine.config.this_node]
    wrong = [bucket.name for bucket, _ in buckets if state_of(bucket)["status"] != "healthy"] + unserved
    shown = state(f"not well: {', '.join(wrong)}", "critical") if wrong else state("well")
    up = duration(engine.now - engine.started)
    ports = f"KV port {node.kv_port} · management port {node.mgmt_port} · up {up}"
    return f'<p class="facts">{shown} <span>{ports}</span></p>'


def _tiles(engine: Engine, seen: list[BucketSummary], ops: int) -> str:
    streams = sum(each.streams for figures in seen for each in figures.dcp)
    waiting = sum(figures.items_unpersisted for figures in seen)
    return tiles(
        (
            ("Documents", number(sum(figures.items for figures in seen)).html, f"in {plural(len(seen), 'bucket')}"),
            ("Requests per second", counter("ops", ops), f"{ops:,} in all"),
            ("Connections", number(len(engine.sessions)).html, plural(streams, "DCP stream")),
            ("Not on disk yet", number(waiting).html, size(sum(figures.pending_bytes for figures in seen)).html),
            ("Disk", size(sum(figures.file_bytes for figures in seen)).html, "files of all buckets"),
            ("Process memory", size(resident_bytes()).html, "resident"),
        )
    )


def _row(bucket: Bucket, seen: BucketSummary, compaction: CompactionStatus | None) -> Row:
    is_durable = bucket.store.is_durable
    superseded = f"{bucket.store.fragmentation:.0%} superseded"
    if compaction is not None and compaction.is_running:
        superseded = "is compacted now"
    active, replica = seen.vbuckets[VbucketState.ACTIVE], seen.vbuckets[VbucketState.REPLICA]
    others = small(f"{replica:,} replica") if replica else ""
    waiting = Cell(
        f"{seen.items_unpersisted:,}{small(size(seen.pending_bytes).html)}", seen.items_unpersisted
    )  # fmt: skip
    return Row(
        bucket.uuid,
        (
            Cell(
                link(path("ui", "buckets", bucket.name), text(bucket.name)) + small(kind_of(bucket)),
                bucket.name,
            ),
            bucket_state(bucket),
            number(seen.items),
            counter(bucket.uuid, sum(seen.ops.values())),
            Cell(memory(seen), seen.memory_bytes),
            Cell(f"{size(seen.file_bytes).html}{small(superseded)}", seen.file_bytes) if is_durable else NONE,
            waiting if is_durable else NONE,
            Cell(f"{active:,}{small('active')}{others}", active),
        ),
    )


def _unserved(name: str) -> Row:
    return Row(name, (Cell(text(name) + small("on disk"), name), state(UNSERVED, "critical"), *[NONE] * 6))


def kind_of(bucket: Bucket) -> str:
    """The place of a bucket's documents, for people."""
    return "ephemeral" if bucket.settings.is_ephemeral else "on disk" if bucket.store.is_durable else "in memory"


def bucket_state(bucket: Bucket) -> str:
    """A bucket's health."""
    status = str(state_of(bucket)["status"])
    return state("well") if status == "healthy" else state(status, "critical")


def memory(seen: BucketSummary) -> str:
    """A bucket's memory, and how much of the quota that is."""
    share = seen.memory_bytes / seen.quota_bytes
    quota = size(seen.quota_bytes).html
    bar = meter(share, f"{share:.1%} of the quota", is_critical=share >= NEARLY_FULL)
    return f"{size(seen.memory_bytes).html}{small(f'of {quota}')}{bar}"
