"""One DCP connection, from its first byte.

`NodeConnection` owns the receive buffer. It runs a `Handshake`, then a `DcpSession`: a decoder cuts the buffer into
`Rows` (Arrow columns or single frames) and the control messages between them; the session assigns them to its
`Stream`s, moves their positions, and reports events (`events`), among them `RowsReceived` with one `Run` for each
contiguous part of a stream.
"""
