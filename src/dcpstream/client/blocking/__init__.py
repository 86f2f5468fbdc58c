"""The blocking shell: `Client` for streams, `Cluster` for bounded reads and questions.

`loop.drive` turns a machine: it waits on `Sockets`, a selector over one socket per connection, and yields what the
machine delivers. Between two batches a thread answers the nodes' probes.
"""
