"""The user of a certificate, settings that cannot be, and the renewal of a kept certificate."""

from __future__ import annotations

import errno
import os
import ssl
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dcpstream.errors import ConfigError
from dcpstream_node.shell.certificates import Authority, Pair, kept_or_made
from dcpstream_node.shell.tls import Tls, TlsSettings
from tests.kit.cases import each_case

CERTIFICATE = {
    "subject": ((("organizationName", "x"),), (("commonName", "user-ann@example.com"),)),
    "subjectAltName": (("email", "bob@example.com"), ("DNS", "a.example"), ("DNS", "node-carl"), ("URI", "urn:dan")),
}


def name(certificate: object = CERTIFICATE, **rule: str) -> str | None:
    tls = Tls(TlsSettings(**rule), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), "", None)  # type: ignore[arg-type]
    return tls.user_name(certificate)  # type: ignore[arg-type]


@each_case(
    ("certificate", "rule"),
    [
        (None, {}),
        ({}, {}),
        ({"subject": ()}, {}),
        (CERTIFICATE, {"user_prefix": "other-"}),
        (CERTIFICATE, {"user_delimiters": "u"}),
        ({"subject": ((("commonName", "x" * 200),),)}, {}),
        ({"subject": CERTIFICATE["subject"]}, {"user_from": "san.dns"}),
    ],
)
def test_no_name_by_the_rule(certificate: object, rule: dict[str, str]) -> None:
    assert name(certificate, **rule) is None


@each_case(
    "settings",
    [
        {"certificate": "c.pem"},
        {"key": "k.pem"},
        {"client_auth": "perhaps"},
        {"user_from": "subject.ou"},
        {"port": 70_000},
        {"mgmt_port": -1},
        {"certificate": "c.pem", "key": "k.pem", "client_auth": "optional"},
    ],
)
def test_settings_that_cannot_be(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        TlsSettings(**settings)  # type: ignore[arg-type]


def test_kept_certificates_are_used_until_they_are_about_to_end(tmp_path: Path) -> None:
    authority, pair = kept_or_made(("localhost",), tmp_path)
    again, same = kept_or_made(("localhost",), tmp_path)
    assert (again.certificate, same) == (authority.certificate, pair)
    _, other = kept_or_made(("localhost", "db.example"), tmp_path)
    assert other != pair
    old = Authority(authority.pair, datetime.now(UTC) - timedelta(days=390)).server(("localhost", "db.example"))
    (tmp_path / ".security" / "server.pem").write_text(old.certificate)
    (tmp_path / ".security" / "server.key").write_text(old.key)
    _, renewed = kept_or_made(("localhost", "db.example"), tmp_path)
    assert renewed.certificate != old.certificate


def test_an_authority_that_ends_is_recreated_with_its_certificates(tmp_path: Path) -> None:
    (tmp_path / ".security").mkdir()
    old = Authority(now=datetime.now(UTC) - timedelta(days=3640))
    (tmp_path / ".security" / "ca.pem").write_text(old.certificate)
    (tmp_path / ".security" / "ca.key").write_text(old.pair.key)
    authority, pair = kept_or_made(("localhost",), tmp_path)
    assert authority.certificate != old.certificate
    assert authority.certificate in pair.certificate


def test_a_kept_authority_that_is_damaged_is_reported(tmp_path: Path) -> None:
    (tmp_path / ".security").mkdir()
    for file in ("ca.pem", "ca.key"):
        (tmp_path / ".security" / file).write_text("damaged")
    with pytest.raises(ConfigError, match="remove it"):
        kept_or_made(("localhost",), tmp_path)


def test_without_the_extra_a_certificate_of_ones_own_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Authority().server(("localhost",))
    for file, content in (("c.pem", pair.certificate), ("k.pem", pair.key)):
        (tmp_path / file).write_text(content)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.setitem(sys.modules, "cryptography.x509", None)
    monkeypatch.delitem(sys.modules, "dcpstream_node.shell.certificates")
    with pytest.raises(ConfigError, match=r"pip install dcpstream-node\[tls\]"):
        Tls.open(TlsSettings(), "127.0.0.1", None)
    given = TlsSettings(certificate=tmp_path / "c.pem", key=tmp_path / "k.pem")
    assert Tls.open(given, "127.0.0.1", None).ca_certificate == ""


@pytest.mark.parametrize(
    ("days", "told"), [(-4000, "has expired (2"), (0, ""), (4000, "is not valid before 2")], ids=["old", "good", "new"]
)
def test_a_certificate_that_clients_will_refuse_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, days: int, told: str
) -> None:
    pair = Authority(now=datetime.now(UTC) + timedelta(days=days)).server(("localhost",))
    for file, content in (("c.pem", pair.certificate), ("k.pem", pair.key)):
        (tmp_path / file).write_text(content)
    Tls.open(TlsSettings(certificate=tmp_path / "c.pem", key=tmp_path / "k.pem"), "127.0.0.1", None)
    assert told in caplog.text
    assert bool(told) == bool(caplog.records)


def test_a_key_is_in_no_representation() -> None:
    pair = Authority().pair
    assert "PRIVATE" in pair.key
    assert pair.key not in repr(pair)
    assert repr(Pair("a", "b")) == "Pair(…)"


@pytest.mark.parametrize("lacks", ["room", "files in memory"])
def test_a_certificate_is_loaded_without_room_for_temporary_files_or_without_files_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    if lacks == "room":
        if not hasattr(os, "memfd_create"):
            pytest.skip("this system has no files in memory")

        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        Tls.open(TlsSettings(), "127.0.0.1", tmp_path)  # keeps its certificates
        monkeypatch.setattr(tempfile, "TemporaryDirectory", full)
    else:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    tls = Tls.open(TlsSettings(), "127.0.0.1", tmp_path)
    assert tls.ca_certificate
