"""`dcpstream tail`: a bucket's changes for people, one line each; `stream` is for programs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from dcpstream.cli.connection_options import BucketAccess, access_options
from dcpstream.cli.output import json_option
from dcpstream.cli.selecting import JsonPath, key_options, key_selector, nanoseconds_since, selector
from dcpstream.cli.stream import collections_option, limit_option, line_of, names_in, offset_store
from dcpstream.errors import ConfigError
from dcpstream.model import Op
from dcpstream.runtime import SystemClock

if TYPE_CHECKING:
    from dcpstream.client import Change

_COLOURS = {Op.MUTATION: "green", Op.DELETION: "red", Op.EXPIRATION: "yellow"}
_CONTROL_COLOUR = "magenta"
_GAP = "  "
_LEAST_VALUE = 16
"""Characters of the document that are shown on a narrow terminal, too."""


@click.command("tail")
@access_options(is_argument=True)
@click.option(
    "--from",
    "start",
    type=click.Choice(["earliest", "latest"]),
    help="Where to start; vbuckets with saved offsets resume there.  [default: latest, with --since or --no-follow "
    "earliest]",
)
@click.option("--since", metavar="TIME", help="Only changes since 15m, 2h, 1d ago, or since 2026-01-31T12:00:00.")
@click.option("--follow/--no-follow", default=True, show_default=True, help="Wait for further changes.")
@click.option(
    "--offsets", type=click.Path(path_type=Path, dir_okay=False), help="File of saved positions, as `stream`."
)
@collections_option
@key_options
@click.option(
    "--path",
    "paths",
    multiple=True,
    metavar="PATH[=VALUE]",
    help="Only documents with this place, such as order.items[0].sku, and this value there; may be repeated.",
)
@limit_option
@json_option("The lines of `stream`.")
@click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="auto: on a terminal, unless the variable NO_COLOR is set.",
)
def tail_command(
    access: BucketAccess,
    start: Literal["earliest", "latest"] | None,
    since: str | None,
    follow: bool,
    offsets: Path | None,
    collections: str | None,
    prefix: str,
    regex: str | None,
    paths: tuple[str, ...],
    limit: int | None,
    as_json: bool,
    color: str,
) -> None:
    """Show the changes of a bucket as they happen: time, operation, collection, key, document.

    A rollback is shown as a line of its own; the changes that hold now follow it. A change feed has no order by time,
    so --since reads the bucket from its beginning and leaves out what is older.

    On a terminal a line is cut to its width; in a pipe it is whole.
    """
    if start == "latest" and not follow and offsets is None:
        message = "--from latest needs --follow: a read that begins now and ends now has no changes"
        raise ConfigError("--from", "latest", "latest with --follow", message=message)
    since_ns = 0 if since is None else nanoseconds_since(since, SystemClock().time_ns())
    is_wanted = selector(key_selector(prefix, regex), paths=[JsonPath.parse(path) for path in paths], since_ns=since_ns)
    has_colour = is_coloured(color, os.environ, is_terminal=sys.stdout.isatty())
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    from dcpstream.client import StreamOptions

    store = offset_store(offsets)
    last = None
    with access.client() as client:
        options = StreamOptions(
            start=start or ("latest" if follow and since is None else "earliest"),
            end=None if follow else "latest",
            store=store,
            collections=names_in(collections),
            on_rollback="rewind",
        )
        with contextlib.closing(client.changes(options)) as changes:
            for change in islice(filter(is_wanted, changes), limit):
                last = change
                click.echo(line_of(change) if as_json else shown(change, width), color=has_colour)
                sys.stdout.flush()
    if store is not None and last is not None and limit is not None:
        from dcpstream.client.positions import save_after

        save_after(store, last)  # with a limit, no further change was requested


def is_coloured(choice: str, environ: Mapping[str, str], *, is_terminal: bool) -> bool:
    """Whether to print colours. Source: https://no-color.org (any value that is not empty)."""
    if choice == "auto":
        return is_terminal and not environ.get("NO_COLOR")
    return choice == "always"


def shown(change: Change, width: int | None) -> str:
    """A change as a line with colours.

    Args:
        change: what to show.
        width: of the terminal, in characters; None for whole lines.
    """
    op = Op(change.op)
    when = datetime.fromtimestamp(change.cas / 1e9, tz=UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]
    place = f"{change.scope}.{change.collection}" if change.collection else change.scope
    if op.is_control:
        text = f"{op} vbucket {change.vbid} seqno {change.seqno} {place} {printable(change.value or b'')}"
        return click.style(" ".join(text.split()), fg=_CONTROL_COLOUR)
    key, body = printable(change.key), printable(_compact(change.value))
    where, name = f"{change.vbid}/{change.seqno}", f"{op:<10}"
    if width is not None:
        taken = sum(map(len, (when, name, place, key, where))) + len(_GAP) * 5
        room = max(width - taken, _LEAST_VALUE)
        body = body if len(body) <= room else body[: room - 1] + "…"
    parts = (
        click.style(when, dim=True),
        click.style(name, fg=_COLOURS.get(op)),
        click.style(place, fg="cyan"),
        click.style(key, bold=True),
        body,
        click.style(where, dim=True),
    )
    return _GAP.join(part for part in parts if part)


def printable(data: bytes) -> str:
    """Bytes as text that cannot move the cursor or colour the terminal."""
    text = data.decode(errors="backslashreplace")
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _compact(value: bytes | None) -> bytes:
    """A document on one line."""
    if value is None:
        return b""
    try:
        found: Any = json.loads(value)
        return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")
    except (ValueError, RecursionError, UnicodeEncodeError):
        return value
