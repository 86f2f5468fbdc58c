"""Logins with JSON Web Tokens of a configured issuer, and what becomes of a connection whose token expires."""

from __future__ import annotations

import http.client
import json
import logging
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dcpstream.dcp.sasl import ClientLogin
from dcpstream.errors import ConfigError
from dcpstream.runtime import SystemClock
from dcpstream.wire import Frame, Opcode, Status, encode_response
from dcpstream_node import Node
from tests.kit.cases import each_case
from tests.kit.commands import Commands
from tests.kit.peer import SocketPeer
from tests.kit.rules import rule
from tests.kit.tls import trusting
from tests.kit.tokens import issuer, private_key, token

LIFETIME_S = 60
USERS = {
    "ann": {
        "password": None,
        "roles": ["data_dcp_reader[*]", "data_reader[*]", "data_writer[*]"],
        "domain": "external",
    },
    "bob": {"password": "a-local-one", "roles": ["admin"]},
}
ENCRYPTED: dict[str, Any] = {"vbuckets": 4, "tls": True, "users": USERS}


@pytest.fixture
def node() -> Iterator[Node]:
    with Node(**ENCRYPTED, jwt={"issuers": [issuer(expiryLeewayS=0)]}, release="8.0", system_scope=False) as running:
        yield running


def fresh(lifetime_s: float = LIFETIME_S, **claims: Any) -> str:
    return token(SystemClock().time_ns() / 1e9 + lifetime_s, **claims)


def peer(node: Node) -> SocketPeer:
    result = SocketPeer(node.tls_port, trusting(node))
    result.hello()
    return result


def login(wire: SocketPeer, text: str, user: bytes = b"") -> Frame:
    value = ClientLogin("OAUTHBEARER", "", text).start().replace(b"n,,", b"n," + user + b",")
    return wire.call(Opcode.SASL_AUTH, key=b"OAUTHBEARER", value=value)


def entered(node: Node) -> SocketPeer:
    wire = peer(node)
    assert login(wire, fresh()).status == Status.SUCCESS
    wire.succeed(Opcode.SELECT_BUCKET, key=b"default")
    return wire


def mechanisms(wire: SocketPeer) -> list[bytes]:
    return wire.succeed(Opcode.SASL_LIST_MECHS).value.split()


def test_tokens_are_offered_over_tls_and_last(node: Node) -> None:
    with peer(node) as wire:
        assert mechanisms(wire) == [b"SCRAM-SHA512", b"SCRAM-SHA256", b"SCRAM-SHA1", b"PLAIN", b"OAUTHBEARER"]
    with SocketPeer(node.port) as wire:
        wire.hello()
        assert b"OAUTHBEARER" not in mechanisms(wire)
        answer = login(wire, fresh())
        assert (answer.status, b"Unsupported mechanism" in answer.value) == (Status.AUTH_ERROR, True)


def test_a_token_logs_in_its_user(node: Node) -> None:
    with entered(node) as wire:
        assert wire.set("k", b"v").status == Status.SUCCESS
        assert wire.get("k").value == b"v"
        assert wire.call(Opcode.SASL_STEP, key=b"OAUTHBEARER", value=b"\x01").status == Status.EINVAL
    with peer(node) as wire:
        assert login(wire, fresh(), b"a=ann").status == Status.SUCCESS


@rule("KV-LOGIN-08")
def test_every_request_of_an_expired_token_is_answered_auth_stale(node: Node) -> None:
    """As the recorded 8.0.1 answers; first comes what is wrong with the request itself."""
    with entered(node) as wire:
        wire.set("k", b"v")
        node.inject("move_clock", seconds=LIFETIME_S + 1)
        for opcode in (Opcode.NOOP, Opcode.HELLO, Opcode.SASL_LIST_MECHS, Opcode.SELECT_BUCKET, Opcode.VERSION):
            key = b"default" if opcode is Opcode.SELECT_BUCKET else b""
            assert wire.call(opcode, key=key).status == Status.AUTH_STALE, opcode
        assert wire.get("k").status == wire.set("k", b"w").status == Status.AUTH_STALE
        assert wire.call(Opcode.NOOP, extras=b"x").status == Status.EINVAL
        assert wire.call(0xEF).status == Status.UNKNOWN_COMMAND
        assert login(wire, fresh()).status == Status.AUTH_ERROR, "by the node's clock, it has expired, too"
        assert wire.call(Opcode.NOOP).status == Status.EACCESS
        assert login(wire, fresh(2 * LIFETIME_S + 1)).status == Status.SUCCESS
        assert wire.get("k").value == b"v", "the bucket is still selected"


