"""Options of `dcpstream node` that are more than one word."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from dcpstream.cli.app import run
from dcpstream.errors import ConfigError
from dcpstream.model import BucketSettings
from dcpstream_node.commands.node import read_alternate_addresses, read_settings, settings_with_defaults
from tests.kit.cases import each_case


@each_case("texts", [("db.example",), ("a=b", "a=c"), ("a=b,kv",), ("a=b,kv=x",), ("a=b,kv=1,kv=2",)])
def test_alternate_addresses_that_cannot_be(texts: tuple[str, ...]):
    with pytest.raises(ConfigError, match="--alternate-address"):
        read_alternate_addresses(texts)


def test_settings_are_listed_as_they_are_given(capsys: pytest.CaptureFixture[str]):
    assert run(["node", "--set", "help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "persist=group" in lines
    assert lines == settings_with_defaults()
    assert read_settings(tuple(lines), None) == BucketSettings()


@pytest.fixture(autouse=True)
def heaps(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """An entry for each node that would have changed the heap of this process."""
    found: list[None] = []
    monkeypatch.setattr("dcpstream_node.commands.node.keep_large_buffers_apart", lambda: found.append(None))
    return found


def test_only_a_node_in_memory_keeps_large_buffers_apart(
    tmp_path: Path, request: pytest.FixtureRequest, heaps: list[None]
) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    request.addfinalizer(taken.close)
    refused = ["node", "--port", str(taken.getsockname()[1]), "--mgmt-port", "0", "--vbuckets", "1"]
    assert run([*refused, "--data", str(tmp_path / "data")])
    assert heaps == []
    assert run(refused)
    assert heaps == [None]


def test_what_a_node_cannot_use_is_said_in_a_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    request.addfinalizer(taken.close)
    port = taken.getsockname()[1]
    file = tmp_path / "file"
    file.touch(0o600)
    large = tmp_path / "large"
    large.write_bytes(bytes(1024 * 1024 + 1))
    free = ["node", "--port", "0", "--mgmt-port", "0", "--vbuckets", "1"]
    for words, told in (
        ([*free, "--mgmt-port", str(port)], f"port {port} of 127.0.0.1 is already in use. Choose another one with"),
        ([*free, "--data", str(file)], f"the data directory {file} cannot be used: {file} is not a directory"),
        ([*free, "--replicas", "1"], "--replicas 1 needs further nodes"),
        ([*free, "--users", "/no/file"], "--users: /no/file cannot be read: No such file or directory"),
        ([*free, "--users", str(large)], f"--users: {large} is larger than 1048576 bytes. Is it the right file?"),
        ([*free, "--password-file", str(file)], f"the first line of {file} is empty. The secret must be there"),
        ([*free, "--host", "0.0.0.0"], "can be reached by others, and its password is the default one"),
        ([*free, "--tls", "--tls-ca-out", "/no/file"], "/no/file cannot be written: No such file or directory"),
    ):
        assert run(words)
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1
        assert not re.search(r"Errno|='| is not allowed", error)
