"""The sockets of the key-value port, on one asyncio loop.

`KvServer` listens and owns the connections; each `KvProtocol` moves bytes between a socket and a session of the engine
and decides nothing. An `Acceptor` accepts connections, encrypted ones with the `Tls` that was configured;
`certificates` makes an authority for nodes without a certificate. `Limits` are the numbers, `MemoryBudget` and
`TimeLimits` enforce them for all connections.

A read goes to `Session.receive` in one piece, and its answers go out in one write. A connection that used up its time
slice waits for the others. Once in a turn of the loop the server asks the engine which sessions have something to send.
"""
