"""The work and the output of `dcpstream store`; the command itself does not load the store for its help."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from dcpstream.cli.exits import FAILED, OK
from dcpstream.errors import ConfigError, StoreError, TooManySegments
from dcpstream.runtime.descriptors import allow_descriptors
from dcpstream.runtime.files import NO_ROOM
from dcpstream_node.directory.check import DirectoryReport, check_directory, is_acknowledged_in_directory
from dcpstream_node.directory.directory import CLUSTER_FILE
from dcpstream_node.directory.directory import FILE_NAME as NODE_FILE
from dcpstream_node.store.closed.check import OnProgress, SegmentReport, StoreReport, check_store
from dcpstream_node.store.closed.detect import is_store
from dcpstream_node.store.log.block_scan import Damage
from dcpstream_node.store.log.blocks import RESTORE_HINT
from dcpstream_node.store.metadata import FILE_NAME as META_FILE

SHOWN_DAMAGE = 50
"""Limit of lines about damage per store; `--json` has all."""


def check(directory: Path, *, as_json: bool) -> int:
    """Print the findings in the stores of a directory; returns the exit status."""
    found = _found(directory)
    reports = []
    for path, is_acknowledged in found.stores:
        with _progress(f"checking {path}") as on_progress:
            reports.append(_checked(path, on_progress, is_acknowledged=is_acknowledged))
    if as_json:
        content: dict[str, Any] = {"stores": [_as_object(report) for report in reports]}
        content["node"] = _node_object(found.node) if found.node is not None else None
        click.echo(json.dumps(content, indent=2))
    else:
        lines = [*_shown_node(found.node)] if found.node is not None else []
        lines += [line for report in reports for line in _shown(report)]
        click.echo("\n".join(lines))
    is_sound = all(report.is_sound for report in reports)
    return OK if is_sound and not (found.node is not None and found.node.damaged) else FAILED


@dataclass(frozen=True, slots=True)
class _Found:
    """The contents of DIR.

    Attributes:
        stores: directory of each store, and whether the node's own file names it.
        node: None if DIR is the directory of one store.
    """

    stores: list[tuple[Path, bool]]
    node: DirectoryReport | None


def _found(directory: Path) -> _Found:
    """Find the stores.

    Raises:
        ConfigError: DIR holds no store and no file of a node.
    """
    if is_store(directory) or (is_acknowledged_in_directory(directory) and not (directory / NODE_FILE).exists()):
        return _Found([(directory, is_acknowledged_in_directory(directory))], None)
    report = check_directory(directory)
    if not report.is_of_node and (directory / CLUSTER_FILE).exists():
        nodes = " ".join(str(entry) for entry in sorted(directory.iterdir()) if entry.is_dir())
        message = f"{directory} is the directory of a cluster. Name one of its nodes: {nodes}"
        raise ConfigError("DIR", str(directory), "the directory of one node", message=message)
    if not report.is_of_node:
        message = f"{directory} is neither a store (it has no {META_FILE}) nor a directory with stores in it"
        raise ConfigError("DIR", str(directory), "a directory with a store, or with stores", message=message)
    return _Found([(path, path.name in report.acknowledged) for path in report.stores], report)


def _checked(path: Path, on_progress: OnProgress | None, *, is_acknowledged: bool) -> StoreReport:
    """The report of one store. An unreadable store becomes a problem in its report, so that the others are checked.

    Raises:
        TooManySegments: the system does not allow that many open files, which says nothing about the store.
    """
    try:
        allow_descriptors(sum(1 for _ in path.iterdir()))
        return check_store(path, on_progress, is_acknowledged=is_acknowledged)
    except TooManySegments:
        raise
    except (StoreError, OSError) as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise  # the directory for temporary files has no room for the copy of the metadata
        return StoreReport(directory=str(path), problems=[str(error)])


@contextmanager
def _progress(what: str) -> Iterator[OnProgress | None]:
    """A bar on standard error, if that is a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def _as_object(report: StoreReport) -> dict[str, Any]:
    content = asdict(report)
    content["is_sound"] = report.is_sound
    content["last_commit"] = report.last_commit
    content["last_seqnos"] = {str(vbid): str(seqno) for vbid, seqno in report.last_seqnos.items()}
    for segment, of_segment in zip(report.segments, content["segments"], strict=True):
        of_segment["superseded_bytes"] = segment.superseded_bytes
    return content


