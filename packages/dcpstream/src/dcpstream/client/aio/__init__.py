"""The shell for asyncio: the machines of the client over the event loop's transports.

`AsyncClient` makes a `StreamRun` and drives its reader; what the user gets is an `AsyncBatch` or a `Change`.
`AsyncSockets` has one transport for each connection of some `Nodes`. A transport reads into its `NodeConnection` and
calls the machine from the event loop; `AsyncSockets.turn` opens and closes transports, sends, and waits.
"""
