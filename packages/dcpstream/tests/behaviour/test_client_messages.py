"""Messages as the nodes sent them, and keys alone, by both clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import dcpstream_node
from dcpstream.client import AsyncClient, Change, Client, CollectionEvents, KvClient, RowsRead, StreamOptions
from dcpstream.client.streaming import Messages
from dcpstream.errors import ConfigError
from dcpstream.wire import Opcode
from lab.tools.patience import patient
from tests.kit.access import LOGIN

KINDS = ("blocking", "asyncio")
KEYS = [f"k{number}".encode() for number in range(20)]


@pytest.fixture(scope="module")
def node() -> Iterator[dcpstream_node.Node]:
    with dcpstream_node.Node(vbuckets=2) as running:
        running.set_collections("default", {"shop": ["orders"]})
        with KvClient(running.connection_string, **LOGIN) as kv:
            kv.set_many((key.decode(), b'{"n": 1}') for key in KEYS)
        yield running


def read(kind: str, node: dcpstream_node.Node, method: str, options: StreamOptions, **more: Any) -> list[Any]:
    """Everything that a stream gives until it ends."""

    async def collect() -> list[Any]:
        async with AsyncClient(node.connection_string, **LOGIN) as client:
            return [item async for item in getattr(client, method)(options, **more)]

    if kind == "asyncio":
        return asyncio.run(asyncio.wait_for(collect(), patient(30)))
    with Client(node.connection_string, **LOGIN) as client:
        return list(getattr(client, method)(options, **more))


@pytest.mark.parametrize("kind", KINDS)
def test_messages_are_those_of_the_node(kind: str, node: dcpstream_node.Node) -> None:
    found: list[Messages] = read(kind, node, "messages", StreamOptions(end="latest"))
    keys, events, moved = [], [], {}
    for one in found:
        moved.update(one.output.offsets)
        if isinstance(one.output, RowsRead):
            frames = [frame for run in one.output.rows for frame in run.frames]
            assert {frame.opcode for frame in frames} <= {Opcode.DCP_MUTATION}
            keys += [frame.key[1:] for frame in frames]
        elif isinstance(one.output, CollectionEvents):
            events += [event.op for event in one.output.events]
    assert sorted(keys) == sorted(KEYS)
    assert events
    assert moved.keys() == found[-1].failover_logs.keys() == {0, 1}
    assert all(moved[vbid].vbuuid == log.newest.vbuuid for vbid, log in found[-1].failover_logs.items())


@pytest.mark.parametrize("kind", KINDS)
def test_messages_end_on_request_after_what_has_arrived(kind: str, node: dcpstream_node.Node) -> None:
    found: list[Messages] = read(kind, node, "messages", StreamOptions(), is_over=lambda: True)
    assert found == [], "a stream that is over at once ends before anything has arrived"


@pytest.mark.parametrize("kind", KINDS)
def test_keys_alone_have_no_documents(kind: str, node: dcpstream_node.Node) -> None:
    changes: list[Change] = read(kind, node, "changes", StreamOptions(end="latest", keys_only=True))
    rows = [change for change in changes if change.op == "mutation"]
    assert sorted(change.key for change in rows) == sorted(KEYS)
    assert not any(change.value for change in rows)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("stream", {"keys_only": True}),
        ("changes", {"columns": ["key"]}),
        ("changes", {"max_batch_rows": 7}),
        ("messages", {"on_rollback": "rewind"}),
        ("messages", {"read_stable": True}),
    ],
)
def test_an_option_that_a_method_does_not_have_is_refused(
    kind: str, method: str, given: dict[str, Any], node: dcpstream_node.Node
) -> None:
    (name,) = given
    with pytest.raises(ConfigError, match=rf"{method}\(\) has no option {name}"):
        read(kind, node, method, StreamOptions(**given))
