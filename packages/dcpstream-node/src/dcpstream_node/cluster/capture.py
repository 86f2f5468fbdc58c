"""A file of what passes between the nodes of a cluster, as `dcpstream decode` reads it.

Hexadecimal text: before each piece a comment says who sent it, and between which two nodes. A piece is whole frames.
"""

from __future__ import annotations

from pathlib import Path


class Capture:
    """Writes the file, from one thread.

    Args:
        path: of the file; one that is there is replaced.

    Raises: OSError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="ascii")

    def __call__(self, source: str, destination: str, sender: str, data: bytes) -> None:
        """Note a piece.

        Args:
            source, destination: the nodes of the replicator.
            sender: source, destination, or of the orchestrator's own requests and answers who sent to whom.
        """
        self._file.write(f"# {sender}: {source} -> {destination}\n{data.hex()}\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
