from __future__ import annotations

from pathlib import Path

from lab.tools.spark_matrix import outcome_of, table_of

REPORT = """<testsuites><testsuite timestamp="2026-11-20T10:00:00+00:00">
<testcase name="test_a_batch_reads"/>
<testcase name="test_delta_holds"><skipped message="no connector"/></testcase>
<testcase name="test_a_stream_resumes"><failure message="no">..</failure></testcase>
</testsuite></testsuites>"""


def test_the_table_has_a_column_a_version_and_the_reasons_of_failures_and_dashes(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    outcome = outcome_of("4.3.0", report)
    assert outcome.failed
    assert table_of([outcome]).splitlines() == [
        "| test | 4.3.0 |",
        "| --- | --- |",
        "| a batch reads | yes |",
        "| delta holds | - |",
        "| a stream resumes | **no** |",
        "| day of the run | 2026-11-20 |",
        "",
        "- delta holds: no connector",
        "- a stream resumes, failed on 4.3.0: no",
    ]


def test_a_version_on_which_no_test_ran_has_failed(tmp_path: Path) -> None:
    assert outcome_of("4.0.5", tmp_path / "missing.xml").failed
