"""The contents of the monitor's pages for people: all pipelines, and one pipeline.

The summaries are those of `/progress`. What they leave out is in `Details`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dcpstream.pages.flow import Stage, chain, with_table
from dcpstream.pages.frame import Frame, Link
from dcpstream.pages.markup import (
    NONE,
    Cell,
    Row,
    counter,
    duration,
    empty,
    heads,
    link,
    moment,
    number,
    path,
    plural,
    section,
    small,
    state,
    table,
    text,
    tiles,
)
from dcpstream.pages.plots import Level, Series, plots
from dcpstream_spark.tables.engine import FoldReport
from dcpstream_spark.tables.progress import BatchReport, RollbackReport, VbucketProgress

SHOWN_BATCHES = 120
"""Batches whose times are drawn: two minutes at the default trigger."""
LISTED_BATCHES = 10
"""Batches in the table: what people read of them; the drawing shows the others."""
SHOWN_FOLDS = 10
"""Folds in the table."""
SHOWN_ROLLBACKS = 200
"""Rollbacks in the table: a failover may roll back hundreds of vbuckets at once, and people look for a few of them."""
SHOWN_VBUCKETS = 16
"""vbuckets in the table unless people ask for all: those furthest behind, of which Spark's progress names ten."""
ALL_VBUCKETS = "vbuckets=all"
"""The query of a page that shows all vbuckets."""

HOME, PIPELINES, STATIC = "/", "pipelines", "/static"
FRAME = Frame(
    server="The process of the pipelines",
    static=STATIC,
    ping="/progress",
    footer='For machines: <a href="/metrics">metrics</a>, <a href="/progress">progress</a>, '
    '<a href="/health">health</a>.',
)
STALL_ADVICE = (
    "Look at the running tasks in Spark's UI, and at the logs of the executors for a node that does not answer"
)
_STATES = {"running": "", "stalled": "warning", "failed": "critical", "stopped": "idle"}
_PIPELINES = heads(
    "Pipeline", "State", "#Rows", "#Rows/s", "#Behind", "#Last batch", "#Folds", "#Rollbacks", "#Rejects"
)
_BATCHES = heads("Batch", "Written", "#Rows", "#Append", "#Wait for a fold", "#Rollbacks")
_FLOW = heads("Part", "Holds", "-Behind", "-Lag")
_VBUCKETS = heads("vBucket", "#Read up to", "#Newest", "#Behind", "Snapshot")
_FOLDS = heads("Up to batch", "Folded", "#Written", "#Removed", "#Rejects", "#In current then", "#Time")
_ROLLBACKS = heads("vBucket", "#Batch", "Seen", "#From", "#To", "#Taken back", "Branches")


class Batch(NamedTuple):
    """A batch and when it was written, in seconds since 1970."""

    unix_s: int
    report: BatchReport


class Fold(NamedTuple):
    """A fold and when it ended, in seconds since 1970."""

    unix_s: int
    report: FoldReport


class Rollback(NamedTuple):
    """A rollback, its batch, and when that was written, in seconds since 1970."""

    unix_s: int
    batch_id: int
    report: RollbackReport


@dataclass(frozen=True, slots=True)
class Details:
    """The content of a pipeline's page after its summary.

    Attributes:
        batches, folds, rollbacks: the newest, oldest first.
        vbuckets: all that the pipeline reads, by number.
        rejects_place: place of the documents that do not fit the schema; None without a schema.
        unix_s: now, in seconds since 1970.
    """

    batches: Sequence[Batch]
    folds: Sequence[Fold]
    rollbacks: Sequence[Rollback]
    vbuckets: Sequence[VbucketProgress]
    rejects_place: str | None
    unix_s: int


def page(title: str, content: str, *, host: str, here: str, trail: Sequence[Link] = ()) -> str:
    """A whole page; see `Frame.page`."""
    return FRAME.page(title, content, host=host, links=[Link("Pipelines", HOME)], here=here, trail=trail)


