"""The content of a bucket's page: collections, the vbucket map, one vbucket with its failover log, and its readers."""

from __future__ import annotations

from collections import Counter
from math import isqrt

from dcpstream.model import NodeAddress, VbucketState
from dcpstream.model.collections import NO_TTL
from dcpstream.pages.markup import (
    NONE,
    Cell,
    Row,
    counter,
    empty,
    heads,
    link,
    node_name,
    number,
    path,
    plural,
    section,
    size,
    small,
    state,
    table,
    text,
    tiles,
)
from dcpstream.pages.plots import Series, plots
from dcpstream_node.engine import Bucket, Engine, User
from dcpstream_node.engine.access.permission import visible_manifest
from dcpstream_node.engine.bucket.vbucket import VBucket
from dcpstream_node.engine.cluster_config import in_url
from dcpstream_node.rest.ui.overview import bucket_state, kind_of, memory
from dcpstream_node.rest.ui.reader_page import clients_table
from dcpstream_node.rest.ui.readers import reader_of
from dcpstream_node.store import finish
from dcpstream_node.summary import summarize_bucket

VBUCKETS_PER_PAGE = 32
"""Rows of the table of vbuckets; links lead to the others."""
MAX_COUNTED_KEYS = 20_000
"""Keys up to which the documents of each collection are counted: the walk over them takes some milliseconds."""
CELLS_PER_ROW = 64
"""Cells in a row of the map: with 1,024 vbuckets 16 rows."""
CELL, CELL_PX = 10, 18
"""Side of a cell in the picture, and on a wide screen."""

_STATES = {
    VbucketState.ACTIVE: "active",
    VbucketState.REPLICA: "replica",
    VbucketState.PENDING: "pending",
    VbucketState.DEAD: "dead",
}
_ELSEWHERE, _NOWHERE = "elsewhere", "nowhere"
_MEANINGS = {
    "active": "active here",
    "replica": "replica here",
    "pending": "pending here",
    "dead": "dead here",
    _ELSEWHERE: "on other nodes",
    _NOWHERE: "active nowhere",
}
_COLLECTIONS = heads("Collection", "Id", "#Documents here", "#Longest life", "History", "-Look at")
_VBUCKETS = heads(
    "vBucket", "State here", "Copies", "#Documents", "#Newest seqno", "#On disk up to", "#Purged up to", "#Branches"
)
_LOG = heads("Branch (vbuuid)", "#Begins after seqno", "Ends")


def bucket_content(engine: Engine, bucket: Bucket, user: User, *, chosen: int | None, first: int, host: str) -> str:
    """The content of a bucket's page.

    Args:
        chosen: the vbucket whose failover log is shown, or None.
        first: the first vbucket in the table.
        host: the host that the browser reached the node at.
    """
    seen = summarize_bucket(bucket)
    ops = sum(seen.ops.values())
    readers = [reader_of(bucket.name, each) for each in seen.dcp]
    waiting = f"{seen.items_unpersisted:,} not there yet" if bucket.store.is_durable else kind_of(bucket)
    return "\n".join(
        (
            _facts(bucket),
            tiles(
                (
                    ("Documents", f"{seen.items:,}", "in active vbuckets here"),
                    ("Requests per second", counter("ops", ops), f"{ops:,} in all"),
                    ("Memory", memory(seen), ""),
                    ("Disk", size(seen.file_bytes).html if bucket.store.is_durable else NONE, waiting),
                    ("Connections", f"{seen.sessions:,}", plural(len(readers), "reader")),
                )
            ),
            plots(
                Series("Requests per second", "ops", ops),
                Series("Items sent per second", "sent", sum(each.seen.documents_sent for each in readers)),
            ),
            clients_table(readers, has_bucket=False),
            _collections(bucket, user),
            _map(engine, bucket),
            _chosen(engine, bucket, chosen, host),
            _vbuckets(engine, bucket, first),
        )
    )


def _facts(bucket: Bucket) -> str:
    settings = bucket.settings
    facts = [
        kind_of(bucket),
        plural(bucket.vbucket_count, "vbucket"),
        plural(settings.replicas, "replica"),
        f"conflicts by {text(settings.conflict_resolution.value)}",
        f"manifest {bucket.manifest.uid:x}",
    ]
    return f'<p class="facts">{bucket_state(bucket)} <span>{" · ".join(facts)}</span></p>'


