"""Sans-IO machines of the protocol: what may be said when, and what is answered.

Nothing here touches sockets, clocks, threads or chance: bytes and messages come in as arguments, `now` (seconds of a
monotonic clock) with them, and what is to be sent is asked for. Servers, clients and tests are shells around it.
"""
