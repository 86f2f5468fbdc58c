"""An embedded Couchbase-compatible node: KV, DCP producer, management HTTP.

`engine` is the node without sockets, `server` the KV port around it, `management` the HTTP port, `flusher` what makes
writes durable, `embedded` all of it as one object: `with Node() as node: …`.
"""

from dcpstream.node.embedded import Node

__all__ = ["Node"]
