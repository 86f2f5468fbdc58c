"""Faults of a node, in one line each; the pytest fixture `couchbase_faults` is an instance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dcpstream_node.embedded import Node


@dataclass(frozen=True, slots=True)
class NodeFaults:
    """Faults of one node. A call, as of a function, is `Node.inject`; the methods are the usual ones by name.

    Every method that begins a fault returns its number, for `Node.lift`. `fields` narrow it, such as `bucket`,
    `opcode`, `share`, `for_s`; see `dcpstream_node.faults.Fault`.

    Attributes:
        node: the node, which runs.
    """

    node: Node

    def __call__(self, kind: str, /, **fields: Any) -> int:
        """Let something go wrong: `Node.inject`."""
        return self.node.inject(kind, **fields)

    def tmpfail(self, count: int | None = 1, **fields: Any) -> int:
        """Answer the next `count` requests for documents with TMPFAIL; None: all, until the fault is lifted."""
        return self("refuse", status="TMPFAIL", **({} if count is None else {"count": count}), **fields)

    def delay(self, seconds: float, **fields: Any) -> int:
        """Send every frame, also answers, so many seconds later."""
        return self("delay", delay_s=seconds, **fields)

    def small_buffer(self, size: int, **fields: Any) -> int:
        """Send changes as if the flow-control buffers of consumers had so few bytes: in small portions."""
        return self("small_buffer", buffer_bytes=size, **fields)

    def drop(self, **fields: Any) -> None:
        """Close connections now; without `fields` those of all clients."""
        self("drop", **fields)

    def hang(self, seconds: float, **fields: Any) -> None:
        """Do nothing for so long; connections stay open, and nobody is answered. Not even `Node.lift` ends it."""
        self("hang", for_s=seconds, **fields)

    def fail_over(self, bucket: str, vbid: int, seqno: int = 0) -> None:
        """Leave a vbucket as after a failover to a replica that had nothing above `seqno`."""
        self("stale_failover", bucket=bucket, vbid=vbid, seqno=seqno)

    def clock_forward(self, seconds: float) -> None:
        """Move the node's clocks forward: what waits for a time until then happens now."""
        self("move_clock", seconds=seconds)