# -------------------------------------------------------------------------------------------------------- all pipelines


def overview_content(summaries: Sequence[dict[str, Any]]) -> str:
    """The content of the page of all pipelines."""
    running = sum(each["state"] == "running" for each in summaries)
    lags = [each["total_lag"] for each in summaries if each["total_lag"] is not None]
    lag = sum(lags) if lags else None
    rows = sum(each["rows"] for each in summaries)
    unknown = len(summaries) - len(lags)
    rollbacks, rejects = (sum(each[key] for each in summaries) for key in ("rollbacks", "rejected"))
    return "\n".join(
        (
            tiles(
                (
                    ("Pipelines", f"{len(summaries):,}", f"{running:,} running"),
                    ("Rows", f"{rows:,}", "written to changes"),
                    ("Rows per second", counter("rows", rows), "of all pipelines"),
                    ("Behind", _known(lag), f"{unknown:,} not known" if unknown else "seqnos to read"),
                    ("Rollbacks", f"{rollbacks:,}", "of vbuckets"),
                    ("Rejects", f"{rejects:,}", "documents that do not fit"),
                )
            ),
            plots(Series("Rows per second", "rows", rows), Level("Seqnos behind", "lag", lag)),
            table(
                "pipelines",
                "Pipelines",
                _PIPELINES,
                [_pipeline(each) for each in summaries],
                "No pipeline is being watched.",
            ),
        )
    )


def _pipeline(summary: dict[str, Any]) -> Row:
    name, lag = summary["name"], summary["total_lag"]
    error = small(text(summary["error"])) if summary["error"] else ""
    has_batch = summary["batches"] > 0
    return Row(
        name,
        (
            Cell(link(path(PIPELINES, name), text(name)), name),
            Cell(_state(summary) + error, summary["state"]),
            number(summary["rows"]),
            counter(f"rows-{name}", summary["rows"]),
            NONE if lag is None else _behind(lag),
            Cell(f"{duration(summary['seconds_since_batch'])} ago", summary["seconds_since_batch"])
            if has_batch
            else NONE,
            number(summary["folds"]),
            number(summary["rollbacks"]),
            number(summary["rejected"]),
        ),
    )


def _state(summary: dict[str, Any]) -> str:
    return state(summary["state"], _STATES[summary["state"]])


def _behind(lag: int) -> Cell:
    return Cell(f'<span class="{"behind" if lag else ""}">{lag:,}</span>', lag)


