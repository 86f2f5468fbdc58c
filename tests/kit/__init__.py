"""Helpers of the tests, one module for each idea.

Peers of a node: `dcpstream_node.testing.simulation` (whole nodes on virtual time; public), `engine` (one session of an
engine), `streams` (DCP frames in the form that tests compare), `peer` (blocking sockets), `rest` (the management port),
`cluster` (several nodes with one map, and a manager that moves vbuckets between them), `access` (how clients log in).

Peers of a client: `messages` (what a node sends, as bytes), `fake_node` (a node of a few lines), `hostile` (servers
that break the protocol by script), `client_machines` (connection, session and reader without sockets), `proxy` (cuts a
connection at any byte), `tls` (certificates, and a proxy that speaks TLS), `listener` (what these servers accept with).

Stores: `stores` (frames to store, and a model of a vbucket), `disks` (file systems that fail and lose power), `lists`
(buckets of lists for the DCP machines).

Models for random tests: `strategies` (messages and frames for Hypothesis), `resume_world` (one vbucket, its copies and
readers), `consumer_world` (the client between a pretend node and a table), `spark_model` (the source's planner on
copies that fail over).

Spark: `spark` (a bucket to read, a reader driven as Spark drives it, tables).

Judges: `recorded` (bytes between programs that are not ours), `replay` (a recording beside our machine), `raw_frames`
(frames that no code of the product wrote), `rules` (the marker that ties a test to rules of the protocol), `sdk` (the
official Python SDK in a process of its own).

Others: `waiting` (for another thread or process).
"""
