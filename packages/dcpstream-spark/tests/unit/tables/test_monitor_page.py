"""The monitor's pages about a pipeline, and that they claim nothing that is not known."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dcpstream_spark.tables.engine import FoldReport
from dcpstream_spark.tables.monitor_page import (
    SHOWN_VBUCKETS,
    Batch,
    Details,
    Fold,
    Rollback,
    overview_content,
    pipeline_content,
)
from dcpstream_spark.tables.progress import BatchReport, RollbackReport, VbucketProgress

SUMMARY: dict[str, Any] = {
    "name": "p",
    "state": "running",
    "error": None,
    "batch_id": 7,
    "rows": 1000,
    "rollbacks": 1,
    "tail_rows": None,
    "rows_per_second": 12.6,
    "total_lag": None,
    "share_read": None,
    "seconds_left": None,
    "lag_s": None,
    "vbuckets_inside_snapshot": 1,
    "seconds_since_batch": 61.0,
    "batches": 1,
    "folds": 0,
    "rejected": 0,
}


def content(
    *,
    batches: Sequence[Batch] = (),
    folds: Sequence[Fold] = (),
    rollbacks: Sequence[Rollback] = (),
    vbuckets: Sequence[VbucketProgress] = (),
    rejects_place: str | None = None,
    shows_all: bool = False,
    **summary: Any,
) -> str:
    details = Details(batches, folds, rollbacks, vbuckets, rejects_place, unix_s=1000)
    return pipeline_content(SUMMARY | summary, details, here="/x", shows_all=shows_all)


def rows(html: str, ident: str) -> list[list[str]]:
    """The texts of a table's cells."""
    (part,) = re.findall(rf'<section id="{ident}".*?</section>', html, re.DOTALL)
    return [
        [re.sub(r"<.*?>", " ", cell).replace("&ndash;", "-").strip() for cell in re.findall(r"<div>(.*?)</div>", row)]
        for row in re.findall(r"<tr role=\"row\" data-key.*?</tr>", part, re.DOTALL)
    ]


def told(html: str, ident: str) -> str:
    (part,) = re.findall(rf'<section id="{ident}".*?</section>', html, re.DOTALL)
    return " ".join(re.sub(r"<.*?>", " ", part).split())


def test_a_vbucket_shows_what_is_known_of_it() -> None:
    found = [
        VbucketProgress(0, 10, None, None, 4),
        VbucketProgress(1, 1000, 1010, 9, 9),
        VbucketProgress(2, 30, 30, 0, 0),
        VbucketProgress(3, 40, None, None, None),
    ]
    html = content(vbuckets=found)
    assert rows(html, "vbuckets") == [
        ["1", "1,000", "1,009", "9", "inside  until 1,010"],
        ["0", "10", "-", "at most 4", "-"],
        ["2", "30", "30", "0", "whole"],
        ["3", "40", "-", "-", "-"],
    ]
    assert "names the 1 vbucket furthest behind" in told(html, "vbuckets")


def test_an_unknown_lag_says_why() -> None:
    html = content(vbuckets=[VbucketProgress(0, 10, 10, None, None)])
    assert "the cluster did not answer, or Spark is older than 4.2" in told(html, "vbuckets")
    assert "unknown" in html
    assert "data-level" not in html, "nothing is drawn"


def test_a_known_lag_of_all_needs_no_words() -> None:
    html = content(vbuckets=[VbucketProgress(0, 10, 10, 0, 0)], total_lag=0)
    assert 'data-level="0"' in html
    assert "Spark" not in told(html, "vbuckets")


def test_a_first_load_shows_its_share_and_the_time_left() -> None:
    html = content(total_lag=700, share_read=0.309, seconds_left=75.0)
    assert "seqnos to read, 30 % read, about 1 min 15 s left" in html
    assert "seqnos to read, about 3 s behind" in content(total_lag=0, share_read=1.0, seconds_left=None, lag_s=3.5)


def test_the_furthest_behind_are_shown_or_all() -> None:
    found = [VbucketProgress(vbid, 100, 100, vbid, vbid) for vbid in range(SHOWN_VBUCKETS + 4)]
    html = content(vbuckets=found)
    assert [row[0] for row in rows(html, "vbuckets")] == [str(vbid) for vbid in range(SHOWN_VBUCKETS + 3, 3, -1)]
    assert f'<a href="/x?vbuckets=all#vbuckets">Show all {SHOWN_VBUCKETS + 4}</a>' in html
    html = content(vbuckets=found, shows_all=True)
    assert len(rows(html, "vbuckets")) == SHOWN_VBUCKETS + 4
    assert 'href="/x#vbuckets"' in html


