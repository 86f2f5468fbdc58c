"""The client: a bucket's changes as streams or bounded reads, positions, and a small key-value client.

`machine` holds every decision and does no I/O. The shells `blocking` and `aio` drive it over sockets (`transport` is
what they share); `streaming` is one run of a stream for both. `settings` are the user's checked options of
connections, `stream_options` those of a stream. `positions` decides which position is saved when, and `offsets` keeps
them between runs. `kv` is a key-value client of its own.

A receive goes socket → NodeConnection → DcpSession → StreamReader → OutputQueue → batch; requests go the other way.

The names below are loaded when they are first used: a blocking reader does not load asyncio, nor a writer the reader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcpstream.lazy import lazy_names

if TYPE_CHECKING:
    from dcpstream.client.aio.client import AsyncBatch, AsyncClient
    from dcpstream.client.blocking.bucket_reader import BucketReader
    from dcpstream.client.blocking.client import Batch, Client
    from dcpstream.client.kv.client import KvClient
    from dcpstream.client.machine.reader.changes import Change
    from dcpstream.client.machine.resume import BranchState
    from dcpstream.client.machine.values import (
        Accepted,
        CollectionEvents,
        HistoryGap,
        ManifestEvent,
        RollbackEvent,
        RollbackTo,
        RowsRead,
        VbucketRange,
    )
    from dcpstream.client.offsets import FileOffsetStore, OffsetStore, SavedOffset, SqliteOffsetStore
    from dcpstream.client.settings.client_options import ClientOptions
    from dcpstream.client.settings.secrets import SecretFile
    from dcpstream.client.settings.tls import TlsOptions
    from dcpstream.client.stream_options import StreamOptions

__all__ = [
    "Accepted",
    "AsyncBatch",
    "AsyncClient",
    "Batch",
    "BranchState",
    "BucketReader",
    "Change",
    "Client",
    "ClientOptions",
    "CollectionEvents",
    "FileOffsetStore",
    "HistoryGap",
    "KvClient",
    "ManifestEvent",
    "OffsetStore",
    "RollbackEvent",
    "RollbackTo",
    "RowsRead",
    "SavedOffset",
    "SecretFile",
    "SqliteOffsetStore",
    "StreamOptions",
    "TlsOptions",
    "VbucketRange",
]

_NAMES_IN = {
    "dcpstream.client.aio.client": ("AsyncBatch", "AsyncClient"),
    "dcpstream.client.blocking.bucket_reader": ("BucketReader",),
    "dcpstream.client.blocking.client": ("Batch", "Client"),
    "dcpstream.client.kv.client": ("KvClient",),
    "dcpstream.client.machine.reader.changes": ("Change",),
    "dcpstream.client.machine.resume": ("BranchState",),
    "dcpstream.client.machine.values": (
        "Accepted",
        "CollectionEvents",
        "HistoryGap",
        "ManifestEvent",
        "RollbackEvent",
        "RollbackTo",
        "RowsRead",
        "VbucketRange",
    ),
    "dcpstream.client.offsets": ("FileOffsetStore", "OffsetStore", "SavedOffset", "SqliteOffsetStore"),
    "dcpstream.client.settings.client_options": ("ClientOptions",),
    "dcpstream.client.settings.secrets": ("SecretFile",),
    "dcpstream.client.settings.tls": ("TlsOptions",),
    "dcpstream.client.stream_options": ("StreamOptions",),
}

__getattr__, __dir__ = lazy_names(__name__, _NAMES_IN)
