"""A bucket without files and threads.

`Bucket` owns up to 1,024 `VBucket`s and the settings and manifest that they share. A `VBucket` adds to its log in the
store what a server decides: CAS, checkpoints, branches, `Locks`, `Durability` (durable writes) and `FreshDeletions`.
`documents` has the rules of reading and writing one document; `manifest` and `manifest_editor` those of scopes and
collections; `topology` reads the chains of durable writes.

A write goes from a handler through `documents` into the vbucket's log and into `Bucket.dirty`. At the end of the turn
the bucket notifies its DCP connections. `RangeScans`, `WaitingClients`, `Retention` and `parameters` belong to the
bucket as a whole.
"""
