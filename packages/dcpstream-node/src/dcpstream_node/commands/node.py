"""`dcpstream node`: a Couchbase-compatible node as a process of its own."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dcpstream.errors import ConfigError
from dcpstream.model import BucketSettings, Persist
from dcpstream.runtime import keep_large_buffers_apart, spare_what_is_loaded
from dcpstream.runtime.stopping import stop_signals
from dcpstream_node.commands import node_defaults
from dcpstream_node.commands.node_security import (
    allow_connections,
    read_secret_json,
    security_arguments,
    security_options,
)
from dcpstream_node.commands.serving import (
    address_options,
    administrator_options,
    announced,
    check_ready_file,
    ready_file_option,
)

if TYPE_CHECKING:
    from dcpstream_node.cluster import Cluster
    from dcpstream_node.embedded import Node


def settings_with_defaults() -> list[str]:
    """NAME=VALUE of each setting, in the form of `--set`."""
    return [
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in BucketSettings().to_json().items()
    ]


def read_settings(texts: tuple[str, ...], persist: str | None) -> BucketSettings:
    """The settings of NAME=VALUE texts.

    Raises:
        ConfigError: no `=`, no such setting, or an invalid value.
    """
    found = {} if persist is None else {"persist": persist}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            allowed = ", ".join(settings_with_defaults())
            raise ConfigError("--set", text, f"NAME=VALUE, of these (with their defaults): {allowed}")
        found[name] = value
    return BucketSettings.from_texts(found)


def read_alternate_addresses(texts: tuple[str, ...]) -> dict[str, Any]:
    """The values of `--alternate-address` by network, in the form of `Node`.

    Raises:
        ConfigError: no `=`, a network twice, or a port that is not a number.
    """
    found: dict[str, Any] = {}
    allowed = "NETWORK=HOST[,kv=PORT][,mgmt=PORT][,kvSSL=PORT][,mgmtSSL=PORT], each network once"
    for text in texts:
        network, equals, rest = text.partition("=")
        host, *ports = rest.split(",")
        entry: dict[str, Any] = {"hostname": host}
        for item in ports:
            name, _, port = item.partition("=")
            if not (port.isascii() and port.isdigit()) or name in entry:
                raise ConfigError("--alternate-address", text, allowed)
            entry[name] = int(port)
        if not equals or network in found:
            raise ConfigError("--alternate-address", text, allowed)
        found[network] = entry
    return found


@click.command("node")
@address_options
@click.option(
    "--vbuckets",
    type=int,
    help="vBuckets of each bucket, 1 to 1024.  [default: 1024, and for a bucket in --data the number that it has]",
)
@click.option("--nodes", default=1, show_default=True, help="Nodes of the cluster, 1 to 16.")
@click.option(
    "--processes/--no-processes",
    default=True,
    show_default=True,
    help="Whether each node of a cluster has a process of its own, or all share this one.",
)
@click.option(
    "--replicas", default=0, show_default=True, help="Copies of each vbucket on other nodes, 0 to 3; needs --nodes."
)
@click.option("--bucket", "buckets", multiple=True, default=("default",), show_default=True, help="May be repeated.")
@administrator_options
@click.option(
    "--users",
    type=click.Path(path_type=Path),
    help='JSON file of more users: {"name": {"password": "…", "roles": ["data_reader[bucket]"]}}.',
)
@click.option(
    "--data", type=click.Path(path_type=Path), help="Directory for the data; without it, all data is in memory."
)
@click.option(
    "--flush-interval", default=node_defaults.FLUSH_INTERVAL_S, show_default=True, help="Seconds between commits."
)
@click.option(
    "--persist",
    type=click.Choice([level.value for level in Persist]),
    help="When a write is answered: at once, and made durable lazily (none) or every few milliseconds (group, the "
    "default), or when it is durable (every).",
)
@click.option(
    "--set",
    "texts",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of new buckets, such as max_ttl=3600; may be repeated. --set help lists the settings.",
)
@click.option(
    "--alternate-address",
    "alternate_addresses",
    multiple=True,
    metavar="NETWORK=HOST[,kv=PORT][,mgmt=PORT]",
    help="The node's address in another network, such as external=db.example,kv=31210; may be repeated.",
)
@click.option(
    "--release",
    "releases",
    type=click.Choice(node_defaults.RELEASES),
    multiple=True,
    default=(node_defaults.RELEASE,),
    show_default=True,
    help="The server release that clients see. For nodes of different releases give it for each of --nodes.",
)
@click.option(
    "--system-scope/--no-system-scope",
    default=True,
    show_default=True,
    help="Whether new buckets have the scope _system from release 7.6 on, as the buckets of a cluster do.",
)
@click.option(
    "--server-bug",
    "server_bugs",
    type=click.Choice((*node_defaults.SERVER_BUGS, "none")),
    multiple=True,
    help="A known bug of servers that the node has; may be repeated; none for none.  [default: those of --release]",
)
@click.option(
    "--development", is_flag=True, help="Let users with the rights to write change documents on the status page."
)
@ready_file_option
@security_options
@click.option("-v", "--verbose", count=True, help="Log more; twice for every connection.")
def node_command(
    host: str,
    port: int,
    mgmt_port: int,
    vbuckets: int | None,
    nodes: int,
    processes: bool,
    replicas: int,
    buckets: tuple[str, ...],
    username: str,
    password: str,
    users: Path | None,
    data: Path | None,
    flush_interval: float,
    persist: str | None,
    texts: tuple[str, ...],
    alternate_addresses: tuple[str, ...],
    releases: tuple[str, ...],
    system_scope: bool,
    server_bugs: tuple[str, ...],
    ready_file: Path | None,
    development: bool,
    verbose: int,
    **security: Any,
) -> None:
    """Run a Couchbase-compatible node until SIGTERM or Ctrl-C.

    Clients connect to couchbase://HOST:PORT. With --data, writes survive a restart, and a kill loses at most the writes
    of the last --flush-interval.

    With --nodes, the nodes are one cluster. The first node has --port and --mgmt-port, each further node the next ones.
    With --data, each node has a directory in it, and the same command starts the whole cluster again.
    """
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if "help" in texts:
        click.echo("\n".join(settings_with_defaults()))
        return
    check_ready_file(ready_file)
    guarded = security_arguments(security, password)
    allow_connections(guarded["limits"])
    arguments = {
        "buckets": buckets,
        "path": data,
        "host": host,
        "port": port,
        "mgmt_port": mgmt_port,
        "username": username,
        "users": read_secret_json(users, "--users") if users is not None else None,
        "flush_interval_s": flush_interval,
        "settings": read_settings(texts, persist),
        "alternate_addresses": read_alternate_addresses(alternate_addresses),
        "release": releases[0] if len(releases) == 1 else releases,
        "system_scope": system_scope,
        "server_bugs": [name for name in server_bugs if name != "none"] if server_bugs else None,
        "development": development,
        **guarded,
    }
    if nodes == 1 and replicas:
        message = f"--replicas {replicas} needs further nodes for the copies: give --nodes, too"
        raise ConfigError("--replicas", replicas, "0 with one node", message=message)
    from dcpstream_node.embedded import Node

    if data is None:
        keep_large_buffers_apart()
    node: Node | Cluster
    if nodes == 1:
        node = Node(vbuckets=vbuckets, **arguments)
    else:
        from dcpstream_node.cluster import Cluster

        node = Cluster(nodes, replicas, vbuckets=vbuckets, processes=processes, **arguments)
    with stop_signals() as stopping, node:
        spare_what_is_loaded()
        members = [node] if isinstance(node, Node) else [each.node for each in node.nodes]
        with announced(members, ready_file):
            stopping.wait()
