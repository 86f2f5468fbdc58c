"""Frames as bytes: one stream per vbucket, in memory and in segment files.

`frame_log` maps positions in a vbucket's stream to buffers and pages. `blocks` is the file format, `segment_file` one
file, `segments` the set of files, `page_cache` the pages kept for reads by key, `block_scan` the reading of damaged
files. Nothing here knows the index or vbucket states.
"""
