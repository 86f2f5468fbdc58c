"""Couchbase's Database Change Protocol (DCP) for Python: codec, protocol machines, client, decoder to Arrow.

The names below are loaded when they are first used, so that ``import dcpstream`` is quick: only Arrow batches need
numpy and pyarrow. A node to test against is in `dcpstream_node`, the Spark source in `dcpstream_spark`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcpstream.lazy import lazy_names

if TYPE_CHECKING:
    from dcpstream.client import (
        AsyncClient,
        Client,
        ClientOptions,
        FileOffsetStore,
        KvClient,
        SecretFile,
        SqliteOffsetStore,
        StreamOptions,
    )

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "Client",
    "ClientOptions",
    "FileOffsetStore",
    "KvClient",
    "SecretFile",
    "SqliteOffsetStore",
    "StreamOptions",
    "__version__",
]

__getattr__, __dir__ = lazy_names(__name__, {"dcpstream.client": __all__})
