"""The findings of `dcpstream doctor` about a bucket: what a reader of its changes will meet. Nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dcpstream.cli.connection_options import BucketAccess
from dcpstream.cli.findings import Finding, Verdict
from dcpstream.errors import AccessDenied, DcpstreamError
from dcpstream.pages.markup import duration, plural
from dcpstream.runtime import SystemClock

if TYPE_CHECKING:
    from dcpstream.client import Client, KvClient
    from dcpstream.model import VbucketMap

PROBE_KEY = "dcpstream-doctor"
"""A document that is asked for, to see whether the user may read; it need not exist."""

SAMPLE_S = 3.0
"""Seconds for which changes are read, to see how fast they come: the speed is steady after the first one."""

SAMPLE_ROWS_MAX = 50_000
"""Changes after which the sample ends: enough for a speed, and a small load for the cluster."""

OWN_MACHINE = frozenset(("localhost", "127.0.0.1", "::1"))
SYSTEM_SCOPE = "_system"


def bucket_findings(access: BucketAccess) -> Iterator[Finding]:
    """The findings, one after the other: some take seconds."""
    with access.documents() as documents:
        try:
            found = documents.map
        except DcpstreamError as error:
            yield Finding("Cluster", "problem", str(error), _access_fix(access))
            return
        count, name = found.vbucket_count, access.bucket
        yield Finding("Cluster", "ok", f"bucket {name} at {', '.join(map(str, found.nodes))}, {count} vbuckets")
        yield from _copies(found)
        yield from encryption(access)
        yield from _nodes(documents)
        yield _allowed("Read documents", "data_reader", access, lambda: documents.get(PROBE_KEY))
    with access.client() as client:
        may_read = _allowed("Read changes", "data_dcp_reader", access, client.cluster.failover_logs)
        yield may_read
        if may_read.verdict == "ok":
            yield from _content(client)


def _copies(found: VbucketMap) -> Iterator[Finding]:
    """Vbuckets without an active node, and those that lack a replica."""
    count = found.vbucket_count
    unserved = sum(found.active_node(vbid) is None for vbid in range(count))
    if unserved:
        text = f"{unserved} of {count} vbuckets have no active node: a node is down or was failed over"
        yield Finding("Copies", "problem", text, "dcpstream cluster status")
        return
    wanted = max((len(chain) for chain in found.chains), default=1)
    lacking = sum(len(found.copies(vbid)) < wanted for vbid in range(count))
    if lacking:
        text = f"{lacking} of {count} vbuckets lack a replica, so the next failover loses them"
        yield Finding("Copies", "note", text, "dcpstream cluster rebalance")
    elif wanted == 1:
        text = "the bucket has no replicas: a node that is lost takes its changes with it"
        yield Finding("Copies", "note", text)
    else:
        yield Finding("Copies", "ok", f"each vbucket has {plural(wanted - 1, 'replica')}")


def encryption(access: BucketAccess) -> Iterator[Finding]:
    """A connection that others on the way can read."""
    from dcpstream.client.settings.connection_string import parse

    parsed = parse(access.connection_string)
    if parsed.is_secure:
        verdict: Verdict = "ok" if access.tls_verify == "peer" else "problem"
        text = "TLS" if verdict == "ok" else "TLS without a check of the certificate: anybody on the way can read"
        yield Finding("Encryption", verdict, text, "" if verdict == "ok" else "give --trust, without --tls-verify none")
    elif others := [str(seed) for seed in parsed.seeds if seed.host not in OWN_MACHINE]:
        text = "none: whoever is on the way can read documents"
        yield Finding("Encryption", "note", text, f"use couchbases:// and the node's port for TLS, for {others[0]}")


def _nodes(documents: KvClient) -> Iterator[Finding]:
    """The release of each node, and its documents."""
    try:
        stats = documents.stats_by_node()
        purged = _purged(documents)
    except AccessDenied:
        yield Finding("Nodes", "note", "the user may not see the nodes' statistics")
        return
    except DcpstreamError as error:
        text = f"a node that has vbuckets cannot be used: {error}"
        yield Finding("Nodes", "problem", text, "open its data port, or name the right addresses with --network")
        return
    releases = sorted({one.get("version", "unknown") for one in stats.values()})
    total = sum(int(one.get("curr_items", 0)) for one in stats.values())
    text = f"{plural(len(stats), 'node')} of release {' and '.join(releases)}, {total:,} documents"
    yield Finding("Nodes", "ok" if len(releases) == 1 else "note", text)
    if purged:
        text = f"deletions were purged in {plural(purged, 'vbucket')}: a position from before begins again from 0"
        yield Finding("Purged deletions", "note", text)


def _purged(documents: KvClient) -> int:
    """The number of active vbuckets whose deletions were purged in part."""
    active = documents.map.vbuckets_by_node()
    return sum(
        int(found.get(f"vb_{vbid}:purge_seqno", 0)) > 0
        for address, found in documents.stats_by_node("vbucket-seqno").items()
        for vbid in active.get(address, ())
    )


def _content(client: Client) -> Iterator[Finding]:
    """Collections, purged deletions, and a first load."""
    try:
        scopes = client.cluster.manifest().scopes
        named = sum(len(scope.collections) for scope in scopes)
        text = f"{plural(named, 'collection')} in {plural(len(scopes), 'scope')}"
        if any(scope.name == SYSTEM_SCOPE for scope in scopes):
            text += "; those of _system are the server's own, and a reader without a list of collections gets them, too"
        yield Finding("Collections", "ok", text)
        yield from _first_load(client, sum(client.cluster.high_seqnos().values()))
    except DcpstreamError as error:
        yield Finding("Changes", "problem", str(error))


def _first_load(client: Client, seqnos: int) -> Iterator[Finding]:
    """The changes of a first load, and the time that it takes at the speed of a sample."""
    from dcpstream.client import Change, StreamOptions

    clock = SystemClock()
    began, rows, size, covered = clock.monotonic(), 0, 0, {}
    for change in client.changes(StreamOptions(end="latest")):
        if isinstance(change, Change):
            rows += 1
            size += len(change.key) + len(change.value or b"")
            covered[change.vbid] = change.seqno
            if rows >= SAMPLE_ROWS_MAX or clock.monotonic() - began >= SAMPLE_S:
                break
    else:
        text = f"{rows:,} changes, {size / 2**20:,.1f} MiB: all were read in {clock.monotonic() - began:.1f} s"
        yield Finding("First load", "ok", text)
        return
    read = sum(covered.values())
    per_seqno = rows / read
    expected, speed = seqnos * per_seqno, rows / (clock.monotonic() - began)
    text = (
        f"about {expected:,.0f} changes, {expected * size / rows / 2**20:,.0f} MiB; at the speed of a sample "
        f"({speed:,.0f} changes/s as single changes) {duration(expected / speed)}; Arrow batches are faster"
    )
    yield Finding("First load", "ok", text)


def _allowed(what: str, role: str, access: BucketAccess, act: Callable[[], object]) -> Finding:
    try:
        act()
    except AccessDenied:
        text = f"user {access.username} may not, in bucket {access.bucket}"
        return Finding(
            what, "problem", text, f"dcpstream user create {access.username} --role '{role}[{access.bucket}]'"
        )
    except DcpstreamError as error:
        return Finding(what, "problem", str(error), _access_fix(access))
    return Finding(what, "ok", f"user {access.username or 'of the certificate'} may, in bucket {access.bucket}")


def _access_fix(access: BucketAccess) -> str:
    """The command that shows what is wrong with a cluster that does not let us in."""
    return f"dcpstream bucket list --cluster http://HOST:8091 --user {access.username or 'NAME'}"