def _collections(bucket: Bucket, user: User) -> str:
    rows, counts = [], _counts(bucket)
    for scope, collection in visible_manifest(bucket.manifest, user, bucket.name).collections():
        number_of = collection.collection_id
        life = {0: "as the bucket", NO_TTL: "no end"}.get(collection.max_ttl, f"{collection.max_ttl:,} s")
        documents = f"{path('ui', 'buckets', bucket.name, 'documents', scope.name, collection.name)}"
        rows.append(
            Row(
                f"{number_of:x}",
                (
                    Cell(f"{text(scope.name)}.<wbr>{text(collection.name)}", f"{scope.name}.{collection.name}"),
                    Cell(f"{number_of:#x}", number_of),
                    NONE if counts is None else number(counts[number_of]),
                    Cell(life, collection.max_ttl),
                    "kept" if collection.history and bucket.keeps_history else NONE,
                    link(documents, f'documents<span class="hidden"> of {text(collection.name)}</span>'),
                ),
            )
        )
    note = "" if counts is not None else f"Documents are counted up to {MAX_COUNTED_KEYS:,} keys."
    return table("collections", "Collections", _COLLECTIONS, rows, "There is no collection.", note=note)


def _counts(bucket: Bucket) -> Counter[int] | None:
    """Collection id → documents in active vbuckets; None if there are too many keys to look at each."""
    active = [vbucket for vbucket in bucket.vbuckets if vbucket is not None and vbucket.is_active]
    if sum(vbucket.log.key_count for vbucket in active) > MAX_COUNTED_KEYS:
        return None
    counts: Counter[int] = Counter()
    for vbucket in active:
        counts.update(finish(vbucket.log.walk_collections()))
    return counts


# ------------------------------------------------------------------------------------------------------------- the map


def _state_of(vbucket: VBucket | None, chain: list[int]) -> str:
    if vbucket is not None:
        return _STATES[vbucket.state]
    return _ELSEWHERE if chain and chain[0] >= 0 else _NOWHERE


