"""Fixtures for the tests of others, in pytest runs of their own: what they give, how long it lives, what is left."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from dcpstream_node import Node
from lab.tools.patience import patient

ROOT = Path(__file__).parents[4]
RUN_TIMEOUT_S = patient(90)
KV = """
from dcpstream.client.kv.client import KvClient
def kv(at, bucket="default"):
    return KvClient(at.connection_string, at.username, at.password, bucket)
"""


class Runner:
    """Runs pytest on a directory, with the plugin and without whatever else is installed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, name: str, text: str) -> None:
        (self.directory / name).write_text(textwrap.dedent(text), encoding="utf-8")

    def run(self, *arguments: str, **counts: int) -> str:
        """All of it; checks the counts of pytest's last line."""
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        environment.pop("PYTEST_ADDOPTS", None)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "dcpstream_node.pytest_plugin",
            "-p",
            "no:cacheprovider",
            *arguments,
        ]
        done = subprocess.run(
            [*command, str(self.directory)],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
        output = done.stdout + done.stderr
        found = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|errors?|skipped)", output)}
        assert found == counts, output
        return output


def new_runner(directory: Path) -> Runner:
    found = Runner(directory)
    found.write("pytest.ini", "[pytest]\nfilterwarnings = error\naddopts = --strict-markers\n")
    found.write("helper.py", KV)
    found.write("conftest.py", "import sys, pathlib\nsys.path.insert(0, str(pathlib.Path(__file__).parent))\n")
    return found


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return new_runner(tmp_path)


