"""Stores that are not open: recognising, checking and repairing them.

`detect` recognises stores and the rest of unfinished creations. `check` walks through all
segments (`log.block_scan`), compares them with the metadata, and returns a `StoreReport` of contents and damage; it
writes nothing. `repair` starts from such a report: it copies damaged segments without their damage, begins new branches
of the vbuckets that lost frames, and moves the damaged files to `lost+found`.
"""
