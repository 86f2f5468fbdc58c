"""A password that changes while a client reads and writes."""

from __future__ import annotations

import pytest

from dcpstream.client import Change, Client, ClientOptions, KvClient, StreamOptions
from dcpstream.errors import ConnectionLost, ConnectTimeout
from dcpstream_node import Node
from tests.kit.access import LOGIN

ROLES = ["data_dcp_reader[*]", "data_reader[*]", "data_writer[*]"]


class Words:
    """A password that the cluster has before the client's place of passwords has it."""

    def __init__(self, *words: str) -> None:
        self._words = list(words)
        self.given: list[str] = []

    def __call__(self) -> str:
        self.given.append(self._words.pop(0) if len(self._words) > 1 else self._words[0])
        return self.given[-1]


def write(node: Node, key: str) -> None:
    with KvClient(node.connection_string, **LOGIN) as kv:
        kv.set(key, b"1")


def test_a_stream_goes_on_with_the_new_password() -> None:
    with Node(vbuckets=2, system_scope=False) as node:
        node.add_user("reader", "first-word", ROLES)
        words = Words("first-word", "first-word", "second-word")
        with Client(node.connection_string, username="reader", password=words, bucket="default") as client:
            write(node, "before")
            changes = client.changes(StreamOptions())
            assert isinstance(change := next(changes), Change)
            assert change.key == b"before"
            node.add_user("reader", "second-word", ROLES)
            node.inject("drop")
            write(node, "after")
            assert isinstance(change := next(changes), Change)
            assert change.key == b"after"
            assert words.given[-2:] == ["first-word", "second-word"], "refused once, and tried again"


def test_a_wrong_password_of_a_function_is_not_tried_for_ever() -> None:
    with Node(vbuckets=2, system_scope=False) as node:
        words = Words("wrong")
        options = ClientOptions(connect_timeout_s=0.5)
        with (
            Client(node.connection_string, username="reader", password=words, bucket="default", options=options) as it,
            pytest.raises(ConnectTimeout, match="user 'reader' was refused"),
        ):
            next(it.changes(StreamOptions()))
        assert len(words.given) > 1


def test_documents_are_written_with_the_new_password() -> None:
    with Node(vbuckets=2, system_scope=False) as node:
        node.add_user("reader", "first-word", ROLES)
        words = Words("first-word", "second-word")
        with KvClient(node.connection_string, "reader", words) as kv:
            kv.set("a", b"1")
            node.add_user("reader", "second-word", ROLES)
            node.inject("drop")
            with pytest.raises(ConnectionLost):
                kv.set("b", b"2")
            kv.set("b", b"2")
            assert words.given == ["first-word", "second-word"]
