"""Encrypted connections: certificates made and given, users with certificates, and what is refused."""

from __future__ import annotations

import json
import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest

from dcpstream.errors import ConfigError
from dcpstream.wire import Opcode, Status
from dcpstream_node import Node
from dcpstream_node.shell.certificates import Authority
from dcpstream_node.shell.tls import TlsSettings
from tests.kit.peer import SocketPeer
from tests.kit.rest import ask
from tests.kit.tls import trusting, with_certificate
from tests.kit.waiting import TIMEOUT_S, wait_until

USERS = {"ann": {"password": "hunter22", "roles": ["data_reader[default]", "data_writer[default]"]}}


@pytest.fixture(scope="module")
def node():
    with Node(vbuckets=4, tls=TlsSettings(client_auth="optional"), users=USERS, plain="tls") as running:
        yield running


def test_documents_and_management_over_tls(node: Node) -> None:
    context = trusting(node)
    with SocketPeer(node.tls_port, context).open() as wire:
        value = bytes(range(256)) * 8192  # more than a record, and than a buffer
        assert wire.set("large", value).status == Status.SUCCESS
        assert wire.get("large").value == value
        assert isinstance(wire.socket, ssl.SSLSocket)
        assert wire.socket.version() == "TLSv1.3"
    status, body, _ = ask(node, "GET", "/pools/default/b/default", context=context)
    assert status == 200
    services = json.loads(body)["nodesExt"][0]["services"]
    assert services["kvSSL"] == node.tls_port
    assert services["mgmtSSL"] == node.mgmt_tls_port
    assert node.tls_connection_string == f"couchbases://127.0.0.1:{node.tls_port}"


def test_many_requests_at_once_over_tls(node: Node) -> None:
    from dcpstream.wire import encode_request

    with SocketPeer(node.tls_port, trusting(node)).open() as wire:
        count = 5000
        wire.socket.sendall(
            b"".join(
                encode_request(Opcode.SET, key=b"\0k%d" % n, value=b"v" * 200, extras=bytes(8)) for n in range(count)
            )
        )
        assert [frame.status for _ in range(count) if (frame := wire.read())] == [0] * count


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_the_made_certificate_has_the_names_of_this_machine(node: Node, name: str) -> None:
    raw = socket.create_connection(("127.0.0.1", node.tls_port), TIMEOUT_S)
    with trusting(node).wrap_socket(raw, server_hostname=name) as wrapped:
        assert wrapped.getpeercert()


def test_who_does_not_trust_the_authority_is_not_served(node: Node) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        SocketPeer(node.tls_port, ssl.create_default_context())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_versions_are_refused(node: Node, version: ssl.TLSVersion) -> None:
    context = trusting(node)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    with pytest.raises((ssl.SSLError, ConnectionError)):
        SocketPeer(node.tls_port, context)


