"""`dcpstream doctor`, against a real node and machines that lack something."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import socket

import pytest

import dcpstream
import dcpstream_node
from dcpstream.cli import doctor
from dcpstream.cli.app import run
from tests.kit.commands import Commands


@pytest.fixture
def well_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the checks of the machine, which start processes."""
    monkeypatch.setattr(doctor, "machine_findings", lambda environ: iter(()))


def by_check(findings: list[dict[str, str]]) -> dict[str, dict[str, str]]:
    return {finding["check"]: finding for finding in findings}


@pytest.mark.usefixtures("well_machine")
def test_a_cluster_that_lets_the_user_in(one_node: dcpstream_node.Node, commands: Commands) -> None:
    found = by_check(commands.json("doctor", "--cluster", one_node.connection_string))
    assert {finding["verdict"] for finding in found.values()} == {"ok"}
    assert found["Cluster"]["text"] == f"bucket default at 127.0.0.1:{one_node.port}, 4 vbuckets"
    assert set(found) == {"Cluster", "Read documents", "Read changes"}
    text = commands("doctor", "--cluster", one_node.connection_string)
    assert "ok      Read changes: user Administrator may, in bucket default\n" in text


@pytest.mark.usefixtures("well_machine")
def test_rights_that_are_missing(one_node: dcpstream_node.Node, commands: Commands) -> None:
    commands(
        *("user", "create", "ann", "--new-password", "secret", "--role", "data_reader[default]"),
        *("--cluster", f"http://127.0.0.1:{one_node.mgmt_port}"),
    )
    at = ("--cluster", one_node.connection_string, "--user", "ann", "--password", "secret")
    text = commands("doctor", *at, expect=1)
    assert "ok      Read documents: user ann may" in text
    assert "PROBLEM Read changes: user ann may not, in bucket default\n" in text
    assert "        fix: dcpstream user create ann --role 'data_dcp_reader[default]'\n" in text


@pytest.mark.usefixtures("well_machine")
@pytest.mark.parametrize(
    ("words", "told"),
    [(("--password", "wrong"), "check username and password"), (("--bucket", "no"), "there is no such bucket")],
)
def test_a_refused_login(one_node: dcpstream_node.Node, commands: Commands, words: tuple[str, ...], told: str) -> None:
    text = commands("doctor", "--cluster", one_node.connection_string, *words, expect=1)
    assert text.startswith("PROBLEM Cluster: ")
    assert told in text
    assert "fix: dcpstream bucket list" in text


def test_this_machine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The real checks, but for those that start processes."""
    if importlib.util.find_spec("pyspark") is not None:
        java = doctor.Finding("Java", "problem", "none", "get one")
        monkeypatch.setattr("dcpstream_spark.commands.spark_findings.spark_findings", lambda environ: iter([java]))
    assert run(["doctor"]) == (0 if importlib.util.find_spec("pyspark") is None else 1)
    text = capsys.readouterr().out
    assert f"dcpstream {dcpstream.__version__}" in text
    assert "Arrow: " in text
    assert text.endswith("name one with --cluster couchbase://HOST:PORT.\n")


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = doctor.port_finding(port, "--port")
    assert (found.verdict, found.fix) == ("note", "dcpstream node --port 0")
    assert doctor.port_finding(port, "--port").verdict == "ok"


def test_findings_are_json() -> None:
    finding = doctor.Finding("Spark", "note", "pyspark is not installed", "pip install 'dcpstream[spark]'")
    assert "fix: pip install" in doctor.shown(finding)
    assert json.loads(json.dumps(dataclasses.asdict(finding)))["fix"] == finding.fix
