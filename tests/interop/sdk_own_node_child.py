"""A range scan of the official Python SDK against a node that the same program started in a process of its own.

The SDK keeps the interpreter's lock while it waits for the scan: a node in a thread of this program could not answer.
"""

from __future__ import annotations

from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.kv_range_scan import PrefixScan
from couchbase.options import ClusterOptions

from dcpstream_node import Node

with Node(vbuckets=16, process=True, release="7.6") as node:
    login = PasswordAuthenticator(node.username, node.password)
    cluster = Cluster.connect(node.connection_string, ClusterOptions(login))
    collection = cluster.bucket("default").default_collection()
    for number in range(20):
        collection.upsert(f"scan-{number}", {"number": number})
    found = {item.id: item.content_as[dict]["number"] for item in collection.scan(PrefixScan("scan-"))}
    assert found == {f"scan-{number}": number for number in range(20)}
    cluster.close()
print("OK")
