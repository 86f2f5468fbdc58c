"""Stores that are not open: recognising and checking them.

`detect` recognises stores and the rest of unfinished creations. `check` walks through all segments (`log.block_scan`),
compares them with the metadata, and returns a `StoreReport` of contents and damage; it writes nothing.
"""
