"""A small blocking key-value client, for loaders, the Spark writer, checks and tests.

`KvClient` turns documents into requests and answers into tokens or documents; the first refusal is an error.
`DocumentWriter` writes into any collection and gives each write an outcome. Both use `Windows`, which has two windows
of operations in flight and repeats what may pass. A `KvPool` knows the cluster map and has one `KvConnection` for each
node that is used. A `KvConnection` sends the requests of a window and reads their answers. `bulk` makes the requests of
many documents and cuts the answers, natively if it can. The handshake and the cluster map are those of `machine`.
"""
