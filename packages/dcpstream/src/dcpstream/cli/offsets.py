"""`dcpstream offsets`: look at saved positions, compare, move and convert them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dcpstream.cli import foreign_offsets
from dcpstream.cli.connection_options import BucketAccess, access_options
from dcpstream.cli.exits import FAILED, OK
from dcpstream.cli.output import json_option, report
from dcpstream.cli.stream import offset_store
from dcpstream.errors import ConfigError, OffsetError
from dcpstream.model import StreamOffset

if TYPE_CHECKING:
    from dcpstream.client import BranchState, OffsetStore, SavedOffset

_FILE = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
_FORMAT = click.option(
    "--format",
    "form",
    type=click.Choice(["kafka-connect", "go-dcp"]),
    required=True,
    help="kafka-connect: the JSON of GET and PATCH /connectors/NAME/offsets; go-dcp: its file of metadata.",
)
_JSON = json_option()


@click.group("offsets")
def offsets_command() -> None:
    """Look at the positions that `stream` and `tail` save with --offsets, compare, move and convert them.

    FILE is such a file. No reader may use it meanwhile.
    """


@offsets_command.command("show")
@_FILE
@_JSON
def show_command(file: Path, as_json: bool) -> int:
    """Print the position of each vbucket."""
    saved = _loaded(file)[1]
    if as_json:
        click.echo(json.dumps({str(vbid): saved[vbid].to_json() for vbid in sorted(saved)}))
        return OK
    for vbid in sorted(saved):
        click.echo(f"vbucket {vbid}: {_text(saved[vbid].offset)}{_marks(saved[vbid])}")
    click.echo(f"{len(saved)} vbuckets, {sum(record.offset.seqno for record in saved.values())} seqnos read in all")
    return OK


@offsets_command.command("diff")
@_FILE
@click.argument("other", required=False, type=click.Path(path_type=Path, dir_okay=False))
@access_options(is_argument=False)
@_JSON
def diff_command(file: Path, other: Path | None, access: BucketAccess, as_json: bool) -> int:
    """Compare FILE with the file OTHER, or without OTHER with the bucket: how many seqnos it lags behind.

    Status 1 if they differ.
    """
    saved = {vbid: record.offset for vbid, record in _loaded(file)[1].items()}
    if other is not None:
        rows = _differences(saved, {vbid: record.offset for vbid, record in _loaded(other)[1].items()})
    else:
        rows = _lags(saved, _observed(access))
    if as_json:
        click.echo(json.dumps([{"vbucket": vbid, "difference": text} for vbid, text in rows.items()]))
    else:
        for vbid, text in rows.items():
            click.echo(f"vbucket {vbid}: {text}")
        click.echo(f"{len(rows)} vbuckets differ" if rows else "no difference")
    return FAILED if rows else OK


@offsets_command.command("seek")
@_FILE
@access_options(is_argument=False)
@click.option("--to", "target", required=True, help="earliest, latest, or (with --vbucket) a seqno.")
@click.option("--vbucket", "only", multiple=True, type=click.IntRange(0, 1023), help="Only this; may be repeated.")
@_JSON
def seek_command(file: Path, access: BucketAccess, target: str, only: tuple[int, ...], as_json: bool) -> int:
    """Move the positions in FILE: the next run reads from there. What was saved is replaced."""
    is_seqno = target.isascii() and target.isdigit()
    if not is_seqno and target not in ("earliest", "latest"):
        message = f"--to: {target} is no position. Write earliest, latest, or a seqno"
        raise ConfigError("--to", target, "earliest, latest, or a seqno", message=message)
    if is_seqno and not only:
        message = "--to a seqno needs --vbucket: each vbucket counts its own seqnos"
        raise ConfigError("--to", target, "a seqno with --vbucket", message=message)
    store, _ = _loaded(file, must_exist=False)
    states = _observed(access)
    missing = sorted(set(only) - set(states))
    if missing:
        message = f"the bucket serves no vbucket {', '.join(map(str, missing))}"
        raise ConfigError("--vbucket", missing, "vbuckets of the bucket", message=message)
    fresh = {vbid: _sought(target, vbid, states[vbid]) for vbid in only or sorted(states)}
    from dcpstream.client import SavedOffset

    store.save({vbid: SavedOffset(offset) for vbid, offset in fresh.items()})
    return report(f"{len(fresh)} vbuckets of {file} are at {target}", as_json=as_json)


@offsets_command.command("export")
@_FILE
@_FORMAT
@click.option("--bucket", default="default", show_default=True, help="Its name, for kafka-connect.")
@click.option("--bucket-uuid", default="", help="For go-dcp, which checks it; `bucket list --json` prints it.")
def export_command(file: Path, form: foreign_offsets.Format, bucket: str, bucket_uuid: str) -> int:
    """Print the positions in FILE for another reader, which goes on where ours ended."""
    if form == "go-dcp" and not bucket_uuid:
        message = "--format go-dcp needs --bucket-uuid; `dcpstream bucket list --json` prints it"
        raise ConfigError("--bucket-uuid", None, "the bucket's uuid", message=message)
    saved = _loaded(file)[1]
    click.echo(foreign_offsets.write(saved, form, bucket, bucket_uuid=bucket_uuid))
    return OK


@offsets_command.command("import")
@click.argument("source", metavar="SOURCE|-", type=click.Path(path_type=Path))
@_FILE
@_FORMAT
@access_options(is_argument=False)
@_JSON
def import_command(source: Path, file: Path, form: foreign_offsets.Format, access: BucketAccess, as_json: bool) -> int:
    """Save the positions of another reader in SOURCE (- is standard input) to FILE, so that `stream` goes on there.

    Asks the bucket to complete positions without the bounds of their snapshot. A position without a branch of history
    is taken to be on the branch of now. A position on a branch that the bucket no longer writes stays as it is: the
    bucket asks the next run for a rollback.
    """
    is_standard_input = str(source) == "-"
    data = sys.stdin.buffer.read() if is_standard_input else source.read_bytes()
    where = "standard input" if is_standard_input else str(source)
    try:
        found = foreign_offsets.read(data, form, access.bucket)
    except OffsetError as error:
        raise OffsetError(f"{where}: {error}") from error
    if not found:
        raise OffsetError(f"{where} has no positions of bucket {access.bucket}")
    store, present = _loaded(file, must_exist=False)
    if present:
        message = f"{file} has positions already; import into a new file"
        raise ConfigError("FILE", str(file), "a new file", message=message)
    states = _observed(access)
    beyond = sorted(set(found) - set(states))
    if beyond:
        raise OffsetError(
            f"the bucket serves no vbucket {', '.join(map(str, beyond))}: are these positions of another?"
        )
    from dcpstream.client import SavedOffset

    store.save({vbid: SavedOffset(foreign_offsets.resolved(offset, states[vbid])) for vbid, offset in found.items()})
    guessed = sum(foreign_offsets.has_no_branch(offset) for offset in found.values())
    if guessed:
        click.echo(
            f"{guessed} positions name no branch of their vbucket's history; they are taken to be on that of now. If "
            "the cluster lost changes since they were saved, changes of the new branch may be missing",
            err=True,
        )
    return report(f"{len(found)} vbuckets imported to {file}", as_json=as_json)


def _loaded(file: Path, *, must_exist: bool = True) -> tuple[OffsetStore, dict[int, SavedOffset]]:
    if must_exist and not file.exists():
        message = f"there is no file {file}"
        raise ConfigError("FILE", str(file), "a file of saved positions", message=message)
    store = offset_store(file, "FILE")
    assert store is not None
    return store, store.load()


def _observed(access: BucketAccess) -> dict[int, BranchState]:
    with access.client() as client:
        return client.cluster.observe()


def _sought(target: str, vbid: int, state: BranchState) -> StreamOffset:
    if target == "earliest":
        return StreamOffset.ZERO
    if target == "latest":
        return StreamOffset(state.vbuuid, state.high_seqno, state.high_seqno, state.high_seqno)
    seqno = int(target)
    if seqno > state.high_seqno:
        message = f"vbucket {vbid} has no seqno {seqno} yet: its last one is {state.high_seqno}"
        raise ConfigError("--to", target, f"at most {state.high_seqno}", message=message)
    from dcpstream.client.machine.resume import complete

    return complete(StreamOffset(state.vbuuid, seqno, 0, None), state)


def _differences(one: Mapping[int, StreamOffset], other: Mapping[int, StreamOffset]) -> dict[int, str]:
    rows = {}
    for vbid in sorted({*one, *other}):
        if vbid not in one or vbid not in other:
            rows[vbid] = "only in the first file" if vbid in one else "only in the second file"
        elif (one[vbid].vbuuid, one[vbid].seqno) != (other[vbid].vbuuid, other[vbid].seqno):
            rows[vbid] = f"{_text(one[vbid])} | {_text(other[vbid])}"
    return rows


def _lags(saved: Mapping[int, StreamOffset], states: Mapping[int, BranchState]) -> dict[int, str]:
    rows = {}
    for vbid in sorted({*saved, *states}):
        if vbid not in states:
            rows[vbid] = "the bucket does not serve it now"
            continue
        state, offset = states[vbid], saved.get(vbid, StreamOffset.ZERO)
        if not state.continues(offset):
            rows[vbid] = f"{_text(offset)}; the bucket now writes branch {state.vbuuid:x}: a rollback is likely"
        elif offset.seqno < state.high_seqno:
            rows[vbid] = f"{state.high_seqno - offset.seqno} seqnos behind {state.high_seqno}"
    return rows


def _text(offset: StreamOffset) -> str:
    end = "?" if offset.snapshot_end is None else offset.snapshot_end
    return f"seqno {offset.seqno} of branch {offset.vbuuid:x}, snapshot {offset.snapshot_start}..{end}"


def _marks(record: SavedOffset) -> str:
    return ", in a rollback" if record.is_rolling_back else ""
