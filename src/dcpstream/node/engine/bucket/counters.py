"""Counters that the node keeps while it works: plain integers that are only ever added to, read when somebody asks."""

from __future__ import annotations

OPCODES = 256


def new_ops() -> list[int]:
    """Requests by opcode; a list, because adding to an item of it is the cheapest way to count that there is."""
    return [0] * OPCODES


class Counters:
    """What a node did since it was started.

    Attributes:
        ops: requests of sessions without a bucket, by opcode; buckets count their own.
        connections: that were made on the KV port, and of these `connections_refused` because there were too many.
        logins, logins_refused: on the KV port.
        bytes_received, bytes_sent: on the KV port.
    """

    __slots__ = (
        "bytes_received",
        "bytes_sent",
        "connections",
        "connections_refused",
        "logins",
        "logins_refused",
        "ops",
    )

    def __init__(self) -> None:
        self.ops = new_ops()
        self.connections = 0
        self.connections_refused = 0
        self.logins = 0
        self.logins_refused = 0
        self.bytes_received = 0
        self.bytes_sent = 0