def _map(engine: Engine, bucket: Bucket) -> str:
    """A cell for each vbucket, by its state here."""
    chains = bucket.chains()
    states = [_state_of(vbucket, chain) for vbucket, chain in zip(bucket.vbuckets, chains, strict=True)]
    counts = {name: states.count(name) for name in _MEANINGS}
    per_row = min(CELLS_PER_ROW, max(8, 4 * isqrt(len(states))), len(states))
    here = path("ui", "buckets", bucket.name)
    cells = "".join(
        f'<a href="{here}?vbucket={vbid}#vbucket" tabindex="-1"><title>vBucket {vbid}: {_MEANINGS[name]}</title>'
        f'<rect class="{name}" x="{vbid % per_row * CELL}" y="{vbid // per_row * CELL}" width="{CELL - 1}" '
        f'height="{CELL - 1}"/></a>'
        for vbid, name in enumerate(states)
    )
    there = [f"{count:,} {_MEANINGS[name]}" for name, count in counts.items() if count]
    legend = "".join(
        f'<li><svg viewBox="0 0 9 9" aria-hidden="true"><rect class="{name}" width="9" height="9"/></svg>'
        f"{count:,} {_MEANINGS[name]}</li>"
        for name, count in counts.items()
        if count
    )
    rows = -(-len(states) // per_row)
    width = f' width="{per_row * CELL_PX}"'
    picture = (
        f'<svg class="map" viewBox="0 0 {per_row * CELL} {rows * CELL}"{width} role="group" '
        f'aria-label="{text("; ".join(there))}">{cells}</svg><ul class="legend">{legend}</ul>'
    )
    return section("map", "vBucket map", picture + _shares(engine, bucket, chains))


def _shares(engine: Engine, bucket: Bucket, chains: list[list[int]]) -> str:
    """The number of copies that each node of the map has; nothing for a node that is alone."""
    nodes = engine.nodes_of(bucket)
    if len(nodes) < 2:
        return ""
    items = "".join(
        f"<li>{_name(node, engine)}: {sum(chain[:1] == [index] for chain in chains):,} active, "
        f"{sum(index in chain[1:] for chain in chains):,} replica</li>"
        for index, node in enumerate(nodes)
    )
    return f'<ul class="shares" aria-label="Copies by node">{items}</ul>'


def _name(node: NodeAddress, engine: Engine) -> str:
    """A node's name in the map: its management port distinguishes nodes of one machine."""
    is_this = node == engine.config.nodes[engine.config.this_node]
    return f"{node_name(node.host, node.mgmt_port)}{' (this node)' if is_this else ''}"


def _chosen(engine: Engine, bucket: Bucket, vbid: int | None, host: str) -> str:
    field = (
        f'<form method="get" action="{path("ui", "buckets", bucket.name)}#vbucket" class="row"><label>vBucket '
        f'<input name="vbucket" type="number" min="0" max="{bucket.vbucket_count - 1}" required '
        f'value="{"" if vbid is None else vbid}"></label><button>Show its failover log</button></form>'
    )
    if vbid is None:
        return section("vbucket", "Failover log", field)
    vbucket, chain = bucket.vbuckets[vbid], bucket.chains()[vbid]
    if vbucket is None:
        active = engine.nodes_of(bucket)[chain[0]] if chain and chain[0] >= 0 else None
        if active is None:
            where = "No node has the active copy."
        else:
            url = f"http://{in_url(active.host or host)}:{active.mgmt_port}"
            there = f"{url}{path('ui', 'buckets', bucket.name)}?vbucket={vbid}#vbucket"
            where = f"This node has no copy. {link(text(there), f'The node at port {active.mgmt_port}')} has it."
        return section("vbucket", f"Failover log of vBucket {vbid}", field + empty(where))
    entries = list(vbucket.failover_log)
    rows = [
        Row(
            f"{entry.vbuuid:x}",
            (
                Cell(f"<code>{entry.vbuuid:016x}</code>", index),
                number(entry.seqno),
                "the present branch" if not index else f"to seqno {entries[index - 1].seqno:,}",
            ),
        )
        for index, entry in enumerate(entries)
    ]
    note = (
        f"It is {_STATES[vbucket.state]} here; copies: {_copies(engine, bucket, chain)}. The newest branch is on top. "
        "A reader that resumes from another branch is asked to roll back to where the branches part."
    )
    shown = table("log", f"Branches of vBucket {vbid}", _LOG, rows, "", note=note)
    return section("vbucket", f"Failover log of vBucket {vbid}", field) + shown


def _copies(engine: Engine, bucket: Bucket, chain: list[int]) -> str:
    nodes = engine.nodes_of(bucket)
    named = [_name(nodes[index], engine) for index in chain if 0 <= index < len(nodes)]
    return ", ".join(named) or "none"


def _vbuckets(engine: Engine, bucket: Bucket, first: int) -> str:
    chains = bucket.chains()
    here = path("ui", "buckets", bucket.name)
    last = min(first + VBUCKETS_PER_PAGE, bucket.vbucket_count)
    is_alone = len(engine.nodes_of(bucket)) < 2
    columns = [column for column in _VBUCKETS if column.name != "Copies" or not is_alone]
    rows = []
    for vbid in range(first, last):
        vbucket = bucket.vbuckets[vbid]
        name = _state_of(vbucket, chains[vbid])
        kind = {"active": "", "dead": "critical", _NOWHERE: "critical"}.get(name, "idle")
        figures: tuple[Cell | str, ...] = (NONE,) * 5
        if vbucket is not None:
            figures = (
                number(vbucket.log.item_count),
                number(vbucket.high_seqno),
                number(vbucket.persisted_seqno) if bucket.store.is_durable else NONE,
                number(vbucket.purge_seqno),
                number(len(vbucket.failover_log.entries)),
            )
        shown = Cell(link(f"{here}?vbucket={vbid}#vbucket", str(vbid)), vbid)
        copies = () if is_alone else (small(_copies(engine, bucket, chains[vbid])),)
        rows.append(Row(str(vbid), (shown, state(_MEANINGS[name], kind), *copies, *figures)))
    pages = range(0, bucket.vbucket_count, VBUCKETS_PER_PAGE)
    pager = ""
    if len(pages) > 1:
        links = "".join(
            f'<a href="{here}?first={start}#vbuckets"{" aria-current=page" if start == first else ""}>'
            f"{start}&ndash;{min(start + VBUCKETS_PER_PAGE, bucket.vbucket_count) - 1}</a>"
            for start in pages
        )
        pager = f'<nav class="pager" aria-label="vBuckets">{links}</nav>'
    return table("vbuckets", "vBuckets", columns, rows, "The bucket has none.", note=pager)
