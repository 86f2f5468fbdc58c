"""The management port: buckets, scopes and collections, users, the cluster map, metrics and health over HTTP."""

from dcpstream.node.http.app import Management

__all__ = ["Management"]
