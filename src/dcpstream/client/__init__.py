"""Reading a bucket's changes: positions, bounded reads, live streams.

The machines (`handshake`, `session`, `reader`, `resume`) know bytes and time only as arguments; `blocking` and
`asyncio_` hold the sockets.
"""
