"""The report of a run: one file with everything in it."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, cast

from dcpstream_demo import report
from dcpstream_demo.picture import CarrierRow
from dcpstream_demo.watch import History


class Result:
    verdict = "verdict: exact, 2 documents <of> 3 changes"

    def lines(self) -> list[str]:
        return ["current = bucket: 2 & 2 documents"]


def test_the_report_has_verdict_picture_events_and_carriers(tmp_path: Path) -> None:
    history = History()
    history.mark(3.25, "kill -9 the node")
    picture = tmp_path / "demo.png"
    picture.write_bytes(b"\x89PNG")
    carriers = [CarrierRow("UA", 1200, 3.5), CarrierRow("OO", 1, None)]
    page = report.write(tmp_path / "report.html", cast("Any", Result()), history, carriers, picture).read_text("utf-8")
    assert "<h1>verdict: exact, 2 documents &lt;of&gt; 3 changes</h1>" in page
    assert f"base64,{base64.b64encode(picture.read_bytes()).decode()}" in page
    assert "<tr><td>kill -9 the node<td>3.2</tr>" in page
    assert "<tr><td>UA<td>1,200<td>+3.5</tr>" in page
    assert "<tr><td>OO<td>1<td>-</tr>" in page
    assert "<code>current</code> has 1,201 flights" in page
    assert "2 &amp; 2 documents" in page
    assert "http" not in page, "it needs no network"
