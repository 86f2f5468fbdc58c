"""`dcpstream doctor`, against a real node and machines that lack something."""

from __future__ import annotations

import importlib.util
import re
import socket

import pytest

import dcpstream
import dcpstream_node
from dcpstream.cli import bucket_findings, doctor
from dcpstream.cli.app import run
from dcpstream.cli.connection_options import BucketAccess
from dcpstream.cli.findings import Finding
from dcpstream.client import KvClient
from tests.kit.access import LOGIN
from tests.kit.cases import each_case
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
    assert {name for name, finding in found.items() if finding["verdict"] != "ok"} == {"Copies"}
    assert found["Cluster"]["text"] == f"bucket default at 127.0.0.1:{one_node.port}, 4 vbuckets"
    assert found["Copies"]["text"].startswith("the bucket has no replicas")
    assert re.fullmatch(r"1 node of release \d\.\d\.\S+, [\d,]+ documents", found["Nodes"]["text"])
    assert "all were read in" in found["First load"]["text"]
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
        java = Finding("Java", "problem", "none", "get one")
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


@pytest.mark.usefixtures("well_machine")
def test_the_copies_of_a_cluster(commands: Commands) -> None:
    with dcpstream_node.Cluster(2, vbuckets=8, replicas=1) as cluster:
        found = by_check(commands.json("doctor", "--cluster", cluster.connection_string))
        assert found["Copies"]["text"] == "each vbucket has 1 replica"
        assert found["Nodes"]["text"].startswith("2 nodes of release ")
        cluster.fail_over(cluster.nodes[1])
        found = by_check(commands.json("doctor", "--cluster", cluster.connection_string))
        assert found["Copies"]["text"].startswith("8 of 8 vbuckets lack a replica")


@pytest.mark.usefixtures("well_machine")
def test_purged_deletions_and_a_first_load(monkeypatch: pytest.MonkeyPatch, commands: Commands) -> None:
    monkeypatch.setattr(bucket_findings, "SAMPLE_ROWS_MAX", 100)
    with dcpstream_node.Node(vbuckets=2) as node, KvClient(node.connection_string, **LOGIN) as documents:
        documents.set_many((f"k{number}", "x" * 100) for number in range(400))
        documents.delete_many(["k1", "k2"])
        documents.set_many((f"more{number}", "x" * 100) for number in range(10))
        node.inject("purge", bucket="default")
        found = by_check(commands.json("doctor", "--cluster", node.connection_string))
    assert found["Nodes"]["text"].endswith(", 408 documents")
    assert "from before begins again from 0" in found["Purged deletions"]["text"]
    expected = re.match(r"about ([\d,]+) changes, .* at the speed of a sample", found["First load"]["text"])
    assert expected is not None
    assert 380 <= int(expected[1].replace(",", "")) <= 440


@each_case(
    ("string", "verify", "verdicts"),
    [
        ("couchbase://127.0.0.1:11210,localhost", "peer", []),
        ("couchbase://[::1]:11210", "peer", []),
        ("db.example", "peer", ["note"]),
        ("couchbase://127.0.0.1,db.example:11210", "peer", ["note"]),
        ("couchbases://db.example", "peer", ["ok"]),
        ("couchbases://db.example", "none", ["problem"]),
    ],
)
def test_encryption(string: str, verify: str, verdicts: list[str]) -> None:
    access = BucketAccess(
        connection_string=string, username="u", password="p", bucket="b", trust=None, certificate=None,
        client_key=None, tls_verify=verify, sasl_mechanism=None, network=None, connect_timeout=1.0,
    )  # fmt: skip
    assert [finding.verdict for finding in bucket_findings.encryption(access)] == verdicts
