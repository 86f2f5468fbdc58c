"""`dcpstream bucket`: make, list, empty and drop buckets, over the management port."""

from __future__ import annotations

import json
import threading
from typing import Any

import click

from dcpstream.cli.exits import OK
from dcpstream.cli.management import Management, management_options, path_of
from dcpstream.cli.output import report
from dcpstream.errors import ConnectionLost

BUCKETS = "/pools/default/buckets"
READY_TIMEOUT_S = 60.0
"""Longest wait for a new bucket: a Couchbase server warms it up after it has answered."""
READY_PAUSE_S = 0.2
"""Pause between two looks at it."""

yes_option = click.confirmation_option(
    "--yes", prompt="The documents in it will be gone. Go on?", help="Do not ask; needed if there is no terminal."
)


@click.group("bucket")
def bucket_command() -> None:
    """Make, list, empty and drop the buckets of any node, ours or a Couchbase server's."""


@bucket_command.command("list")
@management_options(Management)
def list_command(cluster: Management, as_json: bool) -> int:
    """Print the buckets."""
    found = [_described(each) for each in cluster.get(BUCKETS)]
    if as_json:
        click.echo(json.dumps(found))
        return OK
    width = max((len(each["name"]) for each in found), default=0)
    for each in found:
        click.echo(
            f"{each['name']:<{width}}  {each['type']:<9}  {each['items']:>10} documents  "
            f"{each['ram_mb']:>6} MiB  replicas {each['replicas']}  flush {'yes' if each['flush'] else 'no'}"
        )
    return OK


@bucket_command.command("create")
@click.argument("name")
@management_options(Management)
@click.option("--ram", "ram_mb", type=click.IntRange(min=100), default=100, show_default=True, help="Quota in MiB.")
@click.option("--type", "kind", type=click.Choice(["couchbase", "ephemeral"]), default="couchbase", show_default=True)
@click.option("--replicas", type=click.IntRange(0, 3), default=0, show_default=True, help="Copies on other nodes.")
@click.option("--flush", "has_flush", is_flag=True, help="Allow `bucket flush`.")
@click.option("--max-ttl", type=click.IntRange(min=0), default=0, help="Seconds that a document lives at most.")
def create_command(
    name: str,
    cluster: Management,
    as_json: bool,
    ram_mb: int,
    kind: str,
    replicas: int,
    has_flush: bool,
    max_ttl: int,
) -> int:
    """Make a bucket, and wait until it can be used."""
    form = {
        "name": name,
        "bucketType": kind,
        "ramQuota": str(ram_mb),
        "replicaNumber": str(replicas),
        "flushEnabled": str(int(has_flush)),
    }
    cluster.post(BUCKETS, form | ({"maxTTL": str(max_ttl)} if max_ttl else {}))
    _await(cluster, name)
    return report(f"bucket {name} made", as_json=as_json)


@bucket_command.command("flush")
@click.argument("name")
@management_options(Management)
@yes_option
def flush_command(name: str, cluster: Management, as_json: bool) -> int:
    """Delete all documents of a bucket; it must have been made with --flush."""
    cluster.post(f"{BUCKETS}{path_of(name)}/controller/doFlush", {})
    return report(f"bucket {name} emptied", as_json=as_json)


@bucket_command.command("drop")
@click.argument("name")
@management_options(Management)
@yes_option
def drop_command(name: str, cluster: Management, as_json: bool) -> int:
    """Delete a bucket with its documents."""
    cluster.delete(f"{BUCKETS}{path_of(name)}")
    return report(f"bucket {name} dropped", as_json=as_json)


def _described(bucket: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": bucket["name"],
        "type": "ephemeral" if bucket.get("bucketType") == "ephemeral" else "couchbase",
        "uuid": bucket.get("uuid"),
        "items": int(bucket.get("basicStats", {}).get("itemCount", 0)),
        "ram_mb": int(bucket.get("quota", {}).get("rawRAM", 0)) // (1024 * 1024),
        "replicas": bucket.get("replicaNumber", 0),
        "flush": bool(bucket.get("controllers", {}).get("flush")),
    }


def _await(cluster: Management, name: str) -> None:
    """Wait until every node has the bucket.

    Raises: ConnectionLost: the time is over.
    """
    pausing = threading.Event()
    for _ in range(int(READY_TIMEOUT_S / READY_PAUSE_S)):
        nodes = cluster.get(f"{BUCKETS}{path_of(name)}").get("nodes", [])
        if nodes and all(node.get("status") == "healthy" for node in nodes):
            return
        pausing.wait(READY_PAUSE_S)
    raise ConnectionLost(f"bucket {name} was made, but is not ready after {READY_TIMEOUT_S:g} s; see `bucket list`")
