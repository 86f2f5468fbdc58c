"""The index of one vbucket.

`rows` holds the columns of all rows and the newest row of each key; `queries` reads them (visible as of a seqno, by
time, completeness of the history); `key_scan` looks at all keys in steps; `snapshots` remembers the received snapshots
of a copy; `bulk_load` fills an index from a segment file. The vbucket calls all of it under the bucket's lock.
"""
