"""What a session asks of its DCP side, which is not the engine's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol


class DcpEndpoint(Protocol):
    """The DCP side of a session after DCP_OPEN."""

    name: str

    @property
    def close_reason(self) -> str | None:
        """Set: the connection is to be dropped."""
        ...

    def take_answers(self, now: float) -> list[bytes]:
        """The answers that are there, in the order of the requests; streams' data is not among them."""
        ...

    def data_to_send(self, max_bytes: int, now: float) -> list[Any]:
        """What can be sent now, about `max_bytes`; empty: nothing."""
        ...

    def vbucket_changed(self, vbid: int, now: float) -> None:
        """A vbucket has new items, or persisted some."""
        ...

    def vbucket_state_changed(self, vbid: int, now: float) -> None:
        """A vbucket's role changed."""
        ...

    def vbucket_rolled_back(self, vbid: int, now: float) -> None:
        """A vbucket's history was cut."""
        ...

    def is_streaming_into(self, vbid: int) -> bool:
        """Whether this end has a living stream into the vbucket."""
        ...

    def set_idle_timeout(self, seconds: float) -> None:
        """Change how long the peer may be silent."""
        ...

    def next_timeout(self) -> float | None:
        """When `handle_timeout` wants to be called, monotonic seconds."""
        ...

    def handle_timeout(self, now: float) -> None:
        """Time has come."""
        ...

    def cursors(self, vbid: int) -> Iterator[tuple[str, int]]:
        """Name and position of each of its streams that reads a vbucket's newest items from memory."""
        ...
