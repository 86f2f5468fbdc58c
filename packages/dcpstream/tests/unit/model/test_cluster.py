"""Cluster maps and the rule from key to vbucket."""

from __future__ import annotations

from typing import Any

CONFIG: dict[str, Any] = {
    "rev": 7,
    "revEpoch": 2,
    "name": "default",
    "nodeLocator": "vbucket",
    "nodes": [{}, {}],
    "nodesExt": [
        {"thisNode": True, "services": {"kv": 11210, "mgmt": 8091}},
        {"hostname": "10.0.0.2", "services": {"kv": 11310, "mgmt": 8191}},
        {"hostname": "10.0.0.3", "services": {"mgmt": 8291}},
    ],
    "vBucketServerMap": {"vBucketMap": [[0, 1], [1, 0], [-1, 0], [1, -1]]},
}
