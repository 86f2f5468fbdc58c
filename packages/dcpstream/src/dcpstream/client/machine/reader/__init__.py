"""Reading ranges of many vbuckets until all are done.

A `StreamReader` holds one `Vbucket` for each range; `vbucket.TRANSITIONS` is the table of its stream's states. The
`OpenQueue` requests streams for the waiting ones, `SideRequests` asks for names and high seqnos, and the `Catalog`
knows the collections that the user's `Selection` means. Rows go from the connections through the `StableGate`, if the
user wants only persisted rows, to the `OutputQueue`. There a converter makes them Arrow batches (`batches`) or single
changes (`changes`) when the user takes them.
"""
