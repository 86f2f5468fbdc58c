"""Reading a bucket's changes with Spark, as a batch or a stream.

The driver plans a batch (`coordinator`, `starting`, `planner`, `admission`, `offsets`), and executors read it
(`reading`, `prefetch`, `coalescing`, `schema`, `spool`). `bucket_reset` recognises a bucket that is no longer the one
of the checkpoint, `checkpoint` finds a query's newest offset, and `task_notes` carry what tasks learned to the next
plan.
"""
