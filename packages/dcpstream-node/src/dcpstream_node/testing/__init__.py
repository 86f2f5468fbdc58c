"""Test kit for users of a node and of the protocol; the product itself never imports it.

`nodes` has running nodes and empty buckets that end with a test; `dcpstream_node.pytest_plugin` makes fixtures of them.
`faults` lets things go wrong in a node, one line each. `container` is a node with the interface of a Testcontainers
module. `simulation` runs nodes without sockets on virtual time and joins them frame by frame. `strategies` draws
messages and frames for Hypothesis, which it needs (`pip install dcpstream-node[testing]`). The names below are loaded
when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dcpstream_node.testing.container import BucketDefinition, CouchbaseContainer
    from dcpstream_node.testing.faults import NodeFaults
    from dcpstream_node.testing.nodes import FreshBucket

__all__ = ["BucketDefinition", "CouchbaseContainer", "FreshBucket", "NodeFaults"]

_HOME_OF = {
    "BucketDefinition": "dcpstream_node.testing.container",
    "CouchbaseContainer": "dcpstream_node.testing.container",
    "FreshBucket": "dcpstream_node.testing.nodes",
    "NodeFaults": "dcpstream_node.testing.faults",
}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
