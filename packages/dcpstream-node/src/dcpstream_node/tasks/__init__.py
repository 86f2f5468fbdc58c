"""Work of a node in the background; one set of tasks for each bucket.

`Flusher` commits writes to disk, `Compactor` rewrites files with superseded versions, `Maintenance` checks the memory
quota and expires documents, and `Prefetcher` reads history from disk for streams. Work with files runs in threads; its
results come back to the node's loop, where the bucket learns of them.
"""