def _shown(report: StoreReport) -> Iterator[str]:
    if report.is_unfinished:
        yield f"{report.directory}: what an unfinished creation of a bucket left; the next start of a node removes it"
        return
    state = "open in a node" if report.is_in_use else "closed cleanly" if report.was_closed else "not closed cleanly"
    yield f"{report.directory}: format {report.format or 'unknown'}, {state}, {report.vbuckets} vbuckets"
    yield f"  {'segment':<26}{'bytes':>14}{'blocks':>10}{'frames':>12}{'live':>12}{'live bytes':>15}{'superseded':>15}"
    for segment in report.segments:
        yield _line_of(segment)
    for segment in report.segments:
        if segment.torn_bytes:
            why = "is being written" if report.is_in_use else "a commit that did not end; opening cuts it off"
            yield f"  {Path(segment.file).name} ends in {segment.torn_bytes} bytes: {why}"
    end = None if report.was_closed or report.is_in_use else report.last_commit
    if end is not None:
        yield (
            f"  the last commit ends at byte {end[1]:,} of {Path(end[0]).name}, with {len(report.last_seqnos)} vbuckets"
            f" whose last seqnos sum up to {sum(report.last_seqnos.values()):,}. Of a store that was not closed "
            "cleanly it is not known whether there was more (--json has the seqnos, to compare with another copy)"
        )
    for name in report.others:
        yield f"  {name} does not count: what an unfinished step left; opening removes it"
    for problem in report.problems:
        yield f"  DAMAGED {problem}"
    damage = report.damage
    for found in damage[:SHOWN_DAMAGE]:
        yield from _shown_damage(found)
    if len(damage) > SHOWN_DAMAGE:
        yield f"  … and {len(damage) - SHOWN_DAMAGE} more (--json has all)"
    if report.is_sound:
        yield "  sound" if end is None else "  sound up to there"
    else:
        yield f"  {len(damage) + len(report.problems)} damaged. {RESTORE_HINT}"


def _line_of(segment: SegmentReport) -> str:
    numbers = (segment.size, segment.blocks, segment.frames, segment.live_frames)
    return (
        f"  {Path(segment.file).name:<26}{numbers[0]:>14,}{numbers[1]:>10,}{numbers[2]:>12,}{numbers[3]:>12,}"
        f"{segment.live_bytes:>15,}{segment.superseded_bytes:>15,}"
    )


def _shown_damage(found: Damage) -> Iterator[str]:
    where = f"{Path(found.file).name} at byte {found.offset}, {found.size} bytes"
    whose = "" if found.vbid is None else f"; vbucket {found.vbid}, seqnos {found.first_seqno} to {found.last_seqno}"
    yield f"  DAMAGED {where}: {found.what}{whose}"
    if found.keys:
        yield f"    keys as they read now: {', '.join(found.keys)}"


def _node_object(report: DirectoryReport) -> dict[str, Any]:
    return {
        "directory": str(report.directory),
        "damaged": {str(file): why for file, why in report.damaged.items()},
        "unfinished": [str(path) for path in report.unfinished],
        "gone": report.gone,
    }


def _shown_node(report: DirectoryReport) -> Iterator[str]:
    for path in report.unfinished:
        yield f"{path}: what an unfinished creation or deletion of a bucket left; the next start of a node removes it"
    for name in report.gone:
        yield f"{report.directory / name}: not there any more; the next start of a node forgets the bucket"
    for file, why in report.damaged.items():
        yield f"{file}:"
        yield f"  DAMAGED {why}"
    if not report.damaged and (report.directory / NODE_FILE).exists():
        yield f"{report.directory}: the node's own files are sound"