def test_rollbacks_and_batches_are_listed_newest_first() -> None:
    back = RollbackReport(3, 1050, 50, 0xAB, 0xCD)
    batches = [
        Batch(0, BatchReport(batch_id=6, rows=1, append_s=0.1, wait_s=1.0, is_recovered=True)),
        Batch(1, BatchReport(batch_id=7, rows=2000, append_s=2.0, rollbacks=(back,))),
    ]
    older = RollbackReport(4, 2, 1, 1, 2)
    html = content(batches=batches, rollbacks=[Rollback(0, 6, older), Rollback(1, 7, back)])
    assert rows(html, "batches") == [
        ["7", "1970-01-01 00:00:01 UTC", "2,000", "2.00 s", "0.00 s", "1"],
        ["6 written by an earlier run", "1970-01-01 00:00:00 UTC", "1", "0.10 s", "1.00 s", "0"],
    ]
    assert rows(html, "rollbacks") == [
        ["3", "7", "1970-01-01 00:00:01 UTC", "1,050", "50", "1,000", "ab  →  cd"],
        ["4", "6", "1970-01-01 00:00:00 UTC", "2", "1", "1", "1  →  2"],
    ]
    assert "2 batches, the longest 2.00 s" in told(html, "times")


def test_rejects_say_where_they_are() -> None:
    assert "no schema" in told(content(), "rejects")
    assert "fits the schema" in told(content(rejects_place="lake.r"), "rejects")
    many = told(content(rejects_place="<r>", rejected=2), "rejects")
    assert many.startswith("Rejects 2 documents that were folded")
    assert "&lt;r&gt; has those of now" in many


def test_a_stall_and_an_error_are_reported() -> None:
    assert '<p class="problem">It has work but writes nothing.' in content(state="stalled")
    assert '<p class="problem">a &lt; b</p>' in content(state="failed", error="a < b")
    assert "problem" not in content()


def test_the_overview_adds_up_what_is_known() -> None:
    failed = {"name": "q", "total_lag": 5, "state": "failed", "error": "no <node>", "rejected": 2}
    html = overview_content([SUMMARY, SUMMARY | failed])
    assert [row[1] for row in rows(html, "pipelines")] == ["running", "failed  no &lt;node&gt;"]
    assert [row[0] for row in rows(html, "pipelines")] == ["p", "q"]
    assert [row[4] for row in rows(html, "pipelines")] == ["-", "5"]
    assert 'data-level="5"' in html
    assert "1 not known" in html
    assert "2,000" in html
    assert "No pipeline is being watched." in overview_content([])


def test_the_flow_has_the_lag_at_each_step() -> None:
    batches = [
        Batch(unix_s, BatchReport(batch_id=at, rows=5, append_s=0.5)) for at, unix_s in enumerate((900, 920, 930))
    ]
    folds = [Fold(990, FoldReport(0, documents=4, removed=0, restored=0, current_rows=4))]
    vbuckets = [VbucketProgress(0, 10, None, 2, 2), VbucketProgress(1, 5, None, 0, 0)]
    html = content(
        batches=batches, folds=folds, vbuckets=vbuckets, batch_id=2, rows=15, tail_rows=10, total_lag=2, lag_s=3.2
    )
    assert rows(html, "way") == [
        ["bucket", "2 vBuckets, 17 seqnos", "-", "-"],
        ["batches", "batch 2", "2 seqnos behind", "about 3 s"],
        ["changes", "15 rows of this run", "-", "0.50 s for the last batch"],
        ["current", "4 documents, up to batch 0", "10 rows to fold", "for 1 min 20 s"],
        ["live", "current, and what is to fold", "nothing waits", "-"],
    ]
    assert re.findall(r'class="at( late)?".*?>(.*?)</text>', html) == [
        (" late", "2 seqnos behind, about 3 s"),
        ("", "0.50 s for the last batch"),
        (" late", "10 rows to fold, for 1 min 20 s"),
        ("", "nothing waits"),
    ]


def test_the_flow_claims_nothing_that_is_not_known() -> None:
    html = content(batch_id=None)
    assert [row[2:] for row in rows(html, "way")] == [["-", "-"]] * 4 + [["nothing waits", "-"]]
    assert re.findall(r'class="at( late)?".*?>(.*?)</text>', html)[:3] == [("", "not known")] * 3
    folded = content(batches=[Batch(900, BatchReport(batch_id=0, rows=5))], tail_rows=0, total_lag=0, lag_s=0.0)
    assert "late" not in told(folded, "flow")
    assert [row[2] for row in rows(folded, "way")][3] == "0 rows to fold"
