"""`dcpstream compare` without Spark: its options, its output, its exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.errors import AnalysisException

from dcpstream.cli.app import run
from dcpstream.errors import ConfigError
from dcpstream_spark.commands.compare import as_text, compare_command
from dcpstream_spark.tables.comparison import ComparisonReport, Difference
from dcpstream_spark.tables.ledger import Entries, Entry, Ledger
from dcpstream_spark.tables.small_files import LocalFiles
from tests.kit.cases import each_case

DIFFERENT = ComparisonReport(1000, missing=1, examples=(Difference("missing", "s", "c", "k", "seqno 5"),))


class FakeSession:
    stopped = 0

    def stop(self) -> None:
        FakeSession.stopped += 1


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments that `compare` was called with."""
    seen: dict[str, Any] = {"report": DIFFERENT}

    def compare(spark: Any, table: Any, options: Any, **more: Any) -> ComparisonReport:
        seen.update(table=table, options=options, **more)
        if more["on_progress"] is not None:
            more["on_progress"](1, 2)
        report: ComparisonReport = seen["report"]
        return report

    def build_session(name: str, **more: Any) -> FakeSession:
        seen.update(session=more)
        return FakeSession()

    monkeypatch.setattr("dcpstream_spark.tables.comparison.compare", compare)
    monkeypatch.setattr("dcpstream_spark.session.build_session", build_session)
    return seen


def called(*arguments: str) -> Result:
    return CliRunner().invoke(compare_command, list(arguments), catch_exceptions=False, standalone_mode=False)


def test_options_reach_the_comparison(seen: dict[str, Any]) -> None:
    before = FakeSession.stopped
    result = called(
        "/data/t",
        "couchbase://host",
        *(
            "--user",
            "u",
            "--password",
            "p",
            "--bucket",
            "b",
            "--collections",
            "s.c",
            "--also",
            "cas",
            "--also",
            "seqno",
        ),
        *("--values", "bytes", "--examples", "3", "-o", "network=external", "--conf", "a=b=c", "--key-column", "k"),
        "--progress",
    )
    assert result.return_value == 1
    assert seen["options"] == {
        "connectionString": "couchbase://host",
        "username": "u",
        "password": "p",
        "bucket": "b",
        "network": "external",
        "collections": "s.c",
    }
    assert (seen["table"], seen["form"].kind, seen["also"], seen["examples"]) == (
        "/data/t",
        "auto",
        ("cas", "seqno"),
        3,
    )
    assert seen["session"]["settings"] == {"a": "b=c"}
    assert seen["form"].columns.key == "k"
    assert FakeSession.stopped == before + 1


def test_the_table_current_of_a_pipeline(seen: dict[str, Any]) -> None:
    called("/data/p/", "--table-kind", "current")
    assert (seen["table"], seen["form"].kind) == ("/data/p/current", "auto")


def test_the_exit_status_says_whether_they_are_equal(seen: dict[str, Any]) -> None:
    assert run(["compare", "t"]) == 1
    seen["report"] = ComparisonReport(equal=5)
    assert run(["compare", "t"]) == 0


@pytest.mark.parametrize(
    ("text", "status", "line"),
    [
        ("[X] Failed to plan: dcpstream.errors.AuthenticationFailed: no user\n SQLSTATE: 38000", 4, "no user"),
        ("[X] Failed: dcpstream.errors.RollbackRequired: vbucket 1: void\n SQLSTATE: 38000", 6, "vbucket 1: void"),
        ("[PATH_NOT_FOUND] Path does not exist: t. SQLSTATE: 42K03\nJVM stacktrace:", 1, "Spark: [PATH_NOT_FOUND] Pa"),
    ],
)
def test_an_error_of_spark_is_one_line_with_a_status(
    seen: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
    status: int,
    line: str,
) -> None:
    def refused(*_: Any, **more: Any) -> ComparisonReport:
        raise AnalysisException(text)

    monkeypatch.setattr("dcpstream_spark.tables.comparison.compare", refused)
    assert run(["compare", "t"]) == status
    (printed,) = capsys.readouterr().err.splitlines()
    assert printed.startswith(f"dcpstream: {line}")


def test_json(seen: dict[str, Any]) -> None:
    assert json.loads(called("t", "--json").output)["missing"] == 1


def test_text() -> None:
    assert as_text(DIFFERENT).splitlines() == [
        "       1,000 equal     the same in both",
        "           0 different in both, and different",
        "           1 missing   in the bucket, not in the table",
        "           0 extra     in the table, not in the bucket",
        "           0 duplicate more than once in the table",
        "missing: s.c 'k': seqno 5",
        "different",
    ]


@each_case("option", ["--option", "--conf"])
def test_a_pair_needs_an_equals_sign(option: str) -> None:
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        called("t", option, "broken")


def test_one_of_several_tables(seen: dict[str, Any], tmp_path: Path) -> None:
    ledger = Ledger(lambda: LocalFiles(tmp_path / "checkpoint" / "dcp-tables"))
    ledger.save(Entries("app", 1, {"orders": Entry((("shop", "orders"), ("shop", "returns")), 1, 10)}))
    access = (str(tmp_path), "couchbase://host", "--user", "u", "--password", "p", "--bucket", "b")
    seen["tables"] = []

    def open_table(spark: Any, place: str) -> Any:
        seen["tables"].append(place)
        return FakeFrame()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dcpstream_spark.tables.pipeline.open_table", open_table)
        called(*access, "--table-kind", "current", "--table", "orders", "--system-documents")
        assert seen["tables"] == [f"{tmp_path}/orders/current"]
        assert seen["options"]["collections"] == "shop.orders,shop.returns"
        assert seen["options"]["systemDocuments"] == "true"
        called(*access, "--table-kind", "current")
        assert "collections" not in seen["options"]
        with pytest.raises(ConfigError, match="one of the pipeline's tables: orders"):
            called(*access, "--table-kind", "live", "--table", "returns")
        with pytest.raises(ConfigError, match="the directory of a pipeline"):
            called(*access, "--table", "orders")
        (tmp_path / "changes").mkdir()
        with pytest.raises(ConfigError, match="one of the pipeline's tables: orders"):
            called(*access, "--table", "returns")  # the directory of a pipeline, so live


class FakeFrame:
    def select(self, *columns: str) -> FakeFrame:
        return self
