"""The connections to all nodes of a bucket.

`Nodes` holds the connections and the newest cluster map (`cluster_map` reads it); `retry` decides when a failed node is
tried again or given up. `Questions` asks nodes about vbuckets: each `Question` goes to the node that has its vbucket
active. A `StreamReader` uses `Nodes` in the same way for streams.
"""
