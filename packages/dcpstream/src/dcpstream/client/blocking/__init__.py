"""The shell for threads: the machines of the client over plain sockets.

`Client` has streams: it makes a `StreamRun` and yields each output of its reader as a `Batch` or as `Change`s.
`Cluster` has bounded reads and questions about positions, for a planner and its workers. Both drive their machine with
`loop`: each turn serves the `Sockets` of some `Nodes` and the clocks. While the user works on a batch, a `KeepAlive`
thread takes these turns.
"""
