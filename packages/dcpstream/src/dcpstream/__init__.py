"""Couchbase's Database Change Protocol (DCP) for Python and Spark.

The names below are loaded when they are first used, so that ``import dcpstream`` is quick: the node and the client
import their own dependencies, and only Arrow batches need pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcpstream.lazy import lazy_names

if TYPE_CHECKING:
    from dcpstream.client import AsyncClient, Client, FileOffsetStore, SqliteOffsetStore
    from dcpstream_node.cluster import Cluster
    from dcpstream_node.embedded import Node

__version__ = "0.1.0"

__all__ = ["AsyncClient", "Client", "Cluster", "FileOffsetStore", "Node", "SqliteOffsetStore", "__version__"]

_HOME_OF = {
    "AsyncClient": "dcpstream.client",
    "Client": "dcpstream.client",
    "Cluster": "dcpstream_node.cluster",
    "FileOffsetStore": "dcpstream.client",
    "Node": "dcpstream_node",
    "SqliteOffsetStore": "dcpstream.client",
}

__getattr__, __dir__ = lazy_names(__name__, _HOME_OF)