def dcp(node: Node) -> SocketPeer:
    """A DCP connection with a stream, on which nothing more comes by itself."""
    wire = entered(node)
    wire.succeed(Opcode.DCP_OPEN, key=b"test", extras=struct.pack(">II", 0, 1))
    for key, value in ((b"enable_noop", b"true"), (b"connection_buffer_size", b"100000")):
        wire.succeed(Opcode.DCP_CONTROL, key=key, value=value)
    wire.succeed(Opcode.DCP_STREAM_REQ, opaque=7, extras=struct.pack(">IIQQQQQ", 0, 0, 0, 2**64 - 1, 0, 0, 0))
    return wire


@rule("KV-LOGIN-08")
def test_a_stream_goes_on_and_its_client_may_ask_for_nothing(node: Node) -> None:
    with dcp(node) as wire, SocketPeer(node.port).open("bob", "a-local-one") as writer:
        node.inject("move_clock", seconds=LIFETIME_S + 1)
        wire.send(Opcode.DCP_BUFFER_ACK, extras=struct.pack(">I", 1))
        wire.send(Opcode.DCP_CLOSE_STREAM)
        wire.send(Opcode.SASL_AUTH, key=b"OAUTHBEARER", value=ClientLogin("OAUTHBEARER", "", fresh()).start())
        answers = [frame for frame in (wire.next() for _ in range(4)) if frame.opcode != Opcode.DCP_NOOP]
        assert [(answer.opcode, answer.status) for answer in answers] == [
            (Opcode.DCP_BUFFER_ACK, Status.AUTH_STALE),
            (Opcode.DCP_CLOSE_STREAM, Status.AUTH_STALE),
            (Opcode.SASL_AUTH, Status.NOT_SUPPORTED),
        ]
        writer.set("k", b"v")
        assert [wire.next().opcode for _ in range(2)] == [Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_MUTATION]
        wire.socket.sendall(encode_response(Opcode.DCP_NOOP, opaque=1))
        assert wire.is_closed(), "an answer cannot be answered"


def test_a_login_with_a_password_has_no_end(node: Node) -> None:
    with SocketPeer(node.tls_port, trusting(node)).open("bob", "a-local-one") as wire:
        node.inject("move_clock", seconds=LIFETIME_S + 1)
        assert wire.set("k", b"v").status == Status.SUCCESS
        assert login(wire, fresh(2 * LIFETIME_S + 1)).status == Status.SUCCESS
        node.inject("move_clock", seconds=LIFETIME_S + 1)
        assert wire.call(Opcode.NOOP).status == Status.AUTH_STALE
        assert wire.plain("bob", "a-local-one") == Status.SUCCESS
        assert wire.call(Opcode.NOOP).status == Status.SUCCESS


