"""Reading a bucket's changes: positions, bounded reads, live streams.

The machines (`handshake`, `session`, `reader`, `questions`, `resume`) know bytes and time only as arguments;
`blocking`, `blocking_client`, `asyncio_` and `kv` hold the sockets.
"""

from dcpstream.client.asyncio_ import AsyncBatch, AsyncClient
from dcpstream.client.blocking import Cluster
from dcpstream.client.blocking_client import Batch, Client
from dcpstream.client.changes import Change
from dcpstream.client.kv import KvClient
from dcpstream.client.offsets import FileOffsetStore, OffsetStore, SavedOffset, SqliteOffsetStore
from dcpstream.client.ranges import Accepted, ManifestEvent, ReadBatch, RollbackEvent, RollbackTo, VbucketRange
from dcpstream.client.resume import BranchState
from dcpstream.client.tls import TlsOptions

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
