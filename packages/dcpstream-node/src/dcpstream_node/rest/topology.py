"""Pages that change which nodes are in the cluster, and that show the progress of a rebalance.

The node hands every order to its cluster's manager. A node that is alone answers as a cluster of one node does.

Source: Couchbase Server REST API, "Cluster Management"; ns_server menelaus_web_cluster.erl and
menelaus_web_auto_failover.erl (parameters, statuses and words of the answers).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from dcpstream.errors import ConfigError
from dcpstream.model import AutoFailover, ClusterState, Membership
from dcpstream_node.rest.site import (
    AUTO_FAILOVER,
    MAX_PORT,
    Route,
    Site,
    answer,
    done,
    fields_of,
    form_of,
    note,
    whole_number,
)

CONTROLLERS: Mapping[str, str] = MappingProxyType(
    {
        "addNode": "addNodeV2",
        "rebalance": "rebalance",
        "failOver": "failOver",
        "startGracefulFailover": "startGracefulFailover",
        "reAddNode": "reAddNode",
        "ejectNode": "ejectNode",
        "setRecoveryType": "setRecoveryType",
    }
)
"""Paths of orders, as /pools/default lists them."""
MIN_PORT = 1024
REFRESH_S = 0.25
"""Interval at which clients ask again while a rebalance runs; the server's number."""
MIN_TIMEOUT_S, MAX_TIMEOUT_S = 1, 3600
"""Bounds of the automatic failover's time-out. The server's least is 5 s; tests need less."""
MAX_COUNT = 100
MIN_DISK_PERIOD_S = 5
RECOVERY_TYPES = ("delta", "full")
_UNKNOWN = "Unknown server given."
_LAST = "Last active node cannot be failed over."
_RUNNING = "Rebalance running."
_NOT_RECOVERABLE = "invalid node name or node can't be used for delta recovery"
_HOST = re.compile(r"[0-9A-Za-z._~-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\]")


