"""The monitor's page for people: a card for each pipeline, as HTML without scripts, that loads itself again."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

SHOWN_BATCHES = 120
"""Batches whose times a card shows: two minutes at the default trigger."""

SHOWN_FOLDS = 10
"""Folds whose times a card has in `/progress`; the page shows the last one."""


def page(reports: Sequence[dict[str, Any]]) -> str:
    """The page for people, as HTML."""
    cards = "".join(_card(report) for report in reports) or "<p>No pipeline is being watched.</p>"
    return _PAGE.replace("{cards}", cards)


def _card(report: dict[str, Any]) -> str:
    lag = "unknown" if report["total_lag"] is None else f"{report['total_lag']:,}"
    worst = ", ".join(f"vbucket {vbid}: {lag:,}" for vbid, lag in report["worst_lag"].items() if lag)
    figures = [
        ("rows", f"{report['rows']:,}"),
        ("lag in seqnos", lag),
        ("rows a second", f"{report['rows_per_second']:,.0f}"),
        ("last batch", "none" if report["batch_id"] is None else f"{report['batch_id']}"),
        ("since a batch", f"{report['seconds_since_batch']:.0f} s"),
        ("folds", f"{report['folds']:,}"),
        ("rows to fold", "unknown" if report["tail_rows"] is None else f"{report['tail_rows']:,}"),
        ("rollbacks", f"{report['rollbacks']:,}"),
        ("vbuckets inside a snapshot", f"{report['vbuckets_inside_snapshot']:,}"),
    ]
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in figures)
    error = f'<p class="error">{html.escape(report["error"])}</p>' if report["error"] else ""
    folds = "".join(
        f"<p>Last fold: up to batch {one['upto']}, {one['documents']:,} documents written, {one['removed']:,} removed, "
        f"{one['fold_s']:.2f} s</p>"
        for one in report["last_folds"][-1:]
    )
    furthest = f"<p>Furthest behind: {worst}</p>" if worst else ""
    return (
        f'<section><h2>{html.escape(report["name"])} <span class="{report["state"]}">{report["state"]}</span></h2>'
        f"{error}<dl>{cells}</dl>{_bars(report['last_batches'])}{folds}{furthest}</section>"
    )


def _bars(batches: Sequence[dict[str, Any]]) -> str:
    """The times of the last batches: appending below, waiting for a fold above."""
    if not batches:
        return ""
    top = max(one["append_s"] + one["wait_s"] for one in batches) or 1.0
    width, height = 6, 60
    bars = []
    for index, one in enumerate(batches):
        append, waited = one["append_s"] / top * height, one["wait_s"] / top * height
        times = f"{one['append_s']:.2f} s to append, {one['wait_s']:.2f} s waiting for a fold"
        title = f"batch {one['batch_id']}: {one['rows']:,} rows, {times}"
        x = index * width
        bars.append(
            f'<g><title>{title}</title><rect class="append" x="{x}" y="{height - append:.1f}" width="{width - 1}" '
            f'height="{append:.1f}"/><rect class="wait" x="{x}" y="{height - append - waited:.1f}" width="{width - 1}" '
            f'height="{waited:.1f}"/></g>'
        )
    size = f'width="{SHOWN_BATCHES * width}" height="{height}" viewBox="0 0 {SHOWN_BATCHES * width} {height}"'
    caption = f"Times of the last {len(batches)} batches, the longest {top:.2f} s"
    return (
        f'<figure><svg {size} role="img" aria-label="{caption}">{"".join(bars)}</svg><figcaption>{caption}: '
        '<span class="append">append</span>, <span class="wait">wait for a fold</span></figcaption></figure>'
    )


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="5">
<meta name="viewport" content="width=device-width"><title>dcpstream pipelines</title>
<style>
:root { color-scheme: light dark; --line: light-dark(#d5dbe1, #3a444d); --append: light-dark(#3d7ea6, #6fb1d9);
  --wait: light-dark(#d98e32, #e8a95b); }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
section { border: 1px solid var(--line); border-radius: 8px; padding: 0 1.2rem 0.6rem; margin-bottom: 1.2rem; }
h2 { font-size: 1.05rem; overflow-wrap: anywhere; }
h2 span { border-radius: 4px; padding: 0 0.4em; font-weight: 500; color: white; }
.running { background: #2e7d4f; } .stopped { background: #6b7680; } .stalled { background: #b06a00; }
.failed { background: #b3372f; }
.error { color: light-dark(#b3372f, #f0877f); overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: 0.6rem; }
dt { font-size: 0.8rem; opacity: 0.75; } dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
figure { margin: 1rem 0; } svg { max-width: 100%; border-bottom: 1px solid var(--line); }
rect.append { fill: var(--append); } rect.wait { fill: var(--wait); }
figcaption { font-size: 0.85rem; } span.append { color: var(--append); } span.wait { color: var(--wait); }
</style></head><body><h1>Pipelines</h1>{cards}
<p><a href="/metrics">Metrics for Prometheus</a>, <a href="/progress">progress as JSON</a></p></body></html>
"""
