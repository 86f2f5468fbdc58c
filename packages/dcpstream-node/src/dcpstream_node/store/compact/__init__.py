"""Compaction: purging old deletions, and freeing the space of superseded rows.

A `CompactionOrder` (`compaction`) says what to purge and whether to rewrite. `purge` drops deletions from the index.
`retention` chooses the rows that stay; their frames are copied, in memory by `MemoryBucketStore`, on disk by
`segment_rewriting`; then `row_removal` removes the other rows from index and frame log. Appends and reads go on.
"""
