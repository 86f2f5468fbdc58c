"""Stored form: history as the DCP frames of the richest kind of stream, and its rendering for other streams.

`block` encodes documents in stored form and holds runs of frames (`FrameBlock`); `durable` does the same for prepares
and aborts. `rendering` turns a block into the bytes that one stream gets, as its `StreamForm` (`form`) says.
"""
