"""Clients with a JSON Web Token that expires while they read and write."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dcpstream.client import (
    AsyncClient,
    BucketReader,
    Change,
    Client,
    ClientOptions,
    KvClient,
    StreamOptions,
    TlsOptions,
)
from dcpstream.errors import AuthenticationFailed, ConnectTimeout
from dcpstream.runtime import SystemClock
from dcpstream_node import Node
from tests.kit.access import LOGIN
from tests.kit.commands import Commands
from tests.kit.tokens import issuer, token

LIFETIME_S = 60
ROLES = ["data_dcp_reader[*]", "data_reader[*]", "data_writer[*]"]


class Provider:
    """Gives a token of `LIFETIME_S` by the clock of a node, which the test moves."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._moved_s = 0.0
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        return self.token()

    def token(self) -> str:
        return token(SystemClock().time_ns() / 1e9 + self._moved_s + LIFETIME_S)

    def expire(self) -> None:
        """Let all tokens expire that were given."""
        self._moved_s += LIFETIME_S + 1
        self._node.inject("move_clock", seconds=LIFETIME_S + 1)


@pytest.fixture
def node() -> Iterator[Node]:
    users = {"ann": {"password": None, "roles": ROLES, "domain": "external"}}
    settings = {"issuers": [issuer(expiryLeewayS=0)]}
    with Node(vbuckets=4, tls=True, users=users, jwt=settings, release="8.0", system_scope=False) as running:
        yield running


@pytest.fixture
def provider(node: Node) -> Provider:
    return Provider(node)


def options(node: Node, secret: Any, **more: Any) -> dict[str, Any]:
    tls = TlsOptions(trust=node.ca_certificate)
    return {
        "connection_string": node.tls_connection_string,
        "bucket": "default",
        "options": ClientOptions(tls=tls, token=secret, **more),
    }


def write(node: Node, *keys: str) -> None:
    with KvClient(node.connection_string, **LOGIN) as kv:
        kv.set_many((key, b"x" * 1000) for key in keys)


ROUNDS = [[f"{round_} {number}" for number in range(200)] for round_ in range(3)]


def test_a_stream_goes_on_with_the_next_token(node: Node, provider: Provider, caplog: pytest.LogCaptureFixture) -> None:
    """More bytes than half of the window in each round, so that the client acknowledges some."""
    found: list[bytes] = []
    with (
        caplog.at_level(logging.DEBUG),
        Client(**options(node, provider, buffer_bytes=64 * 1024)) as client,
    ):
        changes = client.changes(StreamOptions())
        for keys in ROUNDS:
            write(node, *keys)
            for _ in keys:
                change = next(changes)
                assert isinstance(change, Change)
                found.append(change.key)
            calls = provider.calls
            provider.expire()
    assert sorted(found) == sorted(key.encode() for keys in ROUNDS for key in keys), "each once"
    assert provider.calls == calls
    assert calls >= len(ROUNDS)
    assert "broke the protocol" not in caplog.text
    assert "eyJ" not in caplog.text


def test_a_stream_of_asyncio_goes_on_with_the_next_token(node: Node, provider: Provider) -> None:
    async def read() -> list[bytes]:
        found: list[bytes] = []
        async with AsyncClient(**options(node, provider)) as client:
            changes = client.changes(StreamOptions())
            for keys in ROUNDS:
                await asyncio.to_thread(write, node, *keys)
                async for change in changes:
                    assert isinstance(change, Change)
                    found.append(change.key)
                    if len(found) % len(keys) == 0:
                        break
                provider.expire()
        return found

    assert sorted(asyncio.run(read())) == sorted(key.encode() for keys in ROUNDS for key in keys)


@pytest.mark.slow
def test_documents_are_read_and_written_with_the_next_token(node: Node, provider: Provider) -> None:
    with KvClient(**options(node, provider)) as kv:
        for round_, keys in enumerate(ROUNDS, 1):
            assert len(kv.set_many((key, b"1") for key in keys)) == len(keys)
            assert provider.calls == 2 * round_ - 1
            provider.expire()
            assert None not in kv.get_many(keys)
            assert provider.calls == 2 * round_
            provider.expire()


def test_questions_are_asked_with_the_next_token(node: Node, provider: Provider) -> None:
    write(node, *ROUNDS[0])
    with BucketReader(**options(node, provider)) as reader:
        for _ in range(3):
            assert sum(reader.high_seqnos().values()) == len(ROUNDS[0])
            provider.expire()


def test_a_token_as_text_ends_with_its_life(node: Node, provider: Provider) -> None:
    with Client(**options(node, provider.token())) as client:
        changes = client.changes(StreamOptions())
        write(node, "a")
        assert isinstance(next(changes), Change)
        provider.expire()
        write(node, "a", "b", "c")
        with pytest.raises(AuthenticationFailed, match=r"the token was refused by .*must not have expired"):
            list(changes)


def test_a_provider_that_never_has_a_good_token_is_not_asked_for_ever(node: Node, provider: Provider) -> None:
    stale = provider.token()
    provider.expire()
    with (
        Client(**options(node, lambda: stale, connect_timeout_s=0.5)) as client,
        pytest.raises(ConnectTimeout, match="the token was refused"),
    ):
        next(client.changes(StreamOptions()))


def test_a_token_from_a_file_on_the_command_line(
    node: Node, provider: Provider, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, trust, commands = tmp_path / "token", tmp_path / "ca.pem", Commands(capsys)
    file.write_text(provider.token() + "\n")
    trust.write_text(node.ca_certificate)
    given = ("--cluster", node.tls_connection_string, "--trust", str(trust), "--token-file", str(file))
    commands("kv", "set", *given, "k", '{"a": 1}')
    assert '"a"' in commands("kv", "get", *given, "k")
    file.write_text("")
    assert "--token-file: the first line of" in commands.refused("kv", "get", *given, "k", expect=2)
