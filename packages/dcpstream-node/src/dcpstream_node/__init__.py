"""An embedded Couchbase-compatible node: key-value protocol, DCP, management HTTP.

The rooms, each importing only from those below it:

- `embedded`: `Node`, all of a node as one object with a thread and a loop of its own: `with Node() as node: …`.
- `process`: a node's own process, as its parent sees it. `fork_server`: that process. `channel`: calls between both.
- `http`: the management port. `prometheus`: the metrics that it shows.
- `bucket_host`: makes, opens and deletes the buckets of a running node.
- `tasks`: commits, compaction, expiry and read-ahead, one set for each bucket. `summary`: numbers of a running node.
- `directory`: the data directory beside the buckets' stores.
- `shell`: the sockets of the key-value port. `dcp`: the protocol machines of DCP sessions.
- `engine`: buckets, users and sessions without sockets, clocks and threads.

Bytes arrive at `shell.connection`, which hands them to a session of the engine. The session answers from its bucket's
vbuckets, whose logs belong to `dcpstream_node.store`. A write marks its vbucket as changed; at the end of the turn the
bucket tells its DCP connections, and the shell sends what they have. Meanwhile `tasks.flusher` commits the store.
"""

from dcpstream_node.embedded import Node

__all__ = ["Node"]
