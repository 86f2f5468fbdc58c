"""Sessions and their DCP connections, as a bucket sees them.

The bucket wakes, resumes and closes sessions without knowing more of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol


class DcpConnection(Protocol):
    """The DCP machine of a session after DCP_OPEN."""

    name: str

    @property
    def close_reason(self) -> str | None:
        """Set: the connection is to be dropped."""
        ...

    @property
    def has_output(self) -> bool:
        """Whether `data_to_send` would return something now."""
        ...

    def take_answers(self, now: float) -> list[bytes]:
        """The answers that are there, in the order of the requests; streams' data is not among them."""
        ...

    def data_to_send(self, max_bytes: int, now: float) -> list[Any]:
        """The data that can be sent now, about `max_bytes`; empty if there is none."""
        ...

    def vbucket_changed(self, vbid: int, now: float) -> bool:
        """A vbucket has new items, or persisted some; returns whether there may be something to send."""
        ...

    def vbucket_state_changed(self, vbid: int, now: float) -> None:
        """A vbucket's role changed."""
        ...

    def vbucket_rolled_back(self, vbid: int, now: float) -> None:
        """A vbucket's history was cut."""
        ...

    def buffer_changed(self) -> bool:
        """The share of this end in the windows of consumers may have changed; returns whether it has to send that."""
        ...

    def is_streaming_into(self, vbid: int) -> bool:
        """Whether this end has a living stream into the vbucket."""
        ...

    def set_idle_timeout(self, seconds: float) -> None:
        """Change how long the peer may be silent."""
        ...

    @property
    def wake_at(self) -> float | None:
        """When `handle_timeout` wants to be called, monotonic seconds."""
        ...

    def handle_timeout(self, now: float) -> None:
        """Time has come."""
        ...

    def cursors(self, vbid: int) -> Iterator[tuple[str, int]]:
        """Name and position of each of its streams that reads a vbucket's newest items from memory."""
        ...


class Client(Protocol):
    """A session, as its bucket and the engine see it."""

    peer: str
    """Address of the other end, for logs."""

    agent: str
    """The name that the client gave itself in HELLO."""

    @property
    def dcp(self) -> DcpConnection | None:
        """The DCP machine; None before DCP_OPEN."""
        ...

    @property
    def user_name(self) -> str | None:
        """Name of the user that is logged in."""
        ...

    @property
    def is_closing(self) -> bool:
        """Whether the connection is to be closed."""
        ...

    def close(self, reason: str) -> None:
        """Close the connection once its output is sent."""
        ...

    def drop_held(self, reason: str) -> None:
        """Close the connection, and drop the answers to writes that could not be made durable."""
        ...

    def resume(self, status: int = ..., *outcome: int) -> None:
        """Go on with the request that waits."""
        ...

    def wake(self) -> None:
        """Mark the session as one that may have something to send."""
        ...

    @property
    def config_only(self) -> str:
        """Name of the selected bucket, if it has nothing but its map; else empty."""
        ...

    def select(self, bucket: Any) -> None:
        """Use a bucket from now on."""
        ...

    def update_plain(self) -> None:
        """Choose the plain requests that the session's user and bucket allow."""
        ...

    def push_config(self) -> None:
        """Send the cluster configuration to a client that asked for notifications of changes."""
        ...
