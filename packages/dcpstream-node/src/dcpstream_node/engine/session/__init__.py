"""One client connection without its socket.

`Session` walks over the frames of its input and gives each to the command table's handler, or to the DCP machine after
DCP_OPEN. Handlers answer with the session's verbs: `respond`, `refuse`, `wait`, `stream`. Its parts have state of their
own: `Identity` (user and rights), `Output` (answers on their way out, held until durable if the bucket asks for that)
and `PendingRequest` (the one request that waits). `responses` makes error reasons and durations.
"""
