"""Logging in as somebody who should not: nothing tells which names there are, nothing unsafe is offered."""

from __future__ import annotations

import logging
import statistics
import time

import pytest

from dcpstream.dcp.sasl import MECHANISMS, ClientLogin
from dcpstream.errors import ConfigError
from dcpstream.wire import Frame, Opcode, Status
from dcpstream_node import Node
from tests.kit.cases import each_case
from tests.kit.peer import NONCE, SocketPeer

USERS = {"ann": {"password": "hunter22", "roles": ["data_reader[default]"]}}


@pytest.fixture
def node():
    with Node(vbuckets=4, users=USERS) as running:
        yield running


def attempt(node: Node, mechanism: str, name: str) -> list[Frame]:
    """The answers to a login with a wrong password."""
    with SocketPeer(node.port) as wire:
        wire.hello()
        login = ClientLogin(mechanism, name, "wrong", NONCE)
        frames = [wire.call(Opcode.SASL_AUTH, key=mechanism.encode(), value=login.start())]
        if frames[0].status == Status.AUTH_CONTINUE:
            proof = login.step(frames[0].value)
            frames.append(wire.call(Opcode.SASL_STEP, key=mechanism.encode(), value=proof))
        return frames


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_name_and_a_wrong_password_look_the_same(node: Node, mechanism: str) -> None:
    known, unknown = (attempt(node, mechanism, name) for name in ("ann", "bob"))
    assert [(frame.status, len(frame.value)) for frame in known] == [(f.status, len(f.value)) for f in unknown]
    assert known[-1].status == Status.AUTH_ERROR


def test_an_unknown_name_keeps_its_salt_and_shares_it_with_nobody(node: Node) -> None:
    salts = {}
    for name in ("ann", "bob", "carl", "bob"):
        challenge = attempt(node, "SCRAM-SHA256", name)[0].value
        salt = dict(part.split(b"=", 1) for part in challenge.split(b","))[b"s"]
        assert salts.setdefault(name, salt) == salt
    assert len(set(salts.values())) == 3


def test_a_wrong_name_takes_as_long_as_a_wrong_password(node: Node) -> None:
    assert node.engine is not None
    users = node.engine.users
    times: dict[str, list[float]] = {"ann": [], "bob": []}
    users.authenticate("ann", b"hunter22")  # a right password before makes no difference
    for _ in range(25):
        for name, found in times.items():
            started = time.process_time()
            assert users.authenticate(name, b"wrong") is None
            found.append(time.process_time() - started)
    ann, bob = (statistics.median(found) for found in times.values())
    assert 0.5 < ann / bob < 2


def test_channel_binding_is_not_taken_for_a_login_without(node: Node) -> None:
    with SocketPeer(node.port) as wire:
        wire.hello()
        answer = wire.call(Opcode.SASL_AUTH, key=b"SCRAM-SHA256", value=b"p=tls-unique,,n=ann,r=abcdefgh")
        assert answer.status == Status.EINVAL
        assert wire.call(Opcode.SELECT_BUCKET, key=b"default").status == Status.EACCESS


@each_case("plain", ["always", "tls"])
def test_plain_passwords_are_offered_as_set(plain: str) -> None:
    with Node(vbuckets=1, plain=plain) as node, SocketPeer(node.port) as wire:
        wire.hello()
        offered = wire.call(Opcode.SASL_LIST_MECHS).value.decode().split()
        assert offered == list(MECHANISMS if plain == "always" else MECHANISMS[:-1])
        expected = Status.SUCCESS if plain == "always" else Status.AUTH_ERROR
        assert wire.plain("Administrator", "password") == expected
        assert wire.scram("SCRAM-SHA1", "Administrator", "password") == Status.SUCCESS


def test_the_open_network_is_not_served_with_the_default_password() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "db.example"):
        with pytest.raises(ConfigError, match="password"):
            Node(host=host, tls=True)


def test_the_open_network_without_tls_is_warned_of_and_gets_no_plain_passwords(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        Node(vbuckets=1, host="0.0.0.0", password="one of my own") as node,
        SocketPeer(node.port) as wire,
    ):
        assert "without TLS" in caplog.text
        wire.hello()
        assert b"PLAIN" not in wire.call(Opcode.SASL_LIST_MECHS).value


def test_a_node_listens_on_loopback_by_default(node: Node) -> None:
    assert node._server is not None
    assert {acceptor._listener.getsockname()[0] for acceptor in node._server._acceptors} == {"127.0.0.1"}
    assert node.host == "127.0.0.1"


def test_more_rounds_for_passwords_are_sent_to_clients() -> None:
    with Node(vbuckets=1, password_iterations=10_000) as node, SocketPeer(node.port) as wire:
        wire.hello()
        login = ClientLogin("SCRAM-SHA256", "Administrator", "password", NONCE)
        challenge = wire.call(Opcode.SASL_AUTH, key=b"SCRAM-SHA256", value=login.start())
        assert challenge.value.endswith(b"i=10000")
        proof = login.step(challenge.value)
        assert wire.call(Opcode.SASL_STEP, key=b"SCRAM-SHA256", value=proof).status == Status.SUCCESS
    with pytest.raises(ConfigError, match="password_iterations"):
        Node(password_iterations=1)


def test_nothing_is_answered_before_the_login(node: Node) -> None:
    with SocketPeer(node.port) as wire:
        wire.hello()
        for opcode in (Opcode.GET, Opcode.STAT, Opcode.VERSION, 0x87, Opcode.GET_CLUSTER_CONFIG, Opcode.DCP_OPEN):
            assert wire.call(opcode).status == Status.EACCESS
        assert wire.plain("ann", "hunter22") == Status.SUCCESS
        assert wire.plain("ann", "wrong") == Status.AUTH_ERROR
        assert wire.call(Opcode.SELECT_BUCKET, key=b"default").status == Status.EACCESS, "a failed login ends the first"