FILES = {
    "test_five.py": """
        from dcpstream.client import KvClient
        def test_five(couchbase_bucket):
            with KvClient(couchbase_bucket.connection_string, "Administrator", "password", couchbase_bucket.name) as kv:
                kv.set("k", b"{}")
                assert kv.get("k").value == b"{}"
    """,
    "test_shared.py": """
        import pytest
        from helper import kv
        nodes, buckets = [], []

        @pytest.fixture(scope="module")
        def wide(couchbase_session_node):
            return couchbase_session_node

        @pytest.mark.parametrize("number", range(20))
        def test_fresh(number, couchbase_bucket, couchbase_node, wide):
            with kv(couchbase_bucket, couchbase_bucket.name) as client:
                assert client.set("k", b"{}").seqno == 4
            nodes.append(couchbase_node); buckets.append(couchbase_bucket.name)
            assert couchbase_bucket.node is couchbase_node is wide
            assert len(couchbase_node.engine.buckets) == 2

        def test_after():
            assert len(set(map(id, nodes))) == 1 and len(set(buckets)) == 20
            assert nodes[0].is_running
    """,
    "test_marked.py": """
        import pytest
        from dcpstream.model import BucketSettings
        from helper import kv
        seen = {}

        def names(bucket):
            return {f"{scope.name}.{item.name}" for scope, item in bucket.manifest.collections()}

        @pytest.mark.couchbase_node(scope="function")
        @pytest.mark.parametrize("number", range(3))
        def test_own_node(number, couchbase_node, couchbase_session_node):
            assert couchbase_node is not couchbase_session_node
            assert not any(node.is_running for node in seen.get("function", ()))
            seen.setdefault("function", []).append(couchbase_node)
            with kv(couchbase_node) as client:
                assert client.set("k", b"{}").seqno == 4

        @pytest.mark.couchbase_node(scope="class", vbuckets=16, buckets=["a", "b"], collections=["shop.orders"])
        class TestClass:
            def test_first(self, couchbase_node, couchbase_bucket):
                seen["class"] = couchbase_node
                buckets = couchbase_node.engine.buckets
                assert list(buckets) == ["a", "b", couchbase_bucket.name]
                assert all(bucket.vbucket_count == 16 for bucket in buckets.values())
                assert all("shop.orders" in names(bucket) for bucket in buckets.values())

            def test_second(self, couchbase_node):
                assert seen["class"] is couchbase_node

            @pytest.mark.couchbase_node(vbuckets=8)
            def test_nearest_wins(self, couchbase_node):
                assert couchbase_node is not seen["class"]
                assert couchbase_node.engine.buckets["a"].vbucket_count == 8

        def test_the_class_is_over():
            assert not seen["class"].is_running

        @pytest.mark.couchbase_node(on_disk=True)
        def test_disk(couchbase_node):
            assert couchbase_node.engine.buckets["default"].store.is_durable

        @pytest.mark.couchbase_bucket(
            name="mine", vbuckets=2, collections=["s.c"], settings=BucketSettings(flush_enabled=True)
        )
        def test_bucket(couchbase_bucket, couchbase_node):
            bucket = couchbase_node.engine.buckets["mine"]
            assert str(couchbase_bucket) == "mine" and bucket.vbucket_count == 2
            assert bucket.settings.flush_enabled and "s.c" in names(bucket)
    """,
    "test_faults.py": """
        def test_one(couchbase_node, couchbase_faults):
            assert couchbase_faults("refuse", status="TMPFAIL") == 1
            assert len(couchbase_node.faults()) == 1

        def test_two(couchbase_node):
            assert couchbase_node.faults() == []
    """,
    "test_wrong.py": """
        import pytest
        @pytest.mark.couchbase_node(scope="package")
        def test_scope(couchbase_node): ...
        @pytest.mark.couchbase_node("module")
        def test_positional(couchbase_node): ...
        @pytest.mark.couchbase_node(vbuckets=4000)
        def test_vbuckets(couchbase_node): ...
        @pytest.mark.couchbase_node(vbucket=4)
        def test_unknown(couchbase_node): ...
        @pytest.mark.couchbase_bucket(settings={"max_ttl": 1})
        def test_settings(couchbase_bucket): ...
    """,
}
"""Tests as users write them; one run plays all of them."""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of pytest of a run over all FILES."""
    directory = tmp_path_factory.mktemp("files")
    made = new_runner(directory)
    for name, text in FILES.items():
        made.write(name, text)
    return made.run("-p", "no:randomly", "-rA", passed=33, errors=5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "passed"), [("test_five.py", 1), ("test_shared.py", 21), ("test_marked.py", 9), ("test_faults.py", 2)]
)
def test_fixtures_and_markers(played: str, name: str, passed: int) -> None:
    """An empty bucket in five lines; one node for all; what markers ask for; faults that end with their test."""
    assert len(re.findall(rf"^PASSED {name}::", played, re.MULTILINE)) == passed


def test_mistakes_are_reported(played: str) -> None:
    output = played
    assert len(re.findall(r"^ERROR test_wrong\.py::", output, re.MULTILINE)) == 5
    assert "Traceback" not in output
    assert "another exception" not in output
    assert "pytest_plugin.py" not in output
    assert "unexpected keyword argument 'vbucket'" in output
    assert "settings cannot be {'max_ttl': 1}. Allowed: BucketSettings" in output
    assert "scope is 'package', must be one of function, class, module, session" in output
    assert "keyword arguments only" in output
    assert "1 to 1024" in output


@pytest.mark.slow
def test_a_cluster_is_one_test_s_own(runner: Runner) -> None:
    runner.write(
        "test_cluster.py",
        """
        import pytest

        names = []

        @pytest.mark.parametrize("number", [1, 2])
        @pytest.mark.couchbase_cluster(nodes=2, vbuckets=4, collections=["shop.orders"])
        def test_failover(number, couchbase_cluster):
            assert couchbase_cluster.connection_string not in names
            names.append(couchbase_cluster.connection_string)
            couchbase_cluster.nodes[0].crash()
            couchbase_cluster.fail_over(couchbase_cluster.nodes[0])
            survivor = couchbase_cluster.nodes[1]
            assert couchbase_cluster.chains() == [(survivor.name, None)] * 4
            manifest = survivor.node.engine.buckets["default"].manifest
            assert manifest.find("shop", "orders") is not None

        @pytest.mark.couchbase_cluster(nodes=0)
        def test_mistake(couchbase_cluster): ...
        """,
    )
    assert "couchbase_cluster: nodes cannot be 0. Allowed" in runner.run(passed=2, error=1)


@pytest.mark.slow
def test_the_ini_file_says_what_holds_without_a_marker(runner: Runner) -> None:
    runner.write(
        "pytest.ini",
        """
        [pytest]
        couchbase_node_scope = function
        couchbase_node_vbuckets = 4
        couchbase_node_collections = shop.orders shop.returns
        """,
    )
    runner.write(
        "test_ini.py",
        """
        import pytest
        seen = []
        @pytest.mark.parametrize("number", range(2))
        def test_ini(number, couchbase_node, couchbase_bucket):
            assert not any(node.is_running for node in seen)
            seen.append(couchbase_node)
            for bucket in couchbase_node.engine.buckets.values():
                assert bucket.vbucket_count == 4
                names = {scope.name for scope, _ in bucket.manifest.collections()}
                assert len(list(bucket.manifest.collections())) == 3 + 2 and "_system" in names
        """,
    )
    runner.run(passed=2)


@pytest.mark.slow
def test_every_worker_has_a_node_of_its_own(runner: Runner) -> None:
    runner.write(
        "test_parallel.py",
        """
        import pathlib, pytest
        from helper import kv
        @pytest.mark.parametrize("number", range(12))
        def test_parallel(number, couchbase_node, couchbase_bucket, worker_id):
            with kv(couchbase_bucket, couchbase_bucket.name) as client:
                assert client.set("k", b"{}").seqno == 4
            pathlib.Path(__file__).with_name(f"{worker_id}-{couchbase_node.port}.port").touch()
        """,
    )
    runner.run("-p", "xdist", "-n", "2", passed=12)
    ports = [path.stem.split("-") for path in runner.directory.glob("*.port")]
    assert sorted(worker for worker, _ in ports) == ["gw0", "gw1"]
    assert len({port for _, port in ports}) == 2


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("assert False", marks=pytest.mark.slow),
        "raise KeyboardInterrupt",
        pytest.param("pytest.exit('enough')", marks=pytest.mark.slow),
    ],
)
def test_whatever_ends_the_run_nothing_is_left(runner: Runner, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = runner.directory / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    runner.write(
        "test_end.py",
        f"""
        import pytest, pathlib
        @pytest.mark.couchbase_node(on_disk=True)
        def test_end(couchbase_node, couchbase_bucket):
            assert list(pathlib.Path({str(temporary)!r}).glob("dcpstream-*"))
            {how}
        """,
    )
    runner.run(**({"failed": 1} if how.startswith("assert") else {}))
    assert not list(temporary.glob("dcpstream-*"))


def test_who_does_not_use_it_costs_nothing() -> None:
    code = """
