"""The file that a whole cluster starts again from: its nodes and their directories, buckets, users and settings.

It lies next to the directories of the nodes, and is written before a node hears of a change that it must not forget.
Only its owner may read it, because it has salted hashes of passwords.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from dcpstream.errors import StoreError
from dcpstream.runtime import SystemFileSystem, make_durable_directory, write_whole
from dcpstream_node.directory.checksummed_json import read_file, reason_of, to_text
from dcpstream_node.directory.directory import CLUSTER_FILE

FORMAT: Final = 1
MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""Largest file: 30 buckets of 16 nodes take a hundredth of it."""
_NAMES: Final = frozenset(
    {"format", "replicas", "vbuckets", "places", "next_number", "record", "buckets", "users", "pool", "auto_failover"}
)


class ClusterFile:
    """The file of a cluster.

    Args:
        directory: of the cluster.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / CLUSTER_FILE
        self._written = ""

    def read(self) -> dict[str, Any] | None:
        """Its content; None if there is none. Raises: StoreError: it cannot be read or understood."""
        try:
            content = read_file(self.path, _NAMES, MAX_FILE_BYTES)
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']}, not {FORMAT}")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{self.path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise self.not_understood(error) from error
        return content

    def not_understood(self, error: Exception) -> StoreError:
        """The error for content that cannot be used."""
        return StoreError(
            f"{self.path} cannot be understood: {reason_of(error)}. Restore it from a copy; without it nobody knows "
            "which node has which vbucket. A single node can serve each directory in it for a look at the data."
        )

    def write(self, content: dict[str, Any]) -> None:
        """Replace the content durably, if it has changed. Raises: StoreError: it cannot be written."""
        text = to_text({"format": FORMAT, **content})
        if text == self._written:
            return
        try:
            disk = SystemFileSystem()
            make_durable_directory(disk, self.path.parent)
            write_whole(disk, self.path, text.encode())
        except OSError as error:
            raise StoreError(f"{self.path} cannot be written: {error.strerror or error}") from error
        self._written = text
