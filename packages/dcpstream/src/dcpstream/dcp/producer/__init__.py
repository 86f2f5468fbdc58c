"""The producer: the end of a DCP connection that sends the history of vbuckets.

A `ProducerConnection` gets the client's frames. The `dcp.controls` apply to all of its streams. For a STREAM_REQ, the
`StreamMaker` (`requests`) reads the `StreamFilter`, asks for the user's `privilege`, and lets `rollback.decide` accept,
roll back or refuse. An accepted request becomes a `ProducerStream`, whose phases and progress are in `states`.

When the connection may send, its streams take turns. `next_step` decides what a stream sends next: a marker, a block of
stored messages of its vbucket (`dcp.bucket`), SEQNO_ADVANCED, an end. The stream does it, and leaves out what its
`LiveFilter` hides.
`change_history` adds superseded versions for streams of changes, and `takeover` hands a vbucket over to another node.
`responses` decides which answers of the client end the connection; `stats` reports.
"""
