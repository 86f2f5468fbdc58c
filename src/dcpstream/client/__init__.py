"""The client: a bucket's changes as streams or bounded reads, positions, and a small key-value client.

`machine` holds every decision and does no I/O. The shells `blocking` and `aio` drive it over sockets (`transport` is
what they share); `streaming` is one run of a stream for both. `settings` are the user's checked options. `positions`
decides which position is saved when, and `offsets` keeps them between runs. `kv` is a key-value client of its own.

A receive goes socket → NodeConnection → DcpSession → StreamReader → OutputQueue → batch; requests go the other way.
"""

from dcpstream.client.aio.client import AsyncBatch, AsyncClient
from dcpstream.client.blocking.client import Batch, Client
from dcpstream.client.blocking.cluster import Cluster
from dcpstream.client.kv.client import KvClient
from dcpstream.client.machine.reader.changes import Change
from dcpstream.client.machine.resume import BranchState
from dcpstream.client.machine.values import Accepted, ManifestEvent, ReadBatch, RollbackEvent, RollbackTo, VbucketRange
from dcpstream.client.offsets import FileOffsetStore, OffsetStore, SavedOffset, SqliteOffsetStore
from dcpstream.client.settings.tls import TlsOptions

__all__ = [
    "Accepted",
    "AsyncBatch",
    "AsyncClient",
    "Batch",
    "BranchState",
    "Change",
    "Client",
    "Cluster",
    "FileOffsetStore",
    "KvClient",
    "ManifestEvent",
    "OffsetStore",
    "ReadBatch",
    "RollbackEvent",
    "RollbackTo",
    "SavedOffset",
    "SqliteOffsetStore",
    "TlsOptions",
    "VbucketRange",
]
