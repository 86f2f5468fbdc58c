"""The orchestrator of a cluster without sockets, clocks and threads.

- `tasks`: procedures that wait for answers and for time, as generators. `layout`: the node of each copy.
- `link`: one connection to a node. `replicator`: two of them, a producer's and a consumer's, joined.
- `state`: nodes, buckets and the vbucket map. `orchestrator`: the links, the streams that feed the copies, and the
  distribution of the map. `moves`: one vbucket goes to other nodes. `failover`: copies are promoted. `recovery`: a node
  comes back with its copies. `rebalance`: all moves that a new set of nodes needs. `watch`: the automatic failover.

A shell opens the links' sockets, hands over what comes in, sends what goes out, and wakes the machine in time.
"""
