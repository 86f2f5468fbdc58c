"""Numbers of a running node for metrics, statistics and the status page: buckets, DCP connections, memory.

The numbers are read from the engine, the stores and the system at each call. With 1,024 vbuckets that takes half a
millisecond.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from dcpstream.dcp.consumer.connection import ConsumerConnection
from dcpstream.dcp.producer.connection import ProducerConnection
from dcpstream.dcp.producer.states import OVER, Phase
from dcpstream.model import VbucketState
from dcpstream_node.dcp.stats import remaining_of
from dcpstream_node.engine import Bucket

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class DcpSummary:
    """A DCP connection.

    Attributes:
        name: the name in DCP_OPEN.
        kind: producer or consumer: the role of this node.
        peer: the client's address.
        streams: number of living streams.
        backfilling: number of streams that read history.
        items_sent, bytes_sent: of a producer; items include events of scopes and collections, as the server counts.
        documents_sent: items that are about documents.
        items_remaining: seqnos that its streams have not sent yet; at least as many as items.
        user: the client's login.
        agent: what the client said of itself in HELLO.
        unacked_bytes, buffer_bytes: fill and size of the reader's buffer; 0 without flow control.
    """

    name: str
    kind: str
    peer: str
    streams: int
    backfilling: int = 0
    items_sent: int = 0
    bytes_sent: int = 0
    items_remaining: int = 0
    documents_sent: int = 0
    user: str = ""
    agent: str = ""
    unacked_bytes: int = 0
    buffer_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSummary:
    """A bucket.

    Attributes:
        items: documents in active vbuckets.
        items_unpersisted: seqnos that no commit has made durable yet.
        pending_bytes: their size.
        vbuckets: role → number of vbuckets.
        file_bytes: size of its files.
        memory_bytes: memory of index, cache and unwritten data; `cached_bytes` is the cache's part.
        quota_bytes: its memory quota.
        sessions: number of connections that use it.
        dcp: its DCP connections.
        ops: opcode → requests since the node was started.
    """

    items: int
    items_unpersisted: int
    pending_bytes: int
    vbuckets: dict[VbucketState, int]
    file_bytes: int
    memory_bytes: int
    cached_bytes: int
    quota_bytes: int
    sessions: int
    dcp: list[DcpSummary]
    ops: dict[int, int]


def summarize_bucket(bucket: Bucket) -> BucketSummary:
    """Look at a bucket."""
    items = waiting = 0
    states: Counter[VbucketState] = Counter()
    for vbucket in bucket.vbuckets:
        if vbucket is not None:
            states[vbucket.state] += 1
            waiting += vbucket.high_seqno - vbucket.persisted_seqno
            if vbucket.is_active:
                items += vbucket.log.item_count
    store = bucket.store
    return BucketSummary(
        items=items,
        items_unpersisted=waiting,
        pending_bytes=store.pending_bytes,
        vbuckets={state: states[state] for state in VbucketState},
        file_bytes=store.file_bytes,
        memory_bytes=store.memory_bytes,
        cached_bytes=store.cached_bytes,
        quota_bytes=bucket.settings.ram_quota_bytes,
        sessions=len(bucket.sessions),
        dcp=summarize_dcp(bucket),
        ops={opcode: count for opcode, count in enumerate(bucket.ops) if count},
    )


def summarize_dcp(bucket: Bucket) -> list[DcpSummary]:
    """Look at a bucket's DCP connections, by name."""
    found = []
    for name, session in sorted(bucket.dcp_sessions.items()):
        machine, user = session.dcp, session.user_name or ""
        if isinstance(machine, ProducerConnection):
            alive = [stream for stream in machine.streams() if stream.at.phase not in OVER]
            found.append(
                DcpSummary(
                    name=name,
                    kind="producer",
                    peer=session.peer,
                    streams=len(alive),
                    backfilling=sum(stream.at.phase is Phase.BACKFILLING for stream in alive),
                    items_sent=machine.items_sent,
                    bytes_sent=machine.bytes_sent,
                    items_remaining=sum(map(remaining_of, alive)),
                    documents_sent=machine.documents_sent,
                    user=user,
                    agent=session.agent,
                    unacked_bytes=machine.window.outstanding_bytes,
                    buffer_bytes=machine.window.buffer_bytes,
                )
            )
        elif isinstance(machine, ConsumerConnection):
            found.append(
                DcpSummary(
                    name=name,
                    kind="consumer",
                    peer=session.peer,
                    streams=len(machine.streams),
                    user=user,
                    agent=session.agent,
                    unacked_bytes=machine.window.freed_bytes,
                    buffer_bytes=machine.window.buffer_bytes,
                )
            )
    return found


def resident_bytes() -> int:
    """Resident memory of this process; 0 if the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


def memory_bytes() -> tuple[int, int]:
    """(total, free) memory of the machine; zeros if the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES, os.sysconf("SC_AVPHYS_PAGES") * _PAGE_BYTES
    except (AttributeError, ValueError, OSError):
        return 0, 0
