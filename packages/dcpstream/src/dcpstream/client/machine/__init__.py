"""The client without I/O: bytes and the time go in, bytes and events come out.

`connection` turns the bytes of one DCP connection into rows and events, `nodes` keeps the connections to all nodes and
the cluster map, and `reader` reads many vbuckets over them. `values` are what users hand in and get back, `resume` is
the rule for positions, `tracker` follows a position through a stream, and `rollback_policy` holds the user's choices
for lost history.

A shell reads bytes into `NodeConnection.get_buffer`, calls `received` of the machine that it drives (a `StreamReader`
or `Questions`), sends `data_to_send`, and calls `handle_timeout` at `next_timeout`. What the user gets comes from
`StreamReader.next_event`.
"""
