"""The limits that protect a node from its clients, each with a name, a default and a reason.

Each limit has a name, a default with its reason, and can be set: `Node(limits=Limits(...))`, `--limit NAME=VALUE`. What
happens when one is reached stands with it; it is logged in one line, at most once in ten seconds for each limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from dcpstream.errors import ConfigError

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a node. Times are in seconds; 0 turns a limit on time off.

    Attributes:
        connections: to the KV port, at a time; further ones are closed at once. The server allows 65,000, a process
            usually has fewer descriptors.
        connections_per_user: of one user; the next one is closed after its login. Leaves room for the others.
        connections_before_login: that have not logged in; for a further one the oldest is closed, so that nobody is
            kept out by those who only connect. Enough for all clients of a large application that come back at once.
        tls_connections: encrypted ones to the KV port, and again to the management port, their handshakes included;
            a further one takes the place of the oldest whose handshake is not done, or is closed at once. Each costs
            256 KiB of buffers that are Python's own.
        login_s: from the connection to the login; then it is closed. Slow clients take a second.
        frame_s: in which an unfinished frame must grow by 1 KiB for each second; else the connection is closed. Slow
            networks are faster by far.
        idle_s: without a byte; then the connection is closed, unless its user has the privilege IdleConnection
            (administrators, DCP readers) or it is a DCP connection. The server's default.
        stalled_s: in which a client that has answers waiting for it takes none; then it is dropped.
        stalled_dcp_s: the same of a DCP connection, whose client may be busy with what it got. The server's default.
        buffered_bytes: unfinished requests and answers not taken, of all connections together. From a half of it on
            each connection gets less; above it the connection that holds the most is dropped.
        http_connections: to the management port, at a time; a further one takes the place of the oldest on which
            nothing is answered, or is closed at once. Streams are among them.
        http_header_s: from the connection, or the answer before, to the end of a request's header; then it is closed.
        http_body_s: for the body of a request; then it is answered 408.
    """

    connections: int = 5_000
    connections_per_user: int = 4_000
    connections_before_login: int = 2_500
    tls_connections: int = 1_000
    login_s: float = 30.0
    frame_s: float = 30.0
    idle_s: float = 300.0
    stalled_s: float = 60.0
    stalled_dcp_s: float = 360.0
    buffered_bytes: int = 256 * MIB
    http_connections: int = 2_000
    http_header_s: float = 30.0
    http_body_s: float = 30.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            is_time = field.name.endswith("_s")
            low, high = (0, 7 * 24 * 3600) if is_time else (1, 1_000_000)
            if field.name == "buffered_bytes":
                low, high = 8 * MIB, 1 << 50
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise ConfigError(f"limit {field.name}", value, f"a number from {low} to {high}")

    @classmethod
    def parse(cls, given: Mapping[str, str] | list[str] | tuple[str, ...]) -> Self:
        """Limits from texts, `NAME=VALUE` or a mapping.

        Raises:
            ConfigError: an unknown name, or a value that is no number or out of its range.
        """
        known = {field.name: float if field.name.endswith("_s") else int for field in fields(cls)}
        pairs = given.items() if isinstance(given, Mapping) else [tuple(item.partition("=")[::2]) for item in given]
        values: dict[str, Any] = {}
        for name, text in pairs:
            if name not in known:
                raise ConfigError("limit", name, ", ".join(known))
            try:
                values[name] = known[name](text)
            except ValueError:
                raise ConfigError(f"limit {name}", text, "a number") from None
        return cls(**values)

    @property
    def sweep_s(self) -> float:
        """Pause between two checks of all connections: short enough for the shortest time limit."""
        times = [self.login_s, self.frame_s, self.idle_s, self.stalled_s, self.stalled_dcp_s, self.http_header_s]
        return max(0.01, min([1.0, *(time / 4 for time in times if time)]))
