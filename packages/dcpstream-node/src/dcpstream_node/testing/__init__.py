"""Test kit for users of a node and of the protocol; the product itself never imports it.

`nodes` has running nodes and empty buckets that end with a test; `dcpstream_node.pytest_plugin` makes fixtures of them.
`faults` lets things go wrong in a node, one line each. `simulation` runs nodes without sockets on virtual time and
joins them frame by frame. The names below are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcpstream.lazy import lazy_names

if TYPE_CHECKING:
    from dcpstream_node.testing.faults import NodeFaults
    from dcpstream_node.testing.nodes import FreshBucket

__all__ = ["FreshBucket", "NodeFaults"]

_NAMES_IN = {"dcpstream_node.testing.faults": ("NodeFaults",), "dcpstream_node.testing.nodes": ("FreshBucket",)}

__getattr__, __dir__ = lazy_names(__name__, _NAMES_IN)
