"""`dcpstream kv`: read, write, delete and list single documents."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from dcpstream.cli.connection_options import BucketAccess, access_options
from dcpstream.cli.exits import FAILED, OK
from dcpstream.cli.output import json_option
from dcpstream.cli.selecting import key_options, key_selector
from dcpstream.cli.stream import value_in_json
from dcpstream.model import Op

if TYPE_CHECKING:
    from dcpstream.client import Change

_COLLECTION = click.option("--collection", metavar="SCOPE.COLLECTION", help="Instead of the default collection.")
_JSON = json_option("Print JSON, a line for each document.")


@click.group("kv")
def kv_command() -> None:
    """Read, write, delete and list documents of any node, ours or a Couchbase server's."""


@kv_command.command("get")
@click.argument("keys", metavar="KEY…", nargs=-1, required=True)
@access_options(is_argument=False)
@_COLLECTION
@_JSON
def get_command(keys: tuple[str, ...], access: BucketAccess, collection: str | None, as_json: bool) -> int:
    """Print documents as they are stored, a line break after each. Status 1 if one does not exist."""
    with access.documents(collection) as documents:
        found = documents.get_many(keys)
    for key, document in zip(keys, found, strict=True):
        if document is None:
            click.echo(f"there is no document {key}", err=True)
        elif as_json:
            about = {"cas": str(document.cas), "flags": document.flags, "datatype": document.datatype}
            click.echo(json.dumps({"key": key, **value_in_json(document.value), **about}, ensure_ascii=False))
        else:
            sys.stdout.buffer.write(document.value + b"\n")
            sys.stdout.buffer.flush()
    return OK if None not in found else FAILED


@kv_command.command("set")
@click.argument("key")
@click.argument("value", metavar="VALUE|-")
@access_options(is_argument=False)
@_COLLECTION
@_JSON
@click.option("--expiry", type=click.IntRange(min=0), default=0, help="Seconds after which it expires; 0: never.")
@click.option("--flags", type=click.IntRange(0, 0xFFFFFFFF), default=0, help="A number that is stored with it.")
def set_command(
    key: str, value: str, access: BucketAccess, collection: str | None, as_json: bool, expiry: int, flags: int
) -> int:
    """Write a document, whether it exists or not. The value - is standard input."""
    body = sys.stdin.buffer.read() if value == "-" else value.encode()
    with access.documents(collection) as documents:
        token = documents.set(key, body, flags=flags, expiry=expiry)
    place = {"key": key, "vbucket": token.vbid, "seqno": str(token.seqno), "cas": str(token.cas)}
    click.echo(json.dumps(place) if as_json else f"{key}: vbucket {token.vbid}, seqno {token.seqno}, cas {token.cas}")
    return OK


@kv_command.command("delete")
@click.argument("keys", metavar="KEY…", nargs=-1, required=True)
@access_options(is_argument=False)
@_COLLECTION
@_JSON
def delete_command(keys: tuple[str, ...], access: BucketAccess, collection: str | None, as_json: bool) -> int:
    """Delete documents. Status 1 if one does not exist."""
    with access.documents(collection) as documents:
        tokens = documents.delete_many(keys)
    for key, token in zip(keys, tokens, strict=True):
        if token is None:
            click.echo(f"there is no document {key}", err=True)
        elif as_json:
            click.echo(json.dumps({"key": key, "vbucket": token.vbid, "seqno": str(token.seqno)}))
        else:
            click.echo(f"{key}: deleted")
    return OK if None not in tokens else FAILED


@kv_command.command("ls")
@access_options(is_argument=False)
@_COLLECTION
@_JSON
@key_options
@click.option("--limit", type=click.IntRange(min=1), help="So many at most, of all keys in order.")
def ls_command(
    access: BucketAccess, collection: str | None, as_json: bool, prefix: str, regex: str | None, limit: int | None
) -> int:
    """Print the keys in order. Reads all changes of the collection once, without the documents."""
    from dcpstream.client import StreamOptions

    is_wanted = key_selector(prefix, regex)
    with access.client() as client:
        options = StreamOptions(end="latest", collections=[collection or "_default._default"], keys_only=True)
        with contextlib.closing(client.changes(options)) as changes:
            found = _keys(changes, is_wanted)
    for key in sorted(found)[:limit]:
        text = key.decode(errors="backslashreplace")
        click.echo(json.dumps({"key": text}) if as_json else text)
    return OK


def _keys(changes: Iterable[Change], is_wanted: Callable[[bytes], bool]) -> set[bytes]:
    """The wanted keys that exist after these changes."""
    found: set[bytes] = set()
    for change in changes:
        if Op(change.op).is_control or not is_wanted(change.key):
            continue
        if change.op == Op.MUTATION:
            found.add(change.key)
        else:
            found.discard(change.key)
    return found
