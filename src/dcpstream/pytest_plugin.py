"""Fixtures for pytest: a Couchbase-compatible node for tests, and an empty bucket for each of them.

pytest loads this module wherever dcpstream is installed, so it imports nothing but pytest; the node comes in with the
first test that asks for one.

    def test_it(couchbase_bucket):
        cluster = Cluster(couchbase_bucket.connection_string, ...)

Fixtures: `couchbase_node` (shared by the tests of a session, or as the marker says), `couchbase_session_node` (the
shared one, for fixtures of a wider scope) and `couchbase_bucket`. Under pytest-xdist each worker has a node of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from dcpstream.node import Node
    from dcpstream.testing import FreshBucket

SCOPES: dict[str, type[pytest.Collector] | type[pytest.Item]] = {
    "function": pytest.Item,
    "class": pytest.Class,
    "module": pytest.Module,
    "session": pytest.Session,
}
"""What owns a node: it is stopped when the last test of its owner has ended."""

_NODES = pytest.StashKey["dict[str, Node]"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The settings of the ini file."""
    parser.addini(
        "couchbase_node_scope", f"who shares a couchbase_node by default: {', '.join(SCOPES)}", default="session"
    )
    parser.addini("couchbase_node_vbuckets", "vbuckets of each bucket of a couchbase_node, 1 to 1024", default="64")
    parser.addini("couchbase_node_collections", "scope.collection, made in each bucket", type="args", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """The markers, which `pytest --markers` lists."""
    config.addinivalue_line(
        "markers",
        "couchbase_node(scope=..., vbuckets=..., collections=[...], on_disk=..., **options of dcpstream.Node): "
        "which node the fixture couchbase_node gives",
    )
    config.addinivalue_line(
        "markers",
        "couchbase_bucket(name=..., collections=[...], vbuckets=..., settings=...): "
        "how the fixture couchbase_bucket makes its bucket",
    )


@pytest.fixture(scope="session")
def couchbase_session_node(request: pytest.FixtureRequest) -> Node:
    """The node that all tests of a session share."""
    return _node(request.session, request.config, {})


@pytest.fixture
def couchbase_node(request: pytest.FixtureRequest) -> Node:
    """A running node, as the test's marker `couchbase_node` and the ini file say; tests that want the same share it."""
    arguments = _arguments(request.node, "couchbase_node")
    scope = arguments.pop("scope", None) or request.config.getini("couchbase_node_scope")
    if scope not in SCOPES:
        _refuse(f"couchbase_node: scope is {scope!r}, must be one of {', '.join(SCOPES)}")
    owner = request.node.getparent(SCOPES[scope]) or request.node.getparent(pytest.Module) or request.session
    return _node(owner, request.config, arguments)


@pytest.fixture
def couchbase_bucket(request: pytest.FixtureRequest, couchbase_node: Node) -> Iterator[FreshBucket]:
    """An empty bucket of `couchbase_node` for this test alone, with the collections that marker and ini file name."""
    from dcpstream.testing.nodes import fresh_bucket

    arguments = _arguments(request.node, "couchbase_bucket")
    if "collections" not in arguments:
        of_node = _arguments(request.node, "couchbase_node").get("collections")
        arguments["collections"] = request.config.getini("couchbase_node_collections") if of_node is None else of_node
    with ExitStack() as stack:
        with _mistakes_told("couchbase_bucket"):
            bucket = stack.enter_context(fresh_bucket(couchbase_node, **arguments))
        yield bucket


def _refuse(what: str) -> NoReturn:
    """End the test with one line: the mistake is in its marker or the ini file, and not where the fixture met it."""
    raise pytest.fail.Exception(what, pytrace=False) from None


@contextmanager
def _mistakes_told(name: str) -> Iterator[None]:
    """What a node refuses of a marker's arguments."""
    from dcpstream.errors import ConfigError

    try:
        yield
    except (ConfigError, TypeError) as error:
        _refuse(f"{name}: {error}")


def _arguments(item: pytest.Item, name: str) -> dict[str, Any]:
    """The keyword arguments of the markers of that name; those nearest to the test win."""
    arguments: dict[str, Any] = {}
    for marker in item.iter_markers(name):
        if marker.args:
            _refuse(f"{name} takes keyword arguments only, say {name}(vbuckets=16)")
        arguments = {**marker.kwargs, **arguments}
    return arguments


def _node(owner: Any, config: pytest.Config, arguments: dict[str, Any]) -> Node:
    """The node with these arguments that belongs to a test, class, module or session; started when first asked for."""
    from dcpstream.testing.nodes import running_node

    arguments = {
        "vbuckets": int(config.getini("couchbase_node_vbuckets")),
        "collections": config.getini("couchbase_node_collections"),
        **arguments,
    }
    nodes: dict[str, Node] = owner.stash.setdefault(_NODES, {})
    key = repr(sorted(arguments.items()))
    if key not in nodes:
        stack = ExitStack()
        with _mistakes_told("couchbase_node"):
            nodes[key] = stack.enter_context(running_node(**arguments))

        def stop() -> None:
            nodes.pop(key, None)
            stack.close()

        owner.addfinalizer(stop)
    return nodes[key]
