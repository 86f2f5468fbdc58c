"""No secret leaves the node: not in its log at the most talkative, not in errors, pages and representations."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import stat
import struct
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcpstream.dcp.sasl import MECHANISMS
from dcpstream.errors import ConfigError
from dcpstream.wire import Opcode, Status, encode_request
from dcpstream_node import Node
from tests.kit.cases import each_case
from tests.kit.peer import SocketPeer
from tests.kit.rest import ask
from tests.kit.tls import trusting

ADMIN, ANN, NEW = "corect-horse-battery", "hunter22-of-ann", "another-staple-9"
BODY = "a-body-that-is-nobodys-business"
KEY = "a-key-that-is-nobodys-business"
USERS = {"ann": {"password": ANN, "roles": ["data_reader[default]", "data_writer[default]"]}}


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.DEBUG):
        yield caplog


def secrets_of(node: Node) -> list[str]:
    """Passwords, what is derived from them, and keys; each as it could be written."""
    found = [ADMIN, ANN, NEW, BODY, KEY]
    assert node.engine is not None
    for user in node.engine.users.all():
        if user.credentials is None:
            continue
        for mechanism in MECHANISMS[:-1]:
            keys = user.credentials.keys(mechanism)
            for secret in (keys.stored_key, keys.server_key, keys.salt):
                found += [secret.hex(), base64.b64encode(secret).decode(), repr(secret)[2:-1]]
    for password in (ADMIN, ANN, NEW):
        found += [base64.b64encode(password.encode()).decode(), hashlib.sha256(password.encode()).hexdigest()]
        found += [base64.b64encode(f"{user}:{password}".encode()).decode() for user in ("Administrator", "ann", "bob")]
    return found


def do_everything(node: Node) -> list[bytes]:
    """A session that touches all that could be told; returns the pages it was shown."""
    for mechanism in MECHANISMS:
        with SocketPeer(node.port) as wire:
            wire.hello()
            assert (wire.plain if mechanism == "PLAIN" else lambda *who, m=mechanism: wire.scram(m, *who))(
                "Administrator", ADMIN
            ) == Status.SUCCESS
    with SocketPeer(node.port) as wire:
        wire.hello()
        assert wire.plain("ann", NEW) == Status.AUTH_ERROR
        assert wire.scram("SCRAM-SHA512", "ann", NEW) == Status.AUTH_ERROR
        assert wire.plain(ANN, "the name and the password swapped") == Status.AUTH_ERROR
    with SocketPeer(node.tls_port, trusting(node)).open("ann", ANN) as wire:
        assert wire.set(KEY, f'{{"text": "{BODY}"}}'.encode()).status == Status.SUCCESS
        assert wire.get(KEY).status == Status.SUCCESS
        wire.call(Opcode.SET, key=b"\x7f" + KEY.encode(), value=BODY.encode(), extras=bytes(8))
        wire.call(Opcode.SET, key=b"\0" + KEY.encode(), value=BODY.encode(), extras=bytes(3))
        wire.send(Opcode.STAT, key=b"dcp")
    with SocketPeer(node.port).open("Administrator", ADMIN) as wire:
        opened = wire.call(Opcode.DCP_OPEN, key=b"a stream", extras=struct.pack(">II", 0, 1))
        assert opened.status == Status.SUCCESS
        wire.call(Opcode.DCP_CONTROL, key=b"enable_noop", value=b"true")
        wire.send(Opcode.DCP_STREAM_REQ, extras=struct.pack(">IIQQQQQ", 0, 0, 0, 2**64 - 1, 0, 0, 0))
        for _ in range(3):
            assert wire.read() is not None
    with SocketPeer(node.port).open("ann", ANN) as wire:
        wire.socket.sendall(
            encode_request(Opcode.SET, key=b"\0k", value=BODY.encode(), extras=bytes(8))[:-3] + b"\x55" * 60
        )
        while wire.read() is not None:
            pass  # what follows is no frame: it is closed
    form = f"password={NEW}&roles=data_reader[default]&name=Bob"
    assert ask(node, "PUT", "/settings/rbac/users/local/bob", form, password=ADMIN).status == 200
    assert ask(node, "PUT", "/settings/rbac/users/local/eve", f"password={NEW}&roles=fly", password=ADMIN).status == 400
    assert ask(node, "GET", "/pools", password=NEW).status == 401
    paths = (
        "/whoami",
        "/settings/rbac/users",
        "/pools/default",
        "/pools/default/buckets",
        "/metrics",
        "/health",
        "/status",
    )
    return [ask(node, "GET", path, password=ADMIN).body for path in paths]


def test_a_whole_session_shows_no_secret(log: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with Node(vbuckets=4, path=tmp_path, password=ADMIN, users=USERS, tls=True) as node:
        pages = do_everything(node)
        secrets = secrets_of(node)
        shown = "".join(map(repr, (node, node.engine, *(node.engine.users.all() if node.engine else ()))))
        keys = [file.read_text() for file in (tmp_path / ".security").glob("*.key")]
        secrets += [line for key in keys for line in key.splitlines() if not line.startswith("-")]
    lines = "\n".join(
        f"{record.getMessage()} {record.exc_text or ''} {record.exc_info or ''}" for record in log.records
    )
    assert "connected" in lines, "the log was as talkative as it gets"
    assert "login refused" in lines
    for where, text in (("the log", lines), ("a representation", shown), ("a page", b"".join(pages).decode())):
        found = [secret for secret in secrets if secret in text and secret != KEY]
        assert found == [], where
        assert KEY not in text or where == "a page", where


def test_what_is_kept_has_no_password_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    with Node(vbuckets=4, path=tmp_path, password=ADMIN, users=USERS, tls=True) as node:
        do_everything(node)
        content = json.loads((tmp_path / ".security" / "users.json").read_text())
        assert set(content["users"]) == {"bob"}
    for file in tmp_path.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            assert not [word for word in (ADMIN, ANN, NEW) if word.encode() in data], file
    kept = tmp_path / ".security"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    assert all(not stat.S_IMODE(file.stat().st_mode) & 0o077 for file in kept.iterdir())


@each_case(
    "options",
    [
        {"password": ADMIN, "port": -1},
        {"password": ADMIN, "users": {"ann": {"password": ANN, "roles": ["fly"]}}},
        {"password": ADMIN, "users": {"ann": [ANN]}},
        {"password": ADMIN, "users": {"a,b": {"password": ANN}}},
        {"password": ADMIN * 100},
    ],
)
def test_no_error_quotes_a_password(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as raised:
        Node(vbuckets=1, **options)  # type: ignore[arg-type]
    text = "".join(traceback.format_exception(raised.value, chain=True)) + repr(raised.value)
    told = [line for line in text.splitlines() if not line.lstrip().startswith(("Node(", "File"))]
    assert not [word for word in (ADMIN, ANN) if word in "\n".join(told)]


def test_users_of_http_are_there_after_a_restart(tmp_path: Path) -> None:
    with Node(vbuckets=4, path=tmp_path) as node:
        form = f"password={NEW}&roles=data_reader[default]"
        assert ask(node, "PUT", "/settings/rbac/users/local/bob", form).status == 200
    with Node(vbuckets=4, path=tmp_path) as node, SocketPeer(node.port).open("bob", NEW) as wire:
        assert wire.get("k").status == Status.KEY_ENOENT
        assert wire.set("k", b"1").status == Status.EACCESS
        assert ask(node, "DELETE", "/settings/rbac/users/local/bob").status == 200
        assert wire.get("k").status != Status.KEY_ENOENT, "at once"
    with Node(vbuckets=4, path=tmp_path) as node, SocketPeer(node.port) as wire:
        wire.hello()
        assert wire.plain("bob", NEW) == Status.AUTH_ERROR
