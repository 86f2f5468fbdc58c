"""Fixtures for pytest: a Couchbase-compatible node for tests, and an empty bucket for each of them.

pytest loads this module wherever dcpstream is installed. The module therefore imports nothing but pytest; the first
test that uses a fixture imports the node.

    def test_it(couchbase_bucket):
        cluster = Cluster(couchbase_bucket.connection_string, ...)

With `--dcpstream-judge`, the scenarios of `dcpstream judge` are tests, one each, or the rules with `--rules` in it.

Fixtures: `couchbase_node` (shared by all tests of a session unless a marker says otherwise), `couchbase_session_node`
(the shared node, for fixtures of a wider scope), `couchbase_bucket`, `couchbase_faults` (what goes wrong in the node
until the test ends), and `couchbase_cluster` (several nodes, for one test alone). With pytest-xdist each worker has its
own nodes.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from dcpstream_node.cluster import Cluster
    from dcpstream_node.embedded import Node
    from dcpstream_node.judge import Judge, Scenario
    from dcpstream_node.testing import FreshBucket, NodeFaults

SCOPES: dict[str, type[pytest.Collector] | type[pytest.Item]] = {
    "function": pytest.Item,
    "class": pytest.Class,
    "module": pytest.Module,
    "session": pytest.Session,
}
"""Scope of a node → the pytest object that owns it. The node stops after the last test of its owner."""

_NODES = pytest.StashKey["dict[str, Node]"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the settings of the ini file, and the option."""
    parser.getgroup("dcpstream").addoption(
        "--dcpstream-judge",
        metavar="ARGUMENTS",
        help="judge a server: each scenario, or with --rules each rule, is a test. The arguments are those of "
        "`dcpstream judge`, for example --dcpstream-judge='couchbase://127.0.0.1:11210 --bucket scratch s07'",
    )
    parser.addini(
        "couchbase_node_scope",
        f"scope of a couchbase_node unless its marker names one: {', '.join(SCOPES)}",
        default="session",
    )
    parser.addini("couchbase_node_vbuckets", "vbuckets of each bucket of a couchbase_node, 1 to 1024", default="64")
    parser.addini("couchbase_node_collections", "scope.collection, created in each bucket", type="args", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers; `pytest --markers` lists them."""
    config.addinivalue_line(
        "markers",
        "couchbase_node(scope=..., vbuckets=..., collections=[...], on_disk=..., **options of dcpstream_node.Node): "
        "arguments of the node that the fixture couchbase_node returns",
    )
    config.addinivalue_line(
        "markers",
        "couchbase_bucket(name=..., collections=[...], vbuckets=..., settings=...): "
        "arguments of the bucket that the fixture couchbase_bucket creates",
    )
    config.addinivalue_line("markers", "dcpstream_judge: a scenario, or a rule, of --dcpstream-judge")
    config.addinivalue_line(
        "markers",
        "couchbase_cluster(nodes=..., replicas=..., vbuckets=..., collections=[...], "
        "**options of dcpstream_node.Cluster): arguments of the cluster that the fixture couchbase_cluster returns",
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    """Add a test for each scenario or rule that the option asks for: last, and in order, whoever shuffles."""
    words = shlex.split(config.getoption("dcpstream_judge") or "")
    if words:
        if hasattr(config, "workerinput"):
            raise pytest.UsageError("--dcpstream-judge: one server is judged at a time. Leave out -n")
        items += _rule_tests(session, words) if "--rules" in words else _scenario_tests(session, words)
    yield
    judging = [item for item in items if isinstance(item, ScenarioTest | RuleTest)]
    items[:] = [item for item in items if not isinstance(item, ScenarioTest | RuleTest)]
    items += sorted(judging, key=lambda test: test.name)


def _scenario_tests(session: pytest.Session, arguments: list[str]) -> Iterator[pytest.Item]:
    from click import ClickException

    from dcpstream.errors import DcpstreamError
    from dcpstream_node.commands.judge import access_of

    try:
        access = access_of(arguments)
        judge = access.judge()
        chosen = judge.choose(*access.names)
    except (ClickException, DcpstreamError) as error:
        message = error.message if isinstance(error, ClickException) else error
        raise pytest.UsageError(f"--dcpstream-judge: {message}") from error
    for scenario in chosen:
        node_id = f"dcpstream-judge::{scenario.name}"
        test = ScenarioTest.from_parent(session, name=scenario.name, nodeid=node_id, judge=judge, scenario=scenario)
        test.add_marker("dcpstream_judge")
        yield test


class ScenarioTest(pytest.Item):
    """A scenario of the judge as a test."""

    def __init__(self, *, judge: Judge, scenario: Scenario, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._judge = judge
        self._scenario = scenario

    def runtest(self) -> None:
        """Play it. Raises: Failed: something differs. Skipped: nothing could be compared."""
        from dcpstream_node.judge.report import lines_of

        verdict = self._judge.judge(self._scenario)
        text = "\n".join(lines_of(verdict))
        if verdict.result == "left out":
            pytest.skip(verdict.stopped)
        if verdict.result == "differs":
            raise pytest.fail.Exception(text, pytrace=False)
        if verdict.stopped or verdict.variations:
            self.add_report_section("call", "judge", text)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """The place and name in reports."""
        return self.path, None, self.nodeid


def _rule_tests(session: pytest.Session, arguments: list[str]) -> Iterator[pytest.Item]:
    run = RulesRun(arguments)
    for rule in run.judge("--list"):
        name = rule["rule"]
        test = RuleTest.from_parent(session, name=name, nodeid=f"dcpstream-judge::{name}", run=run, text=rule["text"])
        test.add_marker("dcpstream_judge")
        yield test


class RulesRun:
    """One run of `dcpstream judge --rules` in a process of its own, for it is a run of pytest as well."""

    def __init__(self, arguments: list[str]) -> None:
        self._arguments = arguments
        self._verdicts: dict[str, Any] | None = None

    def judge(self, *options: str) -> Any:
        """The JSON that the command prints. Raises: UsageError: it prints none."""
        command = [sys.executable, "-m", "dcpstream", "judge", *self._arguments, *options, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own command
        if not done.stdout.strip():
            raise pytest.UsageError(f"--dcpstream-judge: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def of_rule(self, rule_id: str) -> dict[str, Any]:
        """The verdict about a rule; the first call runs the tests of all of them."""
        if self._verdicts is None:
            self._verdicts = {verdict["rule"]: verdict for verdict in self.judge("--frames")["verdicts"]}
        found: dict[str, Any] = self._verdicts[rule_id]
        return found


class RuleTest(pytest.Item):
    """A rule of the protocol as a test. The first one takes the time of all."""

    def __init__(self, *, run: RulesRun, text: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._run = run
        self._text = text

    def runtest(self) -> None:
        """Judge it. Raises: Failed: it differs. Skipped: it cannot be decided from outside."""
        try:
            verdict = self._run.of_rule(self.name)
        except pytest.UsageError as error:  # the server went away since the rules were listed
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        tests = [test for test in verdict["tests"] if test["result"] == verdict["result"]]
        if verdict["result"] == "differs":
            lines = [line for test in tests for line in (test["test"], test["detail"], *test["frames"])]
            raise pytest.fail.Exception("\n".join([self._text, *lines]), pytrace=False)
        if verdict["result"] != "held":
            needs = dict.fromkeys(test["detail"] for test in tests)
            pytest.skip("; ".join(needs) or "no test of it ran")

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """The place and name in reports."""
        return self.path, None, self.nodeid


@pytest.fixture
def couchbase_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A running cluster with the arguments of the marker, for this test alone: a test may fail its nodes over."""
    from dcpstream_node.testing.nodes import running_cluster

    arguments = {
        "vbuckets": int(request.config.getini("couchbase_node_vbuckets")),
        "collections": request.config.getini("couchbase_node_collections"),
        **_arguments(request.node, "couchbase_cluster"),
    }
    with ExitStack() as stack:
        with _as_mistakes_of("couchbase_cluster"):
            cluster = stack.enter_context(running_cluster(**arguments))
        yield cluster


@pytest.fixture(scope="session")
def couchbase_session_node(request: pytest.FixtureRequest) -> Node:
    """The node that all tests of a session share."""
    return _node(request.session, request.config, {})


@pytest.fixture
def couchbase_node(request: pytest.FixtureRequest) -> Node:
    """A running node with the arguments of the marker and the ini file; tests with equal arguments share it."""
    arguments = _arguments(request.node, "couchbase_node")
    scope = arguments.pop("scope", None) or request.config.getini("couchbase_node_scope")
    if scope not in SCOPES:
        _refuse(f"couchbase_node: scope is {scope!r}, must be one of {', '.join(SCOPES)}")
    owner = request.node.getparent(SCOPES[scope]) or request.node.getparent(pytest.Module) or request.session
    return _node(owner, request.config, arguments)


@pytest.fixture
def couchbase_bucket(request: pytest.FixtureRequest, couchbase_node: Node) -> Iterator[FreshBucket]:
    """An empty bucket of `couchbase_node` for this test alone, with the collections of the marker or the ini file."""
    from dcpstream_node.testing.nodes import fresh_bucket

    arguments = _arguments(request.node, "couchbase_bucket")
    if "collections" not in arguments:
        of_node = _arguments(request.node, "couchbase_node").get("collections")
        arguments["collections"] = request.config.getini("couchbase_node_collections") if of_node is None else of_node
    with ExitStack() as stack:
        with _as_mistakes_of("couchbase_bucket"):
            bucket = stack.enter_context(fresh_bucket(couchbase_node, **arguments))
        yield bucket


@pytest.fixture
def couchbase_faults(couchbase_node: Node) -> Iterator[NodeFaults]:
    """Lets things go wrong in `couchbase_node`, one line each. All faults are lifted when the test ends."""
    from dcpstream_node.testing import NodeFaults

    yield NodeFaults(couchbase_node)
    if couchbase_node.is_running:
        couchbase_node.lift()


def _refuse(what: str) -> NoReturn:
    """Fail the test with one line and no traceback: the mistake is in a marker or in the ini file."""
    raise pytest.fail.Exception(what, pytrace=False) from None


@contextmanager
def _as_mistakes_of(name: str) -> Iterator[None]:
    """Report arguments that the node refuses as mistakes of the marker."""
    from dcpstream.errors import ConfigError

    try:
        yield
    except (ConfigError, TypeError) as error:
        _refuse(f"{name}: {error}")


def _arguments(item: pytest.Item, name: str) -> dict[str, Any]:
    """The keyword arguments of all markers of this name; the marker nearest to the test has precedence."""
    arguments: dict[str, Any] = {}
    for marker in item.iter_markers(name):
        if marker.args:
            _refuse(f"{name} takes keyword arguments only, say {name}(vbuckets=16)")
        arguments = {**marker.kwargs, **arguments}
    return arguments


def _node(owner: Any, config: pytest.Config, arguments: dict[str, Any]) -> Node:
    """The node with these arguments that belongs to a test, class, module or session; started at its first use."""
    from dcpstream_node.testing.nodes import running_node

    arguments = {
        "vbuckets": int(config.getini("couchbase_node_vbuckets")),
        "collections": config.getini("couchbase_node_collections"),
        **arguments,
    }
    nodes: dict[str, Node] = owner.stash.setdefault(_NODES, {})
    key = repr(sorted(arguments.items()))
    if key not in nodes:
        stack = ExitStack()
        with _as_mistakes_of("couchbase_node"):
            nodes[key] = stack.enter_context(running_node(**arguments))

        def stop() -> None:
            nodes.pop(key, None)
            stack.close()

        owner.addfinalizer(stop)
    return nodes[key]
