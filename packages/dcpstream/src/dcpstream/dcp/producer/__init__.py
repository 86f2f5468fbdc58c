"""The producer: the end of a DCP connection that sends the history of vbuckets.

A `ProducerConnection` gets the client's frames. The `dcp.controls` apply to all of its streams. For a STREAM_REQ, the
`StreamMaker` (`requests`) reads the `StreamFilter`, asks for the user's `privilege`, and lets `rollback.decide` accept,
roll back or refuse. An accepted request becomes a `ProducerStream`, whose `states` are tables.

When the connection may send, its streams take turns. A stream reads blocks of stored messages from its vbucket
(`protocol.bucket`), announces each snapshot (`messages`), leaves out what its `LiveFilter` hides, and sends the rest.
`change_history` adds superseded versions for streams of changes, and `takeover` hands a vbucket over to another node.
`responses` decides which answers of the client end the connection; `stats` reports.
"""
