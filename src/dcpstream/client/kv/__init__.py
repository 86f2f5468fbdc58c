"""A small blocking key-value client, for loaders, checks and tests.

`KvClient` turns documents into requests and answers into tokens or documents, a window of operations at a time. A
`KvPool` knows the cluster map and has one `KvConnection` for each node that is used. A `KvConnection` sends the
requests of a window and reads their answers, which come in order. The handshake and the cluster map are those of
`machine`.
"""
