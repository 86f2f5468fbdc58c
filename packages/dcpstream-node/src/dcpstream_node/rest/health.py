"""The health page: one word without a login, details with one."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from dcpstream.errors import CorruptLog, DcpstreamError
from dcpstream_node.engine import Bucket
from dcpstream_node.rest.authorization import allows
from dcpstream_node.rest.site import ANYBODY, USER, Route, Site, answer
from dcpstream_node.store import MAX_PENDING_BYTES

UNSERVED = "not served: files are damaged"


class HealthPages:
    """The pages of health."""

    def __init__(self, site: Site) -> None:
        self._engine = site.engine

    def routes(self) -> list[Route]:
        """The pages."""
        does = (
            "200 if the node is well, 503 if a bucket takes no writes, or none durably, or met damage; with login why"
        )
        return [Route("GET", "/health", self._health, ANYBODY, does)]

    async def _health(self, request: web.Request) -> web.Response:
        buckets = {bucket.name: state_of(bucket) for bucket in self._engine.buckets.values()}
        buckets |= {name: _unserved(error) for name, error in self._engine.damaged.items()}
        is_well = all(state["status"] == "healthy" for state in buckets.values())
        content: dict[str, Any] = {"status": "healthy" if is_well else "degraded"}
        user = request.get(USER)
        if user is not None:
            content["buckets"] = {
                name: state for name, state in buckets.items() if allows(user, "bucket.read", {"bucket": name})
            }
        return answer(content, 200 if is_well else 503)


def _unserved(error: DcpstreamError) -> dict[str, Any]:
    status = UNSERVED if isinstance(error, CorruptLog) else "not served: files cannot be used"
    return {"status": status, "damage": [str(error)]}


def state_of(bucket: Bucket) -> dict[str, Any]:
    """The health of a bucket: `status` is healthy, or names the fault."""
    store = bucket.store
    status = "healthy"
    if store.is_failing:
        status = "persistence is failing"
    elif store.is_over_quota:
        status = "the memory quota is reached"
    elif not store.has_room:
        status = "too much waits for the disk"
    elif not bucket.is_persisting:
        status = "persistence is stopped"
    elif store.read_failures:
        status = "files are damaged"
    return {
        "status": status,
        "pendingBytes": store.pending_bytes,
        "pendingBytesMax": MAX_PENDING_BYTES,
        "wasCrashed": not store.was_clean,
        "readFailures": store.read_failures,
        "damage": [str(error) for error in store.damage.values()],
    }
