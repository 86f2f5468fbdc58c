"""Nodes and empty buckets that end with a test, or with a group of tests; the pytest fixtures are made of them."""

from __future__ import annotations

import base64
import http.client
import itertools
import json
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote, urlencode

from dcpstream.errors import ConfigError, DcpstreamError
from dcpstream.model import BucketSettings
from dcpstream_node.cluster import Cluster
from dcpstream_node.embedded import Node

DEFAULT_VBUCKETS = 64
"""Clients spread their keys over this many vbuckets, and a bucket is still created in a few milliseconds."""
REQUEST_TIMEOUT_S = 10.0
_OK = range(200, 300)


@dataclass(frozen=True, slots=True)
class FreshBucket:
    """An empty bucket of a running node, with what a client needs to connect to it.

    Attributes:
        name: of the bucket.
        node: the node that serves it.
    """

    name: str
    node: Node

    @property
    def connection_string(self) -> str:
        """The connection string, without the bucket."""
        return self.node.connection_string

    @property
    def username(self) -> str:
        """The administrator's name."""
        return self.node.username

    @property
    def password(self) -> str:
        """The administrator's password."""
        return self.node.password

    def add_collections(self, *names: str) -> None:
        """Create collections, each named `scope.collection`, and their scopes.

        Raises:
            ConfigError: a name has another form.
            DcpstreamError: the node refused a name.
        """
        add_collections(self.node, self.name, names)

    def __str__(self) -> str:
        """The bucket's name, for use in texts."""
        return self.name


@contextmanager
def running_node(
    *,
    vbuckets: int = DEFAULT_VBUCKETS,
    collections: Iterable[str] = (),
    on_disk: bool = False,
    **options: Any,
) -> Iterator[Node]:
    """A node that runs within the context; its data is deleted at the end.

    Args:
        vbuckets: of each bucket.
        collections: created in each bucket, as `scope.collection`.
        on_disk: whether the data is kept in a temporary directory instead of in memory.
        options: other arguments of `dcpstream_node.Node`.
    """
    with TemporaryDirectory(prefix="dcpstream-") if on_disk else _nothing() as path:
        # A path that the caller gives has precedence, and is not deleted.
        options = options if path is None else {"path": path} | options
        with Node(vbuckets=vbuckets, **options) as node:
            for bucket in node.buckets:
                add_collections(node, bucket, collections)
            yield node


@contextmanager
def running_cluster(
    *, vbuckets: int = DEFAULT_VBUCKETS, collections: Iterable[str] = (), **options: Any
) -> Iterator[Cluster]:
    """A cluster that runs within the context.

    Args:
        vbuckets: of each bucket.
        collections: created in each bucket, as `scope.collection`.
        options: other arguments of `dcpstream_node.Cluster`.

    Raises: ConfigError: an argument that cannot be.
    """
    scopes: dict[str, list[str]] = {}
    for name in dict.fromkeys(collections):
        scope, collection = _parts_of(name)
        scopes.setdefault(scope, []).append(collection)
    with Cluster(vbuckets=vbuckets, **options) as cluster:
        for bucket in cluster.buckets if scopes else ():
            cluster.set_collections(bucket, scopes)
        yield cluster


@contextmanager
def _nothing() -> Generator[None]:
    yield None


_numbers = itertools.count(1)


@contextmanager
def fresh_bucket(
    node: Node,
    *,
    name: str | None = None,
    collections: Iterable[str] = (),
    vbuckets: int | None = None,
    settings: BucketSettings | None = None,
) -> Iterator[FreshBucket]:
    """An empty bucket, deleted at the end with its data.

    Args:
        node: a running node.
        name: None takes a name that was not used before in this process, so that clients do not confuse two buckets.
        collections: created in the bucket, as `scope.collection`.
        vbuckets: None takes the number that the node's other buckets have.
        settings: of the bucket.
    """
    bucket = FreshBucket(name or f"test-{next(_numbers)}", node)
    node.create_bucket(bucket.name, settings, vbuckets)
    try:
        bucket.add_collections(*collections)
        yield bucket
    finally:
        # The test may have stopped the node or deleted the bucket.
        if node.is_running and not node.is_paused and bucket.name in node.buckets:
            node.drop_bucket(bucket.name)


def add_collections(node: Node, bucket: str, names: Iterable[str]) -> None:
    """Create the collections that do not exist, each named `scope.collection`, and their scopes.

    Raises:
        ConfigError: a name has another form.
        DcpstreamError: the node refused a name.
    """
    wanted = list(dict.fromkeys(names))
    if not wanted:
        return
    path = f"/pools/default/buckets/{quote(bucket, safe='')}/scopes"
    there = {
        scope["name"]: {item["name"] for item in scope["collections"]}
        for scope in _request(node, "GET", path)["scopes"]
    }
    for name in wanted:
        scope, collection = _parts_of(name)
        if scope not in there:
            _request(node, "POST", path, {"name": scope})
            there[scope] = set()
        if collection not in there[scope]:
            _request(node, "POST", f"{path}/{quote(scope, safe='')}/collections", {"name": collection})
            there[scope].add(collection)


def _parts_of(name: str) -> tuple[str, str]:
    """The scope and the collection in `scope.collection`. Raises: ConfigError: another form."""
    scope, dot, collection = name.partition(".")
    if not (scope and dot and collection):
        raise ConfigError("collections", name, "scope.collection")
    return scope, collection


def _request(node: Node, method: str, path: str, form: Mapping[str, str] | None = None) -> Any:
    login = base64.b64encode(f"{node.username}:{node.password}".encode()).decode()
    headers = {"Authorization": f"Basic {login}"}
    if form is not None:
        headers["Content-Type"] = "application/x-www-form-urlencoded"
    connection = http.client.HTTPConnection(connectable(node.host), node.mgmt_port, timeout=REQUEST_TIMEOUT_S)
    try:
        connection.request(method, path, urlencode(form) if form is not None else None, headers)
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status not in _OK:
        raise DcpstreamError(f"{method} {path} was answered {answer.status}: {body.decode('utf-8', 'replace')[:500]}")
    return json.loads(body) if body else None


def connectable(host: str) -> str:
    """An address at which clients reach a node that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - read, not listened on
