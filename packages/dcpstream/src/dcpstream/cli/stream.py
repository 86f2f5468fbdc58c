"""`dcpstream stream`: a bucket's changes as JSON lines."""

from __future__ import annotations

import base64
import contextlib
import json
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import click

from dcpstream.cli.connection_options import BucketAccess, access_options
from dcpstream.cli.new_files import check_directory
from dcpstream.errors import ConfigError
from dcpstream.model import Op

if TYPE_CHECKING:
    from dcpstream.client import Change, OffsetStore
    from dcpstream.client.machine.rollback_policy import OnPurgeGap, RewindTo

_SQLITE_SUFFIXES = frozenset((".db", ".sqlite", ".sqlite3"))

collections_option = click.option(
    "--collections",
    help="Only these, separated by commas: scope.collection, scope.* (or scope), or a collection of _default.",
)
limit_option = click.option("--limit", type=click.IntRange(min=1), help="End after this number of lines.")


@click.command("stream")
@access_options(is_argument=True)
@click.option(
    "--from",
    "start",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    show_default=True,
    help="Where to start; vbuckets with saved offsets resume there.",
)
@click.option("--follow", is_flag=True, help="Wait for further changes, instead of ending at the current ones.")
@click.option(
    "--offsets",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to save positions in and to resume from (.db, .sqlite: SQLite, else a text file).",
)
@collections_option
@click.option(
    "--on-rollback",
    type=click.Choice(["fail", "rewind"]),
    default="fail",
    show_default=True,
    help="After a rollback: end with status 6, or print a rollback line and read the new history.",
)
@click.option(
    "--rewind-to",
    type=click.Choice(["recorded", "zero"]),
    default="recorded",
    show_default=True,
    help="With --on-rollback rewind: go back to a saved position, or read the vbucket from its beginning.",
)
@click.option("--stable", is_flag=True, help="Only changes that all copies have on disk.")
@click.option(
    "--purge-gap",
    type=click.Choice(["fail", "ignore", "reconcile"]),
    help="If deletions were purged before they were read: end with status 6, continue with a warning, or (with "
    "--on-rollback rewind) read again.  [default: fail, with rewind reconcile]",
)
@limit_option
def stream_command(
    access: BucketAccess,
    start: Literal["earliest", "latest"],
    follow: bool,
    offsets: Path | None,
    collections: str | None,
    on_rollback: Literal["fail", "rewind"],
    rewind_to: RewindTo,
    limit: int | None,
    stable: bool,
    purge_gap: OnPurgeGap | None,
) -> None:
    """Print the changes of a bucket, one JSON object per line.

    64-bit numbers (seqno, vbuuid, cas, rev) are texts. The document is in "value" if it is JSON, else in "text" or
    "base64"; deletions have none of them. Lines about scopes and collections have an op such as collection_dropped and
    no key; each vbucket prints them once. With --offsets, a line may be repeated after a kill, but none is left out.

    A line with "op": "rollback" says that all lines of its vbucket with a higher seqno, printed by this run or by an
    earlier one, are void. The valid ones are printed again.
    """
    if start == "latest" and not follow and offsets is None:
        message = "--from latest needs --follow (or --offsets): a read that begins now and ends now has no changes"
        raise ConfigError("--from", "latest", "latest with --follow", message=message)
    from dcpstream.client import StreamOptions

    with access.client() as client:
        store = offset_store(offsets)
        options = StreamOptions(
            start=start,
            end=None if follow else "latest",
            store=store,
            collections=names_in(collections),
            on_rollback=on_rollback,
            rewind_to=rewind_to,
            read_stable=stable,
            purge_gap=purge_gap,
        )
        with contextlib.closing(client.changes(options)) as changes:
            # Flush before a position is saved, and for readers of the pipe.
            last = print_changes(islice(changes, limit), sys.stdout, is_flushed=follow or offsets is not None)
        if store is not None and last is not None:
            from dcpstream.client.positions import save_after

            save_after(store, last)  # with a limit, no further change was requested


def names_in(text: str | None) -> list[str] | None:
    """The names of --collections; None for all."""
    return None if text is None else [name.strip() for name in text.split(",")]


def offset_store(path: Path | None, option: str = "--offsets") -> OffsetStore | None:
    """The store for a file name.

    Args:
        path: of the file; None for no store.
        option: what gives the path, for the message.

    Raises: ConfigError: its directory does not exist.
    """
    if path is None:
        return None
    check_directory(option, path)
    from dcpstream.client import FileOffsetStore, SqliteOffsetStore

    return SqliteOffsetStore(path) if path.suffix in _SQLITE_SUFFIXES else FileOffsetStore(path)


def print_changes(changes: Iterable[Change], output: IO[str], *, is_flushed: bool) -> Change | None:
    """Print each change as a line, flushed before the next one is requested if `is_flushed`; return the last one."""
    change = None
    for change in changes:
        output.write(line_of(change) + "\n")
        if is_flushed:
            output.flush()
    output.flush()
    return change


def line_of(change: Change) -> str:
    """A change as JSON; a document that is nested too deeply to be written is printed as text."""
    row = as_object(change)
    try:
        return json.dumps(row, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        if row.pop("value", None) is not None and change.value is not None:
            row["text"] = change.value.decode()
        if "xattrs" in row:
            row["xattrs"] = {name: text.decode(errors="replace") for name, text in change.xattrs.items()}
        return json.dumps(row, ensure_ascii=False, separators=(",", ":"))


def as_object(change: Change) -> dict[str, Any]:
    """A change as JSON values."""
    row: dict[str, Any] = {"op": change.op}
    if not Op(change.op).is_control:
        try:
            row["key"] = change.key.decode()
        except UnicodeDecodeError:
            row["key_base64"] = base64.b64encode(change.key).decode()
    if change.value is not None:
        row |= value_in_json(change.value)
    row |= {
        "scope": change.scope,
        "collection": change.collection,
        "vbucket": change.vbid,
        "vbuuid": str(change.vbuuid),
        "seqno": str(change.seqno),
        "rev": str(change.rev),
        "cas": str(change.cas),
        "flags": change.flags,
        "datatype": change.datatype,
        "expiry": change.expiry,
    }
    if change.xattrs:
        row["xattrs"] = {name: value_in_json(text).get("value") for name, text in change.xattrs.items()}
    return row


def value_in_json(value: bytes) -> dict[str, Any]:
    """A document as JSON: "value" if it is JSON itself, else "text" or "base64"."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
    try:
        return {"value": json.loads(text)}
    except (ValueError, RecursionError):
        return {"text": text}
