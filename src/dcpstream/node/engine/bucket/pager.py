"""Expiring documents that nobody looks at: the server's expiry pager, one portion at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcpstream.node.engine.bucket import documents

if TYPE_CHECKING:
    from dcpstream.node.engine.bucket.bucket import Bucket


def expire_some(bucket: Bucket, vbid: int, unix_ns: int, limit: int) -> int:
    """Turn up to `limit` documents of an active vbucket that are past their time into expirations.

    Those with an undecided durable write are left for later. Returns how many were expired.
    """
    vbucket = bucket.active(vbid)
    if vbucket is None or vbucket.is_backed_up or not bucket.store.has_room:
        return 0
    made = 0
    for key in vbucket.log.expired(unix_ns // 1_000_000_000, limit):
        meta = documents.live_meta(vbucket, key, unix_ns)
        made += meta is not None and meta.is_deleted
    if made:
        bucket.expired_by_pager += made
        bucket.dirty.add(vbid)
    return made
