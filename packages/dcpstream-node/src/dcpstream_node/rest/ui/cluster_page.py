"""The content of the cluster's page: its nodes, what is under way, and forms that order changes.

The forms go to the pages of the REST API, which check rights and carry the orders out.
"""

from __future__ import annotations

from collections.abc import Sequence

from dcpstream.model import AutoFailover, ClusterState, Membership, NodeState
from dcpstream.pages.forms import Field, Order, hidden
from dcpstream.pages.markup import (
    Cell,
    Column,
    Row,
    link,
    node_name,
    number,
    path,
    section,
    small,
    state,
    table,
    text,
)
from dcpstream_node.engine import Bucket, Engine
from dcpstream_node.engine.cluster_config import in_url
from dcpstream_node.flow import Flow
from dcpstream_node.rest.topology import MAX_COUNT, MAX_TIMEOUT_S
from dcpstream_node.rest.ui.cluster_flow import flow_section, title_of

_ALONE = (
    "This node is alone. A cluster is started with <code>dcpstream node --nodes 3</code>, or from Python with "
    "<code>dcpstream_node.Cluster</code>."
)
_MEMBERSHIPS = {
    Membership.ACTIVE: ("in the cluster", ""),
    Membership.ADDED: ("added, waits for a rebalance", "warning"),
    Membership.FAILED: ("failed over", "critical"),
}
_TASKS = {"rebalance": "Rebalance", "gracefulFailover": "Graceful failover"}
_NODES = (Column("Node"), Column("Serves"), Column("Membership"), Column("Ports"))
_ORDERS = Column("Orders", is_sortable=False)


def cluster_content(
    engine: Engine,
    cluster: ClusterState,
    flow: Flow,
    buckets: Sequence[Bucket],
    *,
    host: str,
    takes_orders: bool,
    is_alone: bool,
) -> str:
    """The content.

    Args:
        flow: which node feeds which.
        buckets: those that are shown.
        host: the host that the browser reached the node at.
        takes_orders: whether the user may change the cluster, and there is one.
        is_alone: whether the node has no manager.
    """
    rows = [_node(engine, node, cluster, host, takes_orders=takes_orders) for node in cluster.nodes]
    parts = [
        _task(cluster, takes_orders=takes_orders),
        table("nodes", "Nodes", (*_NODES, _ORDERS) if takes_orders else _NODES, rows, "There is no node."),
        flow_section(cluster, flow, [bucket.name for bucket in buckets]),
        _copies(engine, buckets),
    ]
    if takes_orders:
        parts += [_rebalance(cluster), _add_node(host), _auto_failover(cluster.auto_failover)]
    if is_alone:
        parts.append(section("alone", "Orders", f'<p class="none">{_ALONE}</p>'))
    return "\n".join(parts)


def _task(cluster: ClusterState, *, takes_orders: bool) -> str:
    if cluster.task is not None:
        name = _TASKS.get(cluster.task.kind, cluster.task.kind)
        percent = f"{100 * cluster.task.progress:.0f} %"
        bar = f'<progress value="{cluster.task.progress:.3f}" max="1" aria-label="{text(name)}">{percent}</progress>'
        stop = (
            Order("/controller/stopRebalance", "Stop it", done="No more vbuckets are moved.").html()
            if takes_orders
            else ""
        )
        return section("task", f"{text(name)} under way: {percent}", bar + stop)
    facts = [state("balanced") if cluster.is_balanced else state("a rebalance would move vbuckets", "warning")]
    if cluster.error:
        facts.append(state(f"the last one ended early: {cluster.error}", "critical"))
    return f'<p class="facts">{" ".join(facts)}</p>'


def _node(engine: Engine, node: NodeState, cluster: ClusterState, host: str, *, takes_orders: bool) -> Row:
    address, own = node.address, engine.config.nodes[engine.config.this_node]
    is_this = (address.kv_port, address.mgmt_port) == (own.kv_port, own.mgmt_port)
    url = text(f"http://{in_url(address.host or host)}:{address.mgmt_port}/ui/cluster")
    name, kind = _MEMBERSHIPS[node.membership]
    recovery = small(f"comes back with {text(node.recovery)} recovery") if node.recovery != "none" else ""
    cells: list[Cell | str] = [
        Cell(link(url, text(title_of(node.name))) + (small("this node") if is_this else ""), node.name),
        state("yes") if node.is_healthy else state("no", "critical"),
        state(name, kind) + recovery,
        small(f"KV {address.kv_port} · management {address.mgmt_port}"),
    ]
    if takes_orders:
        cells.append(_orders(node, cluster))
    return Row(node.name, cells)


