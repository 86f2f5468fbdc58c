"""The server releases of the nodes that were reached: in the log, in spans, and in notes of errors.

A note is no part of an error's text: Python shows it below the error in a traceback, and it is in `__notes__`.
"""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)

MAX_NODES = 256
"""Nodes whose releases are kept, the newest ones: a cluster has fewer, but its nodes may come and go for years."""

MAX_NAMED = 3
"""Nodes of a release that a note names."""


class Releases:
    """Releases by node, as the nodes gave them in their handshakes."""

    def __init__(self) -> None:
        self._by_node: dict[str, str] = {}

    def found(self, node: str, release: str) -> None:
        """A handshake with a node is done; a release that is new is logged."""
        if not release or self._by_node.get(node) == release:
            return
        self._by_node.pop(node, None)
        self._by_node[node] = release
        if len(self._by_node) > MAX_NODES:
            del self._by_node[next(iter(self._by_node))]
        logger.info("%s is a Couchbase Server %s", node, release)

    def __str__(self) -> str:
        """The releases, each once; several during an upgrade, and empty if no node was reached."""
        return ", ".join(sorted(set(self._by_node.values())))

    def explain(self, error: BaseException) -> None:
        """Add a note with the releases to an error; an error that has one is left alone."""
        if not self._by_node or any(note.startswith(_NOTE) for note in getattr(error, "__notes__", ())):
            return
        by_release: dict[str, list[str]] = {}
        for node, release in self._by_node.items():
            by_release.setdefault(release, []).append(node)
        parts = []
        for release, nodes in sorted(by_release.items()):
            more = f" and {len(nodes) - MAX_NAMED} more" if len(nodes) > MAX_NAMED else ""
            parts.append(f"{release} ({', '.join(nodes[:MAX_NAMED])}{more})")
        error.add_note(_NOTE + "; ".join(parts))


_NOTE = "Couchbase Server: "
