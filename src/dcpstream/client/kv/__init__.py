"""A small blocking key-value client: `KvClient`, over a `KvPool` of one `KvConnection` per node."""