def _orders(node: NodeState, cluster: ClusterState) -> str:
    """The buttons of a node: those that have an effect in its state."""
    name, title = hidden("otpNode", node.name), title_of(node.name)
    found = []
    if node.membership == Membership.ACTIVE and cluster.task is None:
        found.append(
            Order(
                "/controller/startGracefulFailover",
                "Fail over gracefully",
                name,
                about=title,
                done=f"{title} hands its vbuckets over.",
            ).html()
        )
    if node.membership == Membership.ACTIVE:
        sure = f"Give {title} up now? Changes that no replica has are lost."
        found.append(
            Order("/controller/failOver", "Fail over", name, about=title, sure=sure, done=f"{title} is out.").html()
        )
    else:
        sure, gone = f"Remove {title} from the cluster?", f"{title} is removed."
        found.append(Order("/controller/ejectNode", "Remove", name, about=title, sure=sure, done=gone).html())
    if node.membership == Membership.FAILED:
        for kind in ("delta", "full"):
            fields = name + hidden("recoveryType", kind)
            done = f"{title} comes back with the next rebalance."
            found.append(
                Order("/controller/setRecoveryType", f"Add back ({kind})", fields, about=title, done=done).html()
            )
    return f'<div class="buttons">{"".join(found)}</div>'


def _copies(engine: Engine, buckets: Sequence[Bucket]) -> str:
    """The number of active copies and replicas of each bucket that every node has."""
    nodes = engine.config.nodes
    columns = [Column("Bucket"), *[Column(node_name(node.host, node.mgmt_port), is_number=True) for node in nodes]]
    rows = []
    for bucket in buckets:
        chains, indexes = bucket.chains(), {node: index for index, node in enumerate(engine.nodes_of(bucket))}
        cells: list[Cell | str] = [Cell(link(path("ui", "buckets", bucket.name), text(bucket.name)), bucket.name)]
        for index in (indexes.get(node, len(indexes)) for node in nodes):
            active = sum(chain[:1] == [index] for chain in chains)
            replicas = sum(index in chain[1:] for chain in chains)
            cells.append(Cell(number(active).html + small(f"{replicas:,} replica"), active))
        rows.append(Row(bucket.uuid, cells))
    return table("copies", "Active vBuckets by node", columns, rows, "There is no bucket that you may see.")


def _rebalance(cluster: ClusterState) -> str:
    known = ",".join(node.name for node in cluster.nodes)
    leaves = "".join(
        f'<label class="check"><input type="checkbox" name="ejectedNodes" value="{text(node.name)}">'
        f"{text(title_of(node.name))} leaves</label>"
        for node in cluster.nodes
        if node.membership != Membership.FAILED or node.recovery != "none"
    )
    fields = hidden("knownNodes", known) + hidden("ejectedNodes", "") + leaves
    note = "It spreads the vbuckets over the nodes. Nodes that were failed over leave, unless they were added back."
    form = Order(
        "/controller/rebalance", "Rebalance", fields, done="The rebalance begins.", kind="main", joins="ejectedNodes"
    ).html()
    return section("rebalance", "Rebalance", form, note=note)


def _add_node(host: str) -> str:
    fields = (
        Field("hostname", "Host and management port, 0 for any free port", f"{in_url(host)}:0").html()
        + hidden("user", "")
        + hidden("password", "")
    )
    form = Order(
        "/controller/addNode", "Add a node", fields, done="The node was started and added: rebalance next."
    ).html()
    return section("add", "Add a node", form, note="It starts a node, which gets vbuckets by the next rebalance.")


def _auto_failover(settings: AutoFailover) -> str:
    on, off = (' selected=""', "") if settings.is_enabled else ("", ' selected=""')
    fields = (
        f'<label>Automatic failover<select name="enabled"><option value="true"{on}>on</option>'
        f'<option value="false"{off}>off</option></select></label>'
        + Field("timeout", "After seconds of silence", f"{settings.timeout_s:g}", "number", 1, MAX_TIMEOUT_S).html()
        + Field("maxCount", "At most nodes", str(settings.max_count), "number", 1, MAX_COUNT).html()
    )
    form = Order("/settings/autoFailover", "Save", fields, done="The settings hold now.").html()
    acted = f"{settings.count} of at most {settings.max_count} failed over automatically"
    now = state(f"on: {acted}") if settings.is_enabled else state("off", "idle")
    reset = Order("/settings/autoFailover/resetCount", "Let it act again", done="It may act again.").html()
    return section("auto", "Automatic failover", f"<p>{now}</p>{form}{reset if settings.count else ''}")