@rule("KV-LOGIN-09")
def test_refused_tokens_are_answered_alike_and_never_logged(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    refused = {
        "the token has expired": fresh(-1),
        "the token is not valid yet": fresh(nbf=2**40),
        "the token is for another audience": fresh(aud="another"),
        "its signature is wrong": fresh(key=private_key("ES256", "other")),
        "its issuer is unknown": fresh(iss="other"),
        "the claim of the user's name is missing or no text": fresh(sub=""),
        "it is not a token with claims": "no.sound.token",
        "the node has no external user of its name": fresh(sub="bob"),
    }
    with caplog.at_level(logging.DEBUG):
        answers = set()
        for text in refused.values():
            with peer(node) as wire:
                answer = login(wire, text)
                answers.add((answer.status, *json.loads(answer.value)["error"]))
                assert wire.call(Opcode.NOOP).status == Status.EACCESS
        with peer(node) as wire:
            assert login(wire, fresh(), b"a=bob").status == Status.AUTH_ERROR
            assert login(wire, fresh()).status == Status.SUCCESS
    assert answers == {(Status.AUTH_ERROR, "ref")}
    for reason in (*refused, "it is for another user than the client says"):
        assert reason in caplog.text
    for text in refused.values():
        assert text not in caplog.text
        assert text.split(".")[1] not in caplog.text


def test_a_token_that_is_too_long_closes_the_connection(node: Node) -> None:
    with peer(node) as wire:
        wire.send(Opcode.SASL_AUTH, key=b"OAUTHBEARER", value=ClientLogin("OAUTHBEARER", "", "a" * 20_000).start())
        assert wire.is_closed()


@each_case(
    ("options", "words"),
    [
        ({"tls": None, "release": "8.0"}, "tokens are taken over TLS alone"),
        ({"release": "7.6"}, "release 7.6 takes no tokens"),
    ],
)
def test_a_node_that_cannot_take_tokens_says_so(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Node(**ENCRYPTED | options, jwt={"issuers": [issuer()]})


def test_issuers_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, commands = tmp_path / "jwt.json", Commands(capsys)
    arguments = ("node", "--jwt", str(file), "--tls", "--release", "8.0")
    file.write_text("{")
    assert "jwt.json is not JSON: see line 1, column 2" in commands.refused(*arguments, expect=2)
    file.write_text(json.dumps({"issuers": [issuer("HS256", sharedSecret="known to nobody")]}))
    said = commands.refused(*arguments, expect=2)
    assert "at least 32 bytes" in said
    assert "known to nobody" not in said


# ------------------------------------------------------------------------------- roles from claims, management port

PROVISIONED: dict[str, Any] = {"jitProvisioning": True, "rolesMaps": ["^reader$ data_reader[*]", "^boss$ admin"]}


@pytest.fixture
def provisioned() -> Iterator[Node]:
    settings = {"issuers": [issuer(expiryLeewayS=0, **PROVISIONED)]}
    with Node(**ENCRYPTED, jwt=settings, release="8.0", system_scope=False) as running:
        yield running


def test_roles_of_a_token_are_those_of_its_claims(provisioned: Node) -> None:
    with peer(provisioned) as wire:
        assert login(wire, fresh(sub="eve", roles=["reader", "nothing"])).status == Status.SUCCESS
        wire.succeed(Opcode.SELECT_BUCKET, key=b"default")
        assert wire.call(Opcode.GET, key=b"\0k").status == Status.KEY_ENOENT
        assert wire.call(Opcode.SET, key=b"\0k", extras=bytes(8)).status == Status.EACCESS


def test_roles_of_claims_come_on_top_of_the_users_own(provisioned: Node) -> None:
    with peer(provisioned) as wire:
        assert login(wire, fresh(roles="reader")).status == Status.SUCCESS
        wire.succeed(Opcode.SELECT_BUCKET, key=b"default")
        assert wire.call(Opcode.SET, key=b"\0k", extras=bytes(8)).status == Status.SUCCESS


@pytest.mark.parametrize("claims", [{"sub": "eve"}, {"sub": "eve", "roles": ["x"]}, {"sub": "bob", "roles": "boss"}])
def test_a_stranger_without_a_role_and_a_local_user_are_refused(provisioned: Node, claims: dict[str, Any]) -> None:
    with peer(provisioned) as wire:
        assert login(wire, fresh(**claims)).status == Status.AUTH_ERROR


def test_without_provisioning_claims_give_no_role(node: Node) -> None:
    with peer(node) as wire:
        assert login(wire, fresh(sub="eve", roles="admin")).status == Status.AUTH_ERROR


def status_of(node: Node, path: str, text: str, *, tls: bool = True) -> int:
    """Status of a page that is asked for with a token."""
    host, port = "127.0.0.1", node.mgmt_tls_port if tls else node.mgmt_port
    kind = (
        http.client.HTTPSConnection(host, port, context=trusting(node))
        if tls
        else http.client.HTTPConnection(host, port)
    )
    with closing(kind) as connection:
        connection.request("GET", path, headers={"Authorization": f"Bearer {text}"})
        return connection.getresponse().status


def test_the_management_port_takes_tokens_over_tls(provisioned: Node) -> None:
    assert status_of(provisioned, "/settings/rbac/users", fresh(sub="eve", roles=["boss"])) == 200
    assert status_of(provisioned, "/settings/rbac/users", fresh(sub="eve", roles=["reader"])) == 403
    assert status_of(provisioned, "/pools", fresh()) == 200
    assert status_of(provisioned, "/pools", fresh(-1)) == 401
    assert status_of(provisioned, "/pools", "x" * 5_000) == 401
    assert status_of(provisioned, "/pools", fresh(sub="eve", roles=["boss"]), tls=False) == 401
