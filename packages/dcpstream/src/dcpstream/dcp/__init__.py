"""The machines of the protocol: which message is legal when, and what answers it. Sans-IO.

A node has one machine for each DCP connection: a `ProducerConnection` if it sends history, a `ConsumerConnection` if it
receives some. The shell passes each frame to `handle(frame, now)` and sends what `data_to_send` returns; `wake_at`
and `handle_timeout` replace the clock. A `close_reason` asks the shell to close the connection. The bucket behind both
machines is an interface (`bucket`), which the node implements.

- `producer`: stream requests and rollback, streams of snapshots, takeover.
- `consumer`: controls, stream requests, rows into a replica.
- `controls`: the table of DCP_CONTROL, which both ends and the client use.
- `opening`: DCP_OPEN, which decides between the two; `refusals`: the checks and answers that both share.
- `snapshot`, `window`, `liveness`: the rules that both ends, and the client, share: which message of a stream fits,
  which bytes are acknowledged, when a peer is given up.
- `stats`: the `dcp` stats group.
- `transitions`: tables of states and events, which every machine with states uses.
- `sasl`: both ends of a login.
"""
