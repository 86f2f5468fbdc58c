"""The report of a run as one HTML file that needs no network: the verdict, the picture, the events, the carriers."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path

from dcpstream_demo.picture import CarrierRow
from dcpstream_demo.verdict import Result
from dcpstream_demo.watch import History

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>dcpstream demo</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem }}
img {{ width: 100%; background: white }}
table {{ border-collapse: collapse }}
td, th {{ padding: .1rem 1rem .1rem 0; text-align: right }}
td:first-child, th:first-child {{ text-align: left }}
pre {{ overflow-x: auto }}
</style>
<h1>{verdict}</h1>
<p>The lives of flights were played into a node; a Spark query kept the tables <code>changes</code> and
<code>current</code>. At the end <code>current</code> has {flights:,} flights: those that were not deleted. The tables
are in <code>{tables}</code>.</p>
<img src="data:image/png;base64,{picture}" alt="Changes per second, lag of the tables, flights by carrier">
<h2>The comparison</h2>
<pre>{lines}</pre>
<h2>What happened</h2>
<table><tr><th>event<th>seconds since the start</tr>
{events}
</table>
<h2>Flights by carrier, from the table current</h2>
<table><tr><th>carrier<th>flights<th>mean arrival delay, minutes</tr>
{carriers}
</table>
</html>
"""


def write(path: Path, result: Result, history: History, carriers: Sequence[CarrierRow], picture: Path) -> Path:
    """Write the report; returns its path.

    Args:
        path: of the report.
        result: the verdict.
        history: what was observed.
        carriers: from the table.
        picture: a PNG, which is put into the page.
    """
    events = (f"<tr><td>{html.escape(what)}<td>{at_s:.1f}</tr>" for at_s, what in history.events)
    rows = (
        f"<tr><td>{html.escape(row.carrier)}<td>{row.flights:,}"
        f"<td>{'-' if row.delay_min is None else f'{row.delay_min:+.1f}'}</tr>"
        for row in carriers
    )
    page = _PAGE.format(
        verdict=html.escape(result.verdict),
        flights=sum(row.flights for row in carriers),
        tables=html.escape(str(path.parent / "tables")),
        picture=base64.b64encode(picture.read_bytes()).decode(),
        lines=html.escape("\n".join(result.lines())),
        events="\n".join(events),
        carriers="\n".join(rows),
    )
    path.write_text(page, encoding="utf-8")
    return path
