"""Test kit for those who test against the protocol or against a node; the product itself never imports it.

`CouchbaseContainer` and `BucketDefinition` are loaded when they are first used; `dcpstream.testing.strategies` needs
Hypothesis (`pip install dcpstream[testing]`). The fixtures of pytest are in `dcpstream.pytest_plugin`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dcpstream.testing.container import BucketDefinition, CouchbaseContainer
    from dcpstream.testing.nodes import FreshBucket

__all__ = ["BucketDefinition", "CouchbaseContainer", "FreshBucket"]

_HOME_OF = {
    "BucketDefinition": "dcpstream.testing.container",
    "CouchbaseContainer": "dcpstream.testing.container",
    "FreshBucket": "dcpstream.testing.nodes",
}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
