"""`dcpstream collection`: make, list and drop scopes and collections, over the management port."""

from __future__ import annotations

import json
from typing import Any

import click

from dcpstream.cli.bucket import BUCKETS, yes_option
from dcpstream.cli.connection_options import bucket_option
from dcpstream.cli.exits import OK
from dcpstream.cli.management import Management, management_options, path_of
from dcpstream.cli.output import report
from dcpstream.errors import ConfigError


@click.group("collection")
def collection_command() -> None:
    """Make, list and drop the scopes and collections of a bucket, of our node or a Couchbase server."""


@collection_command.command("list")
@management_options(Management)
@bucket_option
def list_command(cluster: Management, as_json: bool, bucket: str) -> int:
    """Print the collections as scope.collection; and scope.* for a scope that has none."""
    manifest = cluster.get(_scopes(bucket))
    if as_json:
        click.echo(json.dumps(manifest))
        return OK
    for scope in manifest["scopes"]:
        for item in scope["collections"] or [{"name": "*"}]:
            click.echo(f"{scope['name']}.{item['name']}{_extras(item)}")
    return OK


@collection_command.command("create")
@click.argument("name", metavar="SCOPE.COLLECTION")
@management_options(Management)
@bucket_option
@click.option("--max-ttl", type=click.IntRange(min=0), help="Seconds that a document lives at most.")
def create_command(name: str, cluster: Management, as_json: bool, bucket: str, max_ttl: int | None) -> int:
    """Make a collection, and its scope if there is none. SCOPE.* makes the scope alone."""
    scope, collection = _parts(name)
    path = _scopes(bucket)
    if collection == "*":
        cluster.post(path, {"name": scope})
        return report(f"scope {scope} made", as_json=as_json)
    if scope not in {each["name"] for each in cluster.get(path)["scopes"]}:
        cluster.post(path, {"name": scope})
    form = {"name": collection} | ({} if max_ttl is None else {"maxTTL": str(max_ttl)})
    cluster.post(f"{path}{path_of(scope)}/collections", form)
    return report(f"collection {name} made", as_json=as_json)


@collection_command.command("drop")
@click.argument("name", metavar="SCOPE.COLLECTION")
@management_options(Management)
@bucket_option
@yes_option
def drop_command(name: str, cluster: Management, as_json: bool, bucket: str) -> int:
    """Delete a collection with its documents. SCOPE.* deletes the scope with all its collections."""
    scope, collection = _parts(name)
    path = f"{_scopes(bucket)}{path_of(scope)}"
    if collection == "*":
        cluster.delete(path)
        return report(f"scope {scope} dropped", as_json=as_json)
    cluster.delete(f"{path}/collections{path_of(collection)}")
    return report(f"collection {name} dropped", as_json=as_json)


def _scopes(bucket: str) -> str:
    return f"{BUCKETS}{path_of(bucket)}/scopes"


def _parts(name: str) -> tuple[str, str]:
    scope, dot, collection = name.partition(".")
    if not (scope and dot and collection) or "." in collection:
        message = f"{name} does not name a collection: write SCOPE.COLLECTION, or SCOPE.* for the scope itself"
        raise ConfigError("SCOPE.COLLECTION", name, "SCOPE.COLLECTION", message=message)
    return scope, collection


def _extras(item: dict[str, Any]) -> str:
    return f"  expires after {item['maxTTL']} s" if item.get("maxTTL", 0) > 0 else ""
