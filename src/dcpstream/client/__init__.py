"""Reading a bucket's changes: positions, bounded reads, live streams.

The machines (`handshake`, `session`, `reader`, `questions`, `resume`) know bytes and time only as arguments;
`blocking`, `blocking_client`, `asyncio_` and `kv` hold the sockets.
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
