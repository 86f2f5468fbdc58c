"""Options of `dcpstream node` that are about security: what they stand for, and what is refused."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from dcpstream.errors import ConfigError
from dcpstream.runtime.descriptors import OTHER_DESCRIPTORS
from dcpstream_node.commands.node_security import allow_connections, security_arguments, security_options
from dcpstream_node.shell.limits import Limits
from dcpstream_node.shell.tls import TlsSettings
from tests.kit.cases import each_case


def arguments(*options: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    @click.command()
    @security_options
    def command(**given: Any) -> None:
        found.update(security_arguments(given, "given"))

    result = CliRunner().invoke(command, list(options), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return found


def test_tls_options() -> None:
    found = arguments("--tls", "--tls-port", "0", "--tls-name", "a", "--tls-name", "b", "--tls-client-auth", "optional")
    assert found["tls"] == TlsSettings(port=0, mgmt_port=18091, names=("a", "b"), client_auth="optional")
    given = arguments("--tls-cert", "c.pem", "--tls-key", "k.pem")["tls"]
    assert (given.certificate, given.key) == (Path("c.pem"), Path("k.pem"))


@each_case(
    "options",
    [
        ["--tls-client-auth", "optional"],
        ["--tls-name", "a"],
        ["--tls-key", "k.pem"],
        ["--tls", "--tls-client-ca", "ca.pem"],
        ["--tls", "--tls-cert", "c.pem"],
        ["--tls-cert", "c.pem", "--tls-key", "k.pem", "--tls-client-auth", "mandatory"],
        ["--limit", "fly=1"],
        ["--limit", "connections"],
        ["--password-file", "/nowhere/at/all"],
    ],
)
def test_options_that_do_not_go_together(options: list[str]) -> None:
    with pytest.raises(ConfigError):
        arguments(*options)


@pytest.mark.parametrize("content", ["hunter22", "hunter22\n", "hunter22\r\nmore"])
def test_the_password_of_a_file_is_its_first_line(tmp_path: Path, content: str) -> None:
    file = tmp_path / "password"
    file.write_text(content, newline="")
    assert arguments("--password-file", str(file))["password"] == "hunter22"


@pytest.mark.parametrize("content", [b"", b"\nhunter22", b"\xff\xfehunter22"])
def test_a_file_without_a_password_is_reported_and_not_quoted(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "password"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        arguments("--password-file", str(file))
    assert "hunter22" not in str(raised.value)


@pytest.mark.parametrize(("hard", "is_enough"), [(100_000, True), (1100, False)])
def test_as_many_descriptors_as_connections_need(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hard: int, is_enough: bool
) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))
    needed = 1000 + 200 + OTHER_DESCRIPTORS
    allow_connections(Limits(connections=1000, http_connections=200))
    assert given == [(needed if is_enough else hard, hard)]
    warning = f"{hard} descriptors are allowed, {needed} are needed for all connections of the limits"
    assert [record.getMessage() for record in caplog.records] == ([] if is_enough else [warning])


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o640])
def test_a_file_of_passwords_that_others_may_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    file = tmp_path / "password"
    file.write_text("hunter22")
    file.chmod(mode)
    arguments("--password-file", str(file))
    assert ("chmod 600" in caplog.text) == (mode != 0o600)
    assert "hunter22" not in caplog.text
