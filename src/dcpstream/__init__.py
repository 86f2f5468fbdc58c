"""Couchbase's Database Change Protocol (DCP) for Python and Spark.

The names below are loaded when they are first used, so that ``import dcpstream`` is quick: the node and the client
import their own dependencies, and only Arrow batches need pyarrow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dcpstream.client import AsyncClient, Client, FileOffsetStore, SqliteOffsetStore
    from dcpstream.cluster import Cluster
    from dcpstream.node import Node

__version__ = "0.1.0"

__all__ = ["AsyncClient", "Client", "Cluster", "FileOffsetStore", "Node", "SqliteOffsetStore", "__version__"]

_HOME_OF = {
    "AsyncClient": "dcpstream.client",
    "Client": "dcpstream.client",
    "Cluster": "dcpstream.cluster",
    "FileOffsetStore": "dcpstream.client",
    "Node": "dcpstream.node",
    "SqliteOffsetStore": "dcpstream.client",
}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
