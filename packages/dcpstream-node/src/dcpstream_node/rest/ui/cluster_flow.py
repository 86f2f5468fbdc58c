"""The part of the cluster's page that shows which node feeds which, and which clients, and how far behind they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dcpstream.model import ClusterState
from dcpstream.pages.flow import Arrow, sides, with_table
from dcpstream.pages.markup import NONE, Cell, Row, empty, heads, plural, section, small, table, text
from dcpstream_node.flow import Flow
from dcpstream_node.rest.ui.readers import REPLICATION, clients, reader_of

CLIENTS_MAX = 12
"""Largest number of clients that are shown: those that are behind most."""

_FLOW = heads("From", "To", "#Feeds", "#Behind")
_NOTE = (
    "A node feeds the replicas of its active vBuckets, and clients that read it by DCP. <em>Behind</em> is the number "
    "of seqnos that it has and that have not arrived, or were not sent to a client yet."
)
_NOTHING = "No node feeds another one, and no client reads."


@dataclass(frozen=True, slots=True)
class _Link:
    """A node that feeds another one, or a client.

    Attributes:
        source: the node's name.
        key: of the target, unique.
        target, more: the target's name for people, and a line below.
        count, noun: vbuckets that it feeds, or streams of a client.
        unknown: those of them of which nobody knows how far behind they are.
    """

    source: str
    key: str
    target: str
    more: str
    count: int
    noun: str
    behind: int
    unknown: int = 0


def title_of(node: str) -> str:
    """A node's name for people."""
    return node.removeprefix("ns_1@")


def flow_section(cluster: ClusterState, flow: Flow, buckets: Sequence[str]) -> str:
    """The picture and its table.

    Args:
        buckets: those that are counted.
    """
    names = [node.name for node in cluster.nodes]
    of_clients, left_out = _clients(flow, names, buckets)
    links = [*_replication(flow, names, buckets), *of_clients]
    if not links:
        return section("flow", "Flow", empty(_NOTHING), note=_NOTE)
    sources = [name for name in names if any(link.source == name for link in links)]
    keys = dict.fromkeys(link.key for link in links)
    targets = [*(name for name in names if name in keys), *(key for key in keys if key not in names)]
    titles = {link.key: link.target for link in links}
    arrows = [
        Arrow(
            sources.index(link.source),
            targets.index(link.key),
            link.count,
            plural(link.count, link.noun),
            _said(link),
            is_late=link.behind > 0 or link.unknown > 0,
        )
        for link in links
    ]
    picture = sides(("active copies", "what they feed"), list(map(title_of, sources)), [titles[key] for key in targets],
                    arrows)  # fmt: skip
    note = f"The {CLIENTS_MAX} clients that are behind most; {left_out:,} more read." if left_out else ""
    shown = table("feeds", "Feeds of nodes and clients", _FLOW, [_row(link) for link in links], _NOTHING, note=note)
    return section("flow", "Flow", with_table(picture, shown), note=_NOTE)


def _replication(flow: Flow, names: Sequence[str], buckets: Sequence[str]) -> Iterator[_Link]:
    """The pairs of nodes, of all buckets together, by source."""
    for source in names:
        for destination in names:
            feeds = [
                feed
                for feed in flow.feeds
                if (feed.source, feed.destination) == (source, destination) and feed.bucket in buckets
            ]
            if feeds:
                yield _Link(
                    source,
                    destination,
                    title_of(destination),
                    "",
                    sum(feed.vbuckets for feed in feeds),
                    "vBucket",
                    sum(feed.behind for feed in feeds),
                    sum(feed.unknown for feed in feeds),
                )


def _clients(flow: Flow, names: Sequence[str], buckets: Sequence[str]) -> tuple[list[_Link], int]:
    """The clients, those behind most first, each with the nodes that feed it; and how many are left out."""
    found: dict[str, list[_Link]] = {}
    for node, traffic in flow.traffic.items():
        source = node or names[0]  # a node that is alone has no other name for itself
        readers = [
            reader_of(bucket, each) for bucket in buckets if bucket in traffic for each in traffic[bucket].dcp
            if each.kind == "producer" and each.streams
        ]  # fmt: skip
        for client in clients([each for each in readers if each.program != REPLICATION]):
            who = f"{client.user} at {client.host}" if client.user else client.host
            seen = [each.seen for each in client.readers]
            link = _Link(
                source,
                client.key,
                client.program,
                f"{client.bucket}, {who}",
                sum(each.streams for each in seen),
                "stream",
                sum(each.items_remaining for each in seen),
            )
            found.setdefault(client.key, []).append(link)
    ranked = sorted(found.items(), key=lambda item: (-sum(link.behind for link in item[1]), item[0]))
    return [link for _, links in ranked[:CLIENTS_MAX] for link in links], max(0, len(ranked) - CLIENTS_MAX)


def _said(link: _Link) -> str:
    """The lag, in a few characters."""
    if link.unknown == link.count:
        return "not known"
    return f"{link.behind:,} behind" + (" or more" if link.unknown else "")


def _row(link: _Link) -> Row:
    behind = (
        NONE
        if link.unknown == link.count
        else f'<span class="{"behind" if link.behind else ""}">{link.behind:,}</span>'
    )
    not_known = small(f"{plural(link.unknown, link.noun)} not known") if link.unknown else ""
    return Row(
        f"{link.source} {link.key}",
        (
            Cell(text(title_of(link.source)), link.source),
            Cell(text(link.target) + (small(text(link.more)) if link.more else ""), link.key),
            Cell(plural(link.count, link.noun), link.count),
            Cell(behind + not_known, link.behind),
        ),
    )