import sys, pytest
before = set(sys.modules)
import dcpstream_node.pytest_plugin
print(*sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=patient(60), check=True)
    assert done.stdout.split() == ["dcpstream", "dcpstream.lazy", "dcpstream_node", "dcpstream_node.pytest_plugin"]


def test_the_project_announces_it_to_pytest() -> None:
    project = tomllib.loads((ROOT / "packages" / "dcpstream-node" / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    assert project["entry-points"]["pytest11"] == {"dcpstream": "dcpstream_node.pytest_plugin"}
    assert not any(requirement.startswith("pytest") for requirement in project["dependencies"])


@pytest.mark.slow
def test_nodes_in_processes_of_their_own(runner: Runner) -> None:
    runner.write(
        "test_processes.py",
        """
        import os
        import pytest
        from helper import kv

        @pytest.mark.couchbase_node(process=True, collections=["shop.orders"])
        def test_node(couchbase_node, couchbase_bucket):
            assert couchbase_node.pid != os.getpid()
            assert couchbase_bucket.name in couchbase_node.buckets
            with kv(couchbase_bucket, couchbase_bucket.name) as client:
                client.set("k", "1")

        @pytest.mark.couchbase_cluster(nodes=2, processes=True, vbuckets=4)
        def test_cluster(couchbase_cluster):
            assert len({os.getpid(), *(node.node.pid for node in couchbase_cluster.nodes)}) == 3
        """,
    )
    runner.run(passed=2)


@pytest.mark.slow
def test_scenarios_of_the_judge_are_tests(runner: Runner) -> None:
    runner.write("test_own.py", "def test_own():\n    pass\n")
    with Node(vbuckets=1024, release="7.2") as node:
        at = f"--dcpstream-judge={node.connection_string} --destroy-documents"
        output = runner.run(f"{at} s34 s45", "-v", passed=3)
        order = [output.index(name) for name in ("test_own PASSED", "dcpstream-judge::s34", "dcpstream-judge::s45")]
        assert order == sorted(order)
        options = ("-rs", "-m", "dcpstream_judge")
        output = runner.run(f"{at} s34 s45 --release 8.0 --read-only", *options, failed=1, skipped=1)
        assert "expected: HELLO response SUCCESS" in output
        assert "SET_VBUCKET may change the server" in output
        assert "Traceback" not in output
        output = runner.run(f"{at} s99")
        assert "--dcpstream-judge: no scenario of this release begins with 's99'" in output


@pytest.mark.slow  # the same command runs in tests/behaviour/test_rules_on_server.py
def test_rules_of_the_judge_are_tests(runner: Runner) -> None:
    with Node(vbuckets=4, username="@admin", password="secret", system_scope=False) as node:
        access = f"--user @admin --password secret --bucket default couchbase://127.0.0.1:{node.port}"
        output = runner.run(f"--dcpstream-judge={access} --rules REQ-18 REQ-35", "-v", "-rs", passed=1, skipped=1)
        assert "dcpstream-judge::REQ-18 PASSED" in output
        output = runner.run(f"--dcpstream-judge={access} --rules XYZ")
        assert "--dcpstream-judge: " in output
        assert "RULE cannot be 'XYZ'" in output