class TopologyPages:
    """The pages of nodes that come and go."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def routes(self) -> list[Route]:
        """The pages."""
        write = "cluster.write"
        add = "start a node and add it: `hostname` (host and management port), `user`, `password`, `services`"
        rebalance = "begin: `knownNodes`, `ejectedNodes`, names of nodes with commas between them"
        return [
            Route("POST", "/controller/addNode", self._add, write, add),
            Route("POST", "/controller/addNodeV2", self._add, write, "the same"),
            Route("POST", "/pools/default/serverGroups/{group}/addNode", self._add, write, "the same"),
            Route("POST", "/controller/rebalance", self._rebalance, write, rebalance),
            Route("POST", "/controller/stopRebalance", self._stop, write, "begin no more moves"),
            Route("POST", "/controller/failOver", self._fail_over, write, "give nodes up at once: `otpNode`"),
            Route(
                "POST",
                "/controller/startGracefulFailover",
                self._hand_over,
                write,
                "hand over, then give up: `otpNode`",
            ),
            Route("POST", "/controller/reAddNode", self._add_back, write, "the same with `recoveryType=full`"),
            Route(
                "POST",
                "/controller/setRecoveryType",
                self._set_recovery,
                write,
                "have a node that was failed over come back with the next rebalance: `otpNode`, `recoveryType`",
            ),
            Route("POST", "/controller/ejectNode", self._eject, write, "remove a node that is not active: `otpNode`"),
            Route("GET", "/pools/default/rebalanceProgress", self._progress, "pools.read", "how far it is, per node"),
            Route("GET", "/settings/autoFailover", self._auto, "pools.read", "settings of the automatic failover"),
            Route("POST", "/settings/autoFailover", self._set_auto, write, "change them: `enabled`, `timeout`, …"),
            Route("POST", "/settings/autoFailover/resetCount", self._reset_count, write, "let it act again"),
        ]

    # ------------------------------------------------------------------------------------------------ nodes that come

    async def _add(self, request: web.Request) -> web.Response:
        form = await form_of(request)
        host, port, errors = _place(form.get("hostname", ""))
        errors = [f"{field} is missing" for field in ("user", "password") if field not in form] + errors
        unknown = sorted(form.keys() - {"hostname", "user", "password", "services"})
        if unknown:
            errors.append(f"Got unknown parameters: {unknown}")
        services = [item for item in form.get("services", "kv").split(",") if item]
        if not services:
            errors.append("At least one service has to be selected")
        elif set(services) != {"kv"}:
            errors.append(f"Unknown services: {[item for item in services if item != 'kv']}")
        if errors:
            return answer(errors, 400)
        if self._site.manager is None:
            return answer([f"Prepare join failed. {_ALONE}"], 400)
        try:
            name = await self._site.order("add_node", host=host, mgmt_port=port)
        except ConfigError as error:
            return answer([f"Prepare join failed. {error}"], 400)
        note(request, "added node", name)
        return answer({"otpNode": name})

    async def _set_recovery(self, request: web.Request) -> web.Response:
        form = await form_of(request)
        return await self._recover(request, form, form.get("recoveryType", ""))

    async def _add_back(self, request: web.Request) -> web.Response:
        return await self._recover(request, await form_of(request), "full")

    async def _recover(self, request: web.Request, form: Mapping[str, str], recovery: str) -> web.Response:
        errors = {}
        if recovery not in RECOVERY_TYPES:
            errors["recoveryType"] = "recovery type must be either 'delta' or 'full'"
        state, name = await self._site.state(request), form.get("otpNode", "")
        # A node whose recovery was chosen already may get another one.
        is_out = any(
            node.name == name and (node.membership == Membership.FAILED or node.recovery != "none")
            for node in state.nodes
        )
        if not is_out:
            errors["otpNode"] = _NOT_RECOVERABLE
        if errors:
            return answer(errors, 400)
        await self._site.order("add_back", node=name, recovery=recovery)
        note(request, "set recovery type of node", name)
        return answer([])

    # -------------------------------------------------------------------------------------------------------- rebalance

    async def _rebalance(self, request: web.Request) -> web.Response:
        form = await form_of(request)
        known, ejected = _names(form.get("knownNodes", "")), _names(form.get("ejectedNodes", ""))
        if not known:
            return answer({"empty_known_nodes": 1}, 400)
        state = await self._site.state(request)
        there = {node.name for node in state.nodes}
        if set(known) != there or not set(ejected) <= there:
            return answer({"mismatch": 1}, 400)
        failed = {node.name for node in state.nodes if node.membership == Membership.FAILED}
        if there <= failed | set(ejected):
            return web.Response(status=400, text="No active nodes left")
        if state.task is None and self._site.manager is not None:
            remove = [name for name in ejected if name not in failed]
            await self._site.order("rebalance", remove=remove)
            note(request, "began a rebalance without", *ejected)
        return done()

    async def _stop(self, request: web.Request) -> web.Response:
        if self._site.manager is not None:
            await self._site.order("stop_rebalance")
            note(request, "stopped the rebalance")
        return done()

    async def _progress(self, request: web.Request) -> web.Response:
        state = await self._site.state(request)
        if state.task is None:
            return answer({"status": "none"} | ({"errorMessage": state.error} if state.error else {}))
        per_node = {name: {"progress": state.task.progress} for name in _taking_part(state)}
        return answer({"status": "running"} | per_node)

    # --------------------------------------------------------------------------------------------------- nodes that go

    async def _given_up(self, request: web.Request) -> tuple[list[str], web.Response | None]:
        """The nodes that a form names, each once, and the refusal if they cannot be failed over."""
        names = list(dict.fromkeys(value for field, value in await fields_of(request) if field == "otpNode"))
        state = await self._site.state(request)
        active = {node.name for node in state.nodes if node.membership == Membership.ACTIVE}
        if not names:
            return names, web.Response(status=400, text="No server specified.")
        unknown = [name for name in names if name not in {node.name for node in state.nodes}]
        if unknown:
            return names, web.Response(status=400, text=f"Unknown server given: {unknown}")
        if not set(names) <= active:
            return names, web.Response(status=400, text="Inactive server given." if len(names) == 1 else _UNKNOWN)
        if active <= set(names):
            return names, web.Response(status=400, text=_LAST)
        return names, None

    async def _fail_over(self, request: web.Request) -> web.Response:
        names, refusal = await self._given_up(request)
        if refusal is not None:
            return refusal
        await self._site.order("fail_over", nodes=names)
        note(request, "failed over", *names)
        return done()

    async def _hand_over(self, request: web.Request) -> web.Response:
        names, refusal = await self._given_up(request)
        if refusal is not None:
            return refusal
        if (await self._site.state(request)).task is not None:
            return web.Response(status=503, text=_RUNNING)
        if not await self._site.order("begin_graceful_failover", nodes=names):
            return web.Response(status=400, text="Failover cannot be done gracefully (would lose vbuckets).")
        note(request, "began to fail over gracefully", *names)
        return done()

    async def _eject(self, request: web.Request) -> web.Response:
        form = await form_of(request)
        name = form.get("otpNode")
        if name is None:
            return web.Response(status=400, text="Bad Request\n")
        state = await self._site.state(request)
        found = {node.name: node for node in state.nodes}.get(name)
        if found is None:
            return web.Response(status=400, text="Server does not exist.\n")
        if found.membership == Membership.ACTIVE:
            return web.Response(status=400, text="Cannot remove active server.\n")
        await self._site.order("eject", node=name)
        note(request, "ejected node", name)
        return done()

    # ----------------------------------------------------------------------------------------------- automatic failover

    async def _auto(self, request: web.Request) -> web.Response:
        found = (await self._site.state(request)).auto_failover
        return answer(
            {
                "enabled": found.is_enabled,
                "timeout": found.timeout_s,
                "count": found.count,
                "failoverOnDataDiskIssues": {"enabled": found.on_disk_issues, "timePeriod": found.disk_period_s},
                "maxCount": found.max_count,
                "canAbortRebalance": found.can_abort_rebalance,
            }
        )

    async def _set_auto(self, request: web.Request) -> web.Response:
        found, error = _auto_failover(await form_of(request), (await self._site.state(request)).auto_failover)
        if request.query.get("just_validate") == "1":
            return answer({"errors": dict([error]) if error is not None else None})
        if error is not None:
            return web.Response(status=400, text=f"{error[1]}\n")
        await self._keep(found)
        note(request, "changed the automatic failover")
        return done()

    async def _reset_count(self, request: web.Request) -> web.Response:
        await self._keep(replace((await self._site.state(request)).auto_failover, count=0))
        return done()

    async def _keep(self, settings: AutoFailover) -> None:
        if self._site.manager is not None:
            await self._site.order("set_auto_failover", settings=settings)
        else:
            self._site.alone[AUTO_FAILOVER] = settings


_ALONE = (
    "This node runs alone and takes no others in: "
    "start a cluster with `dcpstream node --nodes`, or dcpstream_node.Cluster."
)


def rebalance_task(state: ClusterState) -> dict[str, Any]:
    """The rebalance in the list of tasks, whether it runs or not."""
    if state.task is None:
        idle: dict[str, Any] = {"type": "rebalance", "status": "notRunning", "statusIsStale": False}
        return idle | {"masterRequestTimedOut": False} | ({"errorMessage": state.error} if state.error else {})
    progress = 100 * state.task.progress
    taking_part = _taking_part(state)
    return {
        "type": "rebalance",
        "subtype": state.task.kind,
        "status": "running",
        "statusIsStale": False,
        "masterRequestTimedOut": False,
        "recommendedRefreshPeriod": REFRESH_S,
        "progress": progress,
        "perNode": {name: {"progress": progress} for name in taking_part},
        "nodesInfo": {
            "active_nodes": taking_part,
            "keep_nodes": [name for name in taking_part if name not in state.task.ejected],
            "eject_nodes": list(state.task.ejected),
            "failed_nodes": [node.name for node in state.nodes if node.membership == Membership.FAILED],
        },
        "detailedProgress": {},
    }


def _taking_part(state: ClusterState) -> list[str]:
    return [node.name for node in state.nodes if node.membership == Membership.ACTIVE]


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(name for name in text.split(",") if name))


def _place(text: str) -> tuple[str, int, list[str]]:
    """The host and the management port that a new node shall have, and what is wrong with them.

    Port 0 is any free one, which the server does not have.
    """
    text = text.strip()
    if not text:
        return "", 0, ["Hostname is required."]
    scheme, separator, rest = text.rpartition("://")
    scheme = scheme.lower() if separator else "http"
    if scheme not in ("http", "https"):
        return "", 0, [f"Unsupported protocol {scheme}"]
    malformed = [f"Malformed URL {text}"]
    rest = rest.removesuffix("/")
    host, colon, digits = rest.rpartition(":") if not rest.endswith("]") else (rest, "", "")
    if not colon:
        host, digits = rest, "8091" if scheme == "http" else "18091"
    port = whole_number(digits, 0, 10 * MAX_PORT)
    if port is None or not _HOST.fullmatch(host):
        return "", 0, malformed
    if port and not MIN_PORT <= port <= MAX_PORT:
        return "", 0, [f"The port number must be greater than {MIN_PORT - 1} and less than {MAX_PORT + 1}."]
    try:
        return urlsplit(f"//{host}").hostname or "", port, []
    except ValueError:  # no address within the brackets
        return "", 0, malformed


def _auto_failover(form: Mapping[str, str], present: AutoFailover) -> tuple[AutoFailover, tuple[str, str] | None]:
    """The settings in a form, or the name of the first field that cannot be, and why."""
    flags = {field: form.get(field) for field in ("enabled", "canAbortRebalance", "failoverOnDataDiskIssues[enabled]")}
    for field, text in flags.items():
        if text not in ("true", "false") and (text is not None or field == "enabled"):
            return present, (field, f'The value of "{field}" must be true or false')
    if flags["enabled"] == "false":
        return replace(present, is_enabled=False, on_disk_issues=False, can_abort_rebalance=False), None
    numbers = {
        "timeout": (None, MIN_TIMEOUT_S, MAX_TIMEOUT_S),
        "maxCount": (present.max_count, 1, MAX_COUNT),
        "failoverOnDataDiskIssues[timePeriod]": (present.disk_period_s, MIN_DISK_PERIOD_S, MAX_TIMEOUT_S),
    }
    found: dict[str, int] = {}
    for field, (default, low, high) in numbers.items():
        number = default if field not in form else whole_number(form[field], low, high)
        if number is None:
            why = f'The value of "{field}" must be a positive integer in a range from {low} to {high}'
            return present, (field, why)
        found[field] = number
    aborts, on_disk = flags["canAbortRebalance"], flags["failoverOnDataDiskIssues[enabled]"]
    return AutoFailover(
        is_enabled=True,
        timeout_s=found["timeout"],
        max_count=found["maxCount"],
        count=present.count,
        can_abort_rebalance=present.can_abort_rebalance if aborts is None else aborts == "true",
        on_disk_issues=present.on_disk_issues if on_disk is None else on_disk == "true",
        disk_period_s=found["failoverOnDataDiskIssues[timePeriod]"],
    ), None