def _known(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


# --------------------------------------------------------------------------------------------------------- one pipeline


def pipeline_content(summary: dict[str, Any], details: Details, *, here: str, shows_all: bool = False) -> str:
    """The content of a pipeline's page.

    Args:
        here: path of the page.
        shows_all: whether all vbuckets are shown.
    """
    rows = summary["rows"]
    return "\n".join(
        part
        for part in (
            _facts(summary),
            _tiles(summary, details),
            _flow(summary, details),
            plots(Series("Rows per second", "rows", rows), Level("Seqnos behind", "lag", summary["total_lag"])),
            _times(details.batches),
            table(
                "batches",
                "Batches",
                _BATCHES,
                [_batch(each) for each in reversed(details.batches[-LISTED_BATCHES:])],
                "No batch has been written since the monitor began.",
                note=_newest(summary["batches"], LISTED_BATCHES),
            ),
            _vbuckets(details.vbuckets, here, shows_all=shows_all),
            table(
                "folds",
                "Folds into current",
                _FOLDS,
                [_fold(each) for each in reversed(details.folds)],
                "Nothing has been folded since the monitor began.",
                note=_newest(summary["folds"], SHOWN_FOLDS),
            ),
            _rejects(summary, details),
            table(
                "rollbacks",
                "Rollbacks",
                _ROLLBACKS,
                [_rollback(each) for each in reversed(details.rollbacks)],
                "No vbucket was rolled back since the monitor began.",
                note=_newest(summary["rollbacks"], SHOWN_ROLLBACKS),
            ),
        )
        if part
    )


def _newest(count: int, shown: int) -> str:
    return f"The newest {shown:,} of {count:,}." if count > shown else ""


def _facts(summary: dict[str, Any]) -> str:
    shown = f'<p class="facts">{_state(summary)}</p>'
    if summary["error"]:
        return f'{shown}<p class="problem">{text(summary["error"])}</p>'
    if summary["state"] == "stalled":
        return f'{shown}<p class="problem">It has work but writes nothing. {text(STALL_ADVICE)}.</p>'
    return shown


def _tiles(summary: dict[str, Any], details: Details) -> str:
    rows, batch_id, tail = summary["rows"], summary["batch_id"], summary["tail_rows"]
    inside = summary["vbuckets_inside_snapshot"]
    since = f"{duration(summary['seconds_since_batch'])} ago" if summary["batches"] else "none since the monitor began"
    rejects = f"{summary['rejected']:,}" if details.rejects_place is not None else NONE
    return tiles(
        (
            ("Rows", f"{rows:,}", f"in {plural(summary['batches'], 'batch', 'batches')}"),
            ("Rows per second", counter("rows", rows), f"last batch: {summary['rows_per_second']:,.0f}"),
            (
                "Behind",
                _known(summary["total_lag"]),
                _behind_by(summary),
            ),
            ("Inside a snapshot", f"{inside:,}", "vbucket" if inside == 1 else "vbuckets"),
            ("Last batch", "none" if batch_id is None else f"{batch_id}", since),
            ("Rows to fold", _known(tail), plural(summary["folds"], "fold")),
            ("Rollbacks", f"{summary['rollbacks']:,}", "of vbuckets"),
            ("Rejects", rejects, "documents that do not fit"),
        )
    )


def _behind_by(summary: dict[str, Any]) -> str:
    """The lag as a time, or how far a first load is."""
    if summary["total_lag"] is None:
        return "the source did not say"
    parts = ["seqnos to read"]
    if summary["total_lag"] and summary["share_read"] is not None:
        parts.append(f"{int(summary['share_read'] * 100)} % read")
    if summary["total_lag"] and summary["seconds_left"] is not None:
        parts.append(f"about {duration(summary['seconds_left'])} left")
    elif summary["lag_s"] is not None:
        parts.append(f"about {duration(summary['lag_s'])} behind")
    return ", ".join(parts)


class _Part(NamedTuple):
    """A part of a pipeline, and how far it is behind the one before.

    Attributes:
        name, holds: what it is, and what it has.
        behind: what has not arrived from the part before; empty if that is not known.
        lag: the same as a time; empty if that is not known.
        is_late: whether something has not arrived.
    """

    name: str
    holds: str
    behind: str = ""
    lag: str = ""
    is_late: bool = False


def _flow(summary: dict[str, Any], details: Details) -> str:
    """The way of a change from the bucket into the tables."""
    parts = list(_parts(summary, details))
    stages = [
        Stage(part.name, part.holds, ", ".join(filter(None, (part.behind, part.lag))) or "not known", part.is_late)
        for part in parts
    ]
    rows = [
        Row(
            part.name,
            (
                text(part.name),
                text(part.holds),
                f'<span class="{"behind" if part.is_late else ""}">{text(part.behind)}</span>' if part.behind else NONE,
                text(part.lag) if part.lag else NONE,
            ),
        )
        for part in parts
    ]
    return section(
        "flow", "Flow", with_table(chain(stages), table("way", "From the bucket to the tables", _FLOW, rows, ""))
    )


def _parts(summary: dict[str, Any], details: Details) -> Iterator[_Part]:
    """The parts, in the order in which a change passes them."""
    lag, rows = summary["total_lag"], summary["rows"]
    high = [one.high_seqno for one in details.vbuckets if one.high_seqno is not None]
    known = plural(len(details.vbuckets), "vBucket")
    yield _Part("bucket", f"{known}, {sum(high):,} seqnos" if len(high) == len(details.vbuckets) else known)
    yield _Part(
        "batches",
        "none yet" if summary["batch_id"] is None else f"batch {summary['batch_id']}",
        "" if lag is None else f"{plural(lag, 'seqno')} behind",
        "" if summary["lag_s"] is None else f"about {duration(summary['lag_s'])}",
        bool(lag),
    )
    last = details.batches[-1].report if details.batches else None
    yield _Part(
        "changes",
        f"{plural(rows, 'row')} of this run",
        "",
        "" if last is None else f"{last.append_s:.2f} s for the last batch",
    )
    tail, fold = summary["tail_rows"], details.folds[-1].report if details.folds else None
    waits = _oldest_unfolded_s(details)
    yield _Part(
        "current",
        "no fold of this run yet"
        if fold is None
        else f"{plural(fold.current_rows, 'document')}, up to batch {fold.upto}",
        "" if tail is None else f"{plural(tail, 'row')} to fold",
        "" if not tail or waits is None else f"for {duration(waits)}",
        bool(tail),
    )
    yield _Part("live", "current, and what is to fold", "nothing waits", "", False)


def _oldest_unfolded_s(details: Details) -> float | None:
    """For how long the oldest batch that `current` lacks waits; None if the monitor did not see it."""
    if not details.folds:
        return None
    upto = details.folds[-1].report.upto
    waiting = [unix_s for unix_s, one in details.batches if one.batch_id > upto]
    return max(0, details.unix_s - waiting[0]) if waiting else None


def _times(batches: Sequence[Batch]) -> str:
    """The times of the last batches as bars: appending below, waiting for a fold above; the newest at the right."""
    if not batches:
        return ""
    top = max(one.append_s + one.wait_s for _, one in batches) or 1.0
    width, height = 6, 64
    bars = []
    for place, (_, one) in enumerate(batches, SHOWN_BATCHES - len(batches)):
        append, waited = one.append_s / top * height, one.wait_s / top * height
        times = f"{one.append_s:.2f} s to append, {one.wait_s:.2f} s waiting for a fold"
        x = place * width
        bars.append(
            f"<g><title>batch {one.batch_id}: {one.rows:,} rows, {times}</title>"
            f'<rect class="append" x="{x}" y="{height - append:.1f}" width="{width - 1}" height="{append:.1f}"/>'
            f'<rect class="wait" x="{x}" y="{height - append - waited:.1f}" width="{width - 1}" '
            f'height="{waited:.1f}"/></g>'
        )
    caption = f"{plural(len(batches), 'batch', 'batches')}, the longest {top:.2f} s"
    legend = "".join(
        f'<li><svg viewBox="0 0 9 9" aria-hidden="true"><rect class="{kind}" width="9" height="9"/></svg>{name}</li>'
        for kind, name in (("append", "append"), ("wait", "wait for a fold"))
    )
    picture = (
        f'<svg class="bars" viewBox="0 0 {SHOWN_BATCHES * width} {height}" preserveAspectRatio="none" role="img" '
        f'aria-label="{caption}">{"".join(bars)}</svg><ul class="legend">{legend}<li>{caption}</li></ul>'
    )
    return section("times", "Times of the last batches", picture)


def _batch(batch: Batch) -> Row:
    unix_s, one = batch
    recovered = small("written by an earlier run") if one.is_recovered else ""
    return Row(
        f"{one.batch_id}-{unix_s}",
        (
            Cell(f"{one.batch_id}{recovered}", one.batch_id),
            Cell(moment(unix_s), unix_s),
            number(one.rows),
            _seconds(one.append_s),
            _seconds(one.wait_s),
            number(len(one.rollbacks)),
        ),
    )


def _seconds(seconds: float) -> Cell:
    return Cell(f"{seconds:,.2f} s", seconds)


def _vbuckets(found: Sequence[VbucketProgress], here: str, *, shows_all: bool) -> str:
    """The progress of each vbucket."""
    ranked = sorted(found, key=_rank)
    shown = ranked if shows_all else ranked[:SHOWN_VBUCKETS]
    notes = []
    named = sum(bool(one.lag) for one in found)
    if any(one.lag is None for one in found):
        if any(one.lag_max is not None for one in found):
            notes.append(f"Spark's progress names the {plural(named, 'vbucket')} furthest behind.")
        else:
            notes.append("Spark's progress has no lag: the cluster did not answer, or Spark is older than 4.2.")
    if len(shown) < len(found):
        everything = link(f"{here}?{ALL_VBUCKETS}#vbuckets", f"Show all {len(found):,}")
        notes.append(f"{len(shown):,} of {len(found):,}, the furthest behind first. {everything}.")
    elif len(found) > SHOWN_VBUCKETS:
        notes.append(f"{link(f'{here}#vbuckets', f'Show the {SHOWN_VBUCKETS} furthest behind')}.")
    nothing = "Spark has finished no batch since the monitor began."
    return table("vbuckets", "vBuckets", _VBUCKETS, [_vbucket(one) for one in shown], nothing, note=" ".join(notes))


def _rank(one: VbucketProgress) -> tuple[int, bool, bool, int]:
    """Order of vbuckets: the furthest behind first, then those inside a snapshot, then by number."""
    lag = one.lag if one.lag is not None else one.lag_max or 0
    return -lag, one.lag is None, not one.is_inside_snapshot, one.vbucket


def _vbucket(one: VbucketProgress) -> Row:
    behind: Cell | str = NONE
    if one.lag is not None:
        behind = _behind(one.lag)
    elif one.lag_max is not None:
        behind = Cell(f'<span class="muted">at most {one.lag_max:,}</span>', one.lag_max)
    inside = one.is_inside_snapshot
    snapshot: Cell | str = NONE
    if inside is not None:
        until = small(f"until {one.snapshot_end:,}") if inside and one.snapshot_end is not None else ""
        snapshot = Cell((state("inside", "warning") if inside else state("whole")) + until, int(inside))
    return Row(
        str(one.vbucket),
        (
            number(one.vbucket),
            number(one.seqno),
            NONE if one.high_seqno is None else number(one.high_seqno),
            behind,
            snapshot,
        ),
    )


def _fold(fold: Fold) -> Row:
    unix_s, one = fold
    restored = small(f"{one.restored:,} by rollbacks") if one.restored else ""
    return Row(
        f"{one.upto}-{unix_s}",
        (
            number(one.upto),
            Cell(moment(unix_s), unix_s),
            Cell(f"{one.documents:,}{restored}", one.documents),
            number(one.removed),
            number(one.rejected),
            number(one.current_rows),
            _seconds(one.fold_s),
        ),
    )


def _rollback(rollback: Rollback) -> Row:
    unix_s, batch_id, one = rollback
    branches = f"<code>{one.old_vbuuid:x}</code> → <code>{one.new_vbuuid:x}</code>"
    return Row(
        f"{one.vbucket}-{batch_id}-{one.from_seqno}",
        (
            number(one.vbucket),
            number(batch_id),
            Cell(moment(unix_s), unix_s),
            number(one.from_seqno),
            number(one.to_seqno),
            number(one.from_seqno - one.to_seqno),
            Cell(branches, f"{one.new_vbuuid:x}"),
        ),
    )


def _rejects(summary: dict[str, Any], details: Details) -> str:
    place, count = details.rejects_place, summary["rejected"]
    if place is None:
        return section("rejects", "Rejects", empty("The pipeline has no schema, so every document fits."))
    if not count:
        return section("rejects", "Rejects", empty("Every document that was folded fits the schema."))
    verb = "does" if count == 1 else "do"
    note = (
        f"{plural(count, 'document')} that {'was' if count == 1 else 'were'} folded since the monitor began {verb} not "
        f"fit the schema. <code>{text(place)}</code> has those of now, each with its reason and its value."
    )
    return section("rejects", "Rejects", f'<p class="note">{note}</p>')