@pytest.mark.parametrize("ciphers", ["AES128-SHA", "ECDHE-ECDSA-AES128-SHA"])
def test_ciphers_without_forward_secrecy_or_authentication_are_refused(node: Node, ciphers: str) -> None:
    context = trusting(node)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(f"{ciphers}:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        SocketPeer(node.tls_port, context)


def test_tls_1_2_with_a_good_cipher_is_served(node: Node) -> None:
    context = trusting(node)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with SocketPeer(node.tls_port, context).open() as wire:
        assert isinstance(wire.socket, ssl.SSLSocket)
        cipher = wire.socket.cipher()
        assert cipher is not None
        assert cipher[0].startswith("ECDHE-ECDSA")


def test_plain_passwords_are_taken_over_tls_alone(node: Node) -> None:
    with SocketPeer(node.port) as wire:
        wire.hello()
        assert b"PLAIN" not in wire.call(Opcode.SASL_LIST_MECHS).value.split()
        assert wire.plain("Administrator", "password") == Status.AUTH_ERROR
        assert wire.scram("SCRAM-SHA512", "Administrator", "password") == Status.SUCCESS
    with SocketPeer(node.tls_port, trusting(node)) as wire:
        assert b"PLAIN" in wire.call(Opcode.SASL_LIST_MECHS).value.split()
        assert wire.plain("Administrator", "password") == Status.SUCCESS


# --------------------------------------------------------------------------------------------- users with certificates


def test_a_certificate_logs_its_user_in(node: Node, tmp_path: Path) -> None:
    context = with_certificate(trusting(node), tmp_path, node.client_certificate("ann"))
    with SocketPeer(node.tls_port, context) as wire:
        wire.hello()
        assert wire.call(Opcode.SASL_LIST_MECHS).status == Status.NOT_SUPPORTED
        assert (
            wire.call(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0Administrator\0password").status == Status.NOT_SUPPORTED
        )
        assert wire.call(Opcode.SELECT_BUCKET, key=b"default").status == Status.SUCCESS
        assert wire.set("k", b"1").status == Status.SUCCESS
        assert wire.call(Opcode.STAT, key=b"uuid").status == Status.EACCESS, "her rights, no others"
    status, body, _ = ask(node, "GET", "/whoami", user="", context=context)
    assert (status, json.loads(body)["id"]) == (200, "ann")


def test_a_certificate_of_nobody_leaves_the_password(node: Node, tmp_path: Path) -> None:
    context = with_certificate(trusting(node), tmp_path, node.client_certificate("stranger"))
    with SocketPeer(node.tls_port, context) as wire:
        assert wire.call(Opcode.SELECT_BUCKET, key=b"default").status == Status.EACCESS
        wire.open()
    assert ask(node, "GET", "/whoami", user="", context=context).status == 401


def is_refused(port: int, context: ssl.SSLContext) -> bool:
    """Whether the handshake fails, or the connection ends before an answer."""
    try:
        wire = SocketPeer(port, context)
    except (ssl.SSLError, ConnectionError):
        return True
    with wire:
        try:
            wire.send(Opcode.HELLO)
        except (ssl.SSLError, ConnectionError):
            return True
        return wire.is_closed()


def foreign(user: str) -> tuple[str, str]:
    pair = Authority().client(user)
    return pair.certificate, pair.key


def ended(node: Node, user: str) -> tuple[str, str]:
    assert node._tls is not None
    assert node._tls.authority is not None
    pair = node._tls.authority.client(user, days=-1)
    return pair.certificate, pair.key


@pytest.mark.parametrize("kind", ["foreign", "ended"])
def test_certificates_of_others_and_those_that_have_ended_are_refused(node: Node, tmp_path: Path, kind: str) -> None:
    pair = foreign("ann") if kind == "foreign" else ended(node, "ann")
    context = with_certificate(trusting(node), tmp_path, pair)
    assert is_refused(node.tls_port, context)


def test_a_servers_certificate_is_no_users(node: Node, tmp_path: Path) -> None:
    assert node._tls is not None
    assert node._tls.authority is not None
    pair = node._tls.authority.server(("ann",))
    context = with_certificate(trusting(node), tmp_path, (pair.certificate, pair.key))
    assert is_refused(node.tls_port, context)


def test_mandatory_certificates(tmp_path: Path) -> None:
    with Node(vbuckets=1, tls=TlsSettings(client_auth="mandatory"), users=USERS) as node:
        for pair in (None, node.client_certificate("stranger")):
            context = trusting(node)
            if pair is not None:
                with_certificate(context, tmp_path, pair)
            assert is_refused(node.tls_port, context)
        context = with_certificate(trusting(node), tmp_path, node.client_certificate("ann"))
        with SocketPeer(node.tls_port, context) as wire:
            assert wire.call(Opcode.SELECT_BUCKET, key=b"default").status == Status.SUCCESS


# --------------------------------------------------------------------------------------------------- files and options


def test_a_given_certificate_is_used(tmp_path: Path) -> None:
    authority = Authority()
    pair = authority.server(("localhost",))
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.write_text(pair.certificate)
    key.write_text(pair.key)
    with Node(vbuckets=1, tls=TlsSettings(certificate=certificate, key=key)) as node:
        assert node.ca_certificate == ""
        SocketPeer(node.tls_port, ssl.create_default_context(cadata=authority.certificate)).open().close()
        with pytest.raises(ConfigError, match="authority"):
            node.client_certificate("ann")


def test_the_made_certificate_is_kept_with_the_data_and_its_key_is_for_nobody_else(tmp_path: Path) -> None:
    out = tmp_path / "ca.pem"
    data = tmp_path / "data"
    with Node(vbuckets=1, path=data, tls=TlsSettings(ca_out=out)) as node:
        first = node.ca_certificate
        context = trusting(node)
    assert out.read_text() == first
    kept = data / ".security"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    assert {file.name: stat.S_IMODE(file.stat().st_mode) for file in kept.iterdir()} == {
        "ca.key": 0o600,
        "ca.pem": 0o600,
        "server.key": 0o600,
        "server.pem": 0o600,
    }
    with Node(vbuckets=1, path=data, tls=True) as node:
        assert node.ca_certificate == first
        SocketPeer(node.tls_port, context).open().close()


def test_another_name_makes_another_certificate_of_the_same_authority(tmp_path: Path) -> None:
    with Node(vbuckets=1, path=tmp_path, tls=True) as node:
        first = node.ca_certificate
    with Node(vbuckets=1, path=tmp_path, tls=TlsSettings(names=("db.example",))) as node:
        assert node.ca_certificate == first
        raw = socket.create_connection(("127.0.0.1", node.tls_port), TIMEOUT_S)
        trusting(node).wrap_socket(raw, server_hostname="db.example").close()


@pytest.mark.parametrize("content", ["", "no certificate"])
def test_bad_files_are_reported(tmp_path: Path, content: str) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text(content)
    with pytest.raises(ConfigError, match="the node's certificate"):
        Node(vbuckets=1, tls=TlsSettings(certificate=bad, key=bad)).start()
    with pytest.raises(ConfigError, match="authority of client certificates"):
        Node(vbuckets=1, tls=TlsSettings(client_auth="optional", client_ca=bad)).start()


def test_a_certificate_whose_key_is_another_one_is_reported(tmp_path: Path) -> None:
    authority = Authority()
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.write_text(authority.server(("localhost",)).certificate)
    key.write_text(authority.server(("localhost",)).key)
    with pytest.raises(ConfigError, match="the node's certificate"):
        Node(vbuckets=1, tls=TlsSettings(certificate=certificate, key=key)).start()


def test_a_handshake_that_is_none_harms_nobody(node: Node) -> None:
    with socket.create_connection(("127.0.0.1", node.tls_port), TIMEOUT_S) as raw:
        raw.sendall(b"\x80\x1f" + bytes(22))  # somebody who takes the port for the other one
        while raw.recv(100):
            pass  # an alert, perhaps; then it is closed
    SocketPeer(node.tls_port, trusting(node)).open().close()


def test_a_dropped_tls_connection_leaves_nothing_behind(node: Node) -> None:
    assert node.engine is not None
    before = len(node.engine.sessions)
    wire = SocketPeer(node.tls_port, trusting(node)).open()
    wire.socket.shutdown(socket.SHUT_RDWR)
    wire.close()
    wait_until(lambda: node.engine is not None and len(node.engine.sessions) <= before, "the session stays")


# --------------------------------------------------------------------------------------------------- streams over TLS


@pytest.mark.slow
def test_a_large_history_streams_over_tls_and_a_slow_reader_gets_all_of_it(node: Node, tmp_path: Path) -> None:
    from dcpstream.client import Client, ClientOptions, KvClient, StreamOptions, TlsOptions

    trusted = tmp_path / "ca.pem"
    trusted.write_text(node.ca_certificate)
    access = {
        "connection_string": node.tls_connection_string,
        "username": "Administrator",
        "password": "password",
        "bucket": "default",
        "options": ClientOptions(tls=TlsOptions(trust=str(trusted))),
    }
    written = {f"history-{number}": b"%d-" % number + bytes([number % 251]) * 3000 for number in range(4000)}
    with KvClient(**access) as documents:  # type: ignore[arg-type]
        documents.set_many(written.items())
    pause = threading.Event()
    read: dict[str, bytes] = {}
    with Client(**access) as client:  # type: ignore[arg-type]
        for change in client.changes(StreamOptions(end="latest")):
            if change.key.startswith(b"history-"):
                read[change.key.decode()] = bytes(change.value or b"")
                if len(read) % 1000 == 0:
                    pause.wait(0.05)  # the node's buffers fill
    assert read == written
