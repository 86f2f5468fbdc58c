"""The consumer: the end of a DCP connection that receives the history of vbuckets into replicas.

A `ConsumerConnection` gets ADD_STREAM from a manager. The first one starts the `Negotiation` of `controls`; when that
is done, `StreamRequests` sends a STREAM_REQ for each `ConsumerStream` and takes the answers, rollbacks among them.

An accepted stream receives markers and rows. `messages` checks each frame and turns a row into a `Change` in its stored
form; the stream checks that it fits the snapshot and stores it in the `ReplicaBucket` (`protocol.bucket`). The window
(`dcp.window`) says when to acknowledge bytes; `stats` reports.
"""
