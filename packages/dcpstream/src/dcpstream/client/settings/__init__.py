"""The user's checked options of a connection, as plain values.

`ClientOptions` are the options of every client. `options.access` checks the arguments of a client together with its
parsed `ConnectionString` and returns an `Access`: addresses, `Login`, `TlsOptions` and the options. From it come the
`ConnectOptions` of all connections, with the `DcpSettings` of a DCP connection. `srv` finds the first addresses by DNS,
when the cluster is first used.
"""
