"""Clients over TLS: against an embedded node behind a proxy, with certificates of the test's own."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dcpstream_node
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
from dcpstream.errors import (
    AccessDenied,
    AuthenticationFailed,
    ConfigError,
    ConnectionLost,
    ConnectTimeout,
    StatusError,
    TlsError,
)
from dcpstream.wire import Opcode
from dcpstream_node.shell.tls import TlsSettings
from lab.tools.patience import patient
from tests.kit.access import LOGIN
from tests.kit.fake_node import FakeNode, config
from tests.kit.tls import Authority, Identity, TlsServer

TIMEOUT_S = patient(5.0)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def identity(authority: Authority) -> Identity:
    return authority.issue("node.example")


@pytest.fixture(scope="module")
def node() -> Iterator[dcpstream_node.Node]:
    with dcpstream_node.Node(vbuckets=4, system_scope=False) as running:
        with KvClient(running.connection_string, **LOGIN) as kv:
            kv.set("doc", "{}")
        yield running


@pytest.fixture(scope="module")
def secured(node: dcpstream_node.Node, identity: Identity) -> Iterator[TlsServer]:
    with TlsServer(identity, node.port) as running:
        yield running


def arguments(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a client: user and password are its own, the others are options."""
    login = {name: value for name, value in given.items() if name in LOGIN}
    others = {name: value for name, value in given.items() if name not in LOGIN}
    return {**LOGIN, **login, "options": ClientOptions(**{"connect_timeout_s": TIMEOUT_S, **others})}


def blocking(connection_string: str, **options: Any) -> list[Change]:
    with Client(connection_string, **arguments(options)) as client:
        return list(client.changes(StreamOptions(end="latest")))


def asynchronous(connection_string: str, **options: Any) -> list[Change]:
    async def collect() -> list[Change]:
        async with AsyncClient(connection_string, **arguments(options)) as client:
            return [change async for change in client.changes(StreamOptions(end="latest"))]

    return asyncio.run(asyncio.wait_for(collect(), patient(30)))


def keys_of_changes(connection_string: str, **options: Any) -> set[str]:
    return {change.key.decode() for change in blocking(connection_string, **options)}


def keys_of_asynchronous_changes(connection_string: str, **options: Any) -> set[str]:
    return {change.key.decode() for change in asynchronous(connection_string, **options)}


def keys_of_documents(connection_string: str, **options: Any) -> set[str]:
    with KvClient(connection_string, **arguments(options)) as client:
        return {"doc"} if client.get("doc") is not None else set()


Shell = Callable[..., set[str]]
"""Reads a bucket; returns the keys that it finds."""


@pytest.fixture(scope="module", params=[keys_of_changes, keys_of_asynchronous_changes, keys_of_documents])
def shell(request: pytest.FixtureRequest) -> Shell:
    return request.param


@pytest.mark.slow
def test_changes_and_documents(secured: TlsServer, authority: Authority) -> None:
    tls = TlsOptions(trust=authority.path)
    values = {f"doc {number}": b"x" * 20_000 for number in range(200)}
    with KvClient(secured.connection_string, **LOGIN, options=ClientOptions(tls=tls)) as kv:
        kv.set_many(values.items())
        found = kv.get("doc 7")
        assert found is not None
        assert found.value == values["doc 7"]
    for read in (blocking, asynchronous):
        changes = read(secured.connection_string, tls=tls, sasl_mechanism="PLAIN")
        found_values = {change.key.decode(): change.value for change in changes}
        assert values.items() <= found_values.items()


@pytest.mark.slow
def test_options_may_stand_in_the_connection_string(secured: TlsServer, authority: Authority, shell: Shell) -> None:
    assert "doc" in shell(f"{secured.connection_string}?trust_certificate={authority.path}&sasl_mechanism=SCRAM-SHA256")


def test_trust_may_be_text(secured: TlsServer, authority: Authority, shell: Shell) -> None:
    assert "doc" in shell(
        secured.connection_string, tls=TlsOptions(trust=Path(authority.path).read_text(encoding="utf-8"))
    )


def test_a_certificate_that_nobody_vouches_for(secured: TlsServer, shell: Shell) -> None:
    with pytest.raises(TlsError, match=r"not trusted.*trust_certificate"):
        shell(secured.connection_string)


def test_a_certificate_of_another_authority(secured: TlsServer, tmp_path: Path, shell: Shell) -> None:
    other = Authority(tmp_path, "another")
    with pytest.raises(TlsError, match="not trusted"):
        shell(secured.connection_string, tls=TlsOptions(trust=other.path))


def test_a_certificate_for_another_name(node: dcpstream_node.Node, authority: Authority, shell: Shell) -> None:
    with TlsServer(authority.issue("elsewhere.example", address=None), node.port) as server:
        with pytest.raises(TlsError, match=r"for another name.*server_name"):
            shell(server.connection_string, tls=TlsOptions(trust=authority.path))
        shell(server.connection_string, tls=TlsOptions(trust=authority.path, server_name="elsewhere.example"))


def test_without_verification_it_says_so(secured: TlsServer, shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="dcpstream"):
        shell(f"{secured.connection_string}?tls_verify=none")
    assert "NOT verified" in caplog.text


@pytest.mark.slow
def test_tls_to_a_port_without(node: dcpstream_node.Node, shell: Shell) -> None:
    with pytest.raises((TlsError, ConnectTimeout), match="11207"):
        shell(f"couchbases://127.0.0.1:{node.port}", connect_timeout_s=1.0)


@pytest.mark.slow
def test_no_tls_to_a_port_with(secured: TlsServer, shell: Shell) -> None:
    with pytest.raises(ConnectionLost, match="couchbases://"):
        shell(f"couchbase://127.0.0.1:{secured.port}", connect_timeout_s=1.0)


def test_a_client_certificate_is_the_login(authority: Authority, identity: Identity) -> None:
    own = authority.issue("reader", password="secret of the key")
    fake = FakeNode()
    tls = TlsOptions(authority.path, own.certificate, own.key, "secret of the key")
    with TlsServer(identity, fake, client_authority=authority.path) as server:
        cluster_map = json.loads(config())
        cluster_map["nodesExt"][0]["services"] = {"kvSSL": server.port}
        fake.cluster_map = json.dumps(cluster_map).encode()
        options = ClientOptions(tls=tls, connect_timeout_s=TIMEOUT_S)
        with BucketReader(server.connection_string, bucket="default", options=options) as cluster:
            assert cluster.map.vbucket_count == 4
            assert [node.kv_port for node in cluster.map.nodes] == [server.port]
        assert server.subjects == ["reader"]
    assert not fake.asked(Opcode.SASL_AUTH)
    assert fake.asked(Opcode.SELECT_BUCKET)


def test_without_the_client_certificate_that_is_wanted(authority: Authority, identity: Identity, shell: Shell) -> None:
    with (
        TlsServer(identity, FakeNode(), client_authority=authority.path) as server,
        pytest.raises(TlsError, match="client certificate"),
    ):
        shell(server.connection_string, tls=TlsOptions(trust=authority.path))


def test_a_node_without_a_port_with_tls_in_the_map(authority: Authority, identity: Identity, shell: Shell) -> None:
    with (
        TlsServer(identity, FakeNode()) as server,
        pytest.raises(TlsError, match=r"no port with TLS for 127\.0\.0\.1"),
    ):
        shell(server.connection_string, tls=TlsOptions(trust=authority.path))


def test_tasks_of_spark(secured: TlsServer, authority: Authority) -> None:
    """Options travel to the executors; files are read there."""
    pytest.importorskip("pyspark", reason="the data source needs pyspark")
    from dcpstream_spark import pool
    from dcpstream_spark.options import OffsetSpec, SourceOptions
    from dcpstream_spark.source.coordinator import Coordinator
    from dcpstream_spark.source.reading import DcpPartition, read_partition

    given = {"connectionString": secured.connection_string, "username": "Administrator", "password": "password"}
    more = {"bucket": "default", "trustCertificate": authority.path, "readStable": "true", "numPartitions": "1"}
    options = pickle.loads(pickle.dumps(SourceOptions.parse({**given, **more})))
    with KvClient(secured.connection_string, **LOGIN, options=ClientOptions(tls=options.tls)) as kv:
        kv.set_many((f"of spark {number}", "{}") for number in range(10))
    coordinator = Coordinator(options, default_start=OffsetSpec("earliest"))
    planned = coordinator.ranges_between(*coordinator.batch())
    partitions = [DcpPartition(node, ranges) for node, ranges in coordinator.tasks_of(planned)]
    keys = [key for one in partitions for batch in read_partition(options, one) for key in batch["key"].to_pylist()]
    assert {f"of spark {number}" for number in range(10)} <= set(keys)
    coordinator.close()
    pool.close_all()


@pytest.mark.parametrize("what", ["missing", "no certificate", "wrong password"])
def test_files_that_cannot_be_used(authority: Authority, tmp_path: Path, what: str, shell: Shell) -> None:
    nothing = tmp_path / "nothing.pem"
    if what == "missing":
        tls = TlsOptions(trust=str(nothing))
    elif what == "no certificate":
        nothing.write_text("hello", encoding="utf-8")
        tls = TlsOptions(trust=str(nothing))
    else:
        own = authority.issue("somebody", password="right")
        tls = TlsOptions(authority.path, own.certificate, own.key, "wrong")
    login = {"username": "", "password": ""} if what == "wrong password" else {}
    with pytest.raises(ConfigError, match="PEM") as caught:
        shell("couchbases://127.0.0.1:9", tls=tls, **login)
    assert "wrong" not in str(caught.value).replace("wrong password", "")


# One node for each shell: a node delays refusals after ten failed logins from one address.
@pytest.fixture(scope="module")
def encrypted(shell: Shell, authority: Authority) -> Iterator[dcpstream_node.Node]:
    """A node that speaks TLS itself and takes certificates of our authority for its users'."""
    settings = TlsSettings(client_auth="optional", client_ca=authority.path)
    users = {
        "reader": {"password": "unused", "roles": ["admin"]},
        "ldap": {"password": "secret", "roles": ["admin"], "domain": "external"},
    }
    with dcpstream_node.Node(vbuckets=4, tls=settings, users=users, system_scope=False) as running:
        with KvClient(running.connection_string, **LOGIN) as kv:
            kv.set("doc", "{}")
        yield running


@pytest.mark.slow
def test_a_node_with_tls(encrypted: dcpstream_node.Node, shell: Shell) -> None:
    assert "doc" in shell(
        f"couchbases://127.0.0.1:{encrypted.tls_port}", tls=TlsOptions(trust=encrypted.ca_certificate)
    )
    assert "doc" in shell(
        f"couchbases://localhost:{encrypted.tls_port}", tls=TlsOptions(trust=encrypted.ca_certificate)
    )


def test_a_user_whose_password_another_service_has(encrypted: dcpstream_node.Node, shell: Shell) -> None:
    """SCRAM is listed and refused; the password is sent over TLS alone, to a node whose certificate was checked."""
    user = {"username": "ldap", "password": "secret"}
    secured = f"couchbases://127.0.0.1:{encrypted.tls_port}"
    trusted = TlsOptions(trust=encrypted.ca_certificate)
    assert "doc" in shell(secured, tls=trusted, **user)
    assert "doc" in shell(secured, tls=TlsOptions(verify=False), sasl_mechanism="PLAIN", **user)
    for string, tls in ((encrypted.connection_string, None), (secured, TlsOptions(verify=False))):
        with pytest.raises(AuthenticationFailed, match=r"SCRAM-SHA512\)"):
            shell(string, tls=tls, **user)
    with pytest.raises(AuthenticationFailed, match="SCRAM-SHA512 and PLAIN"):
        shell(secured, tls=trusted, username="ldap", password="wrong")


def test_a_node_that_knows_users_by_certificates(
    encrypted: dcpstream_node.Node, authority: Authority, shell: Shell
) -> None:
    own = authority.issue("reader")
    tls = TlsOptions(encrypted.ca_certificate, own.certificate, own.key)
    assert "doc" in shell(f"couchbases://127.0.0.1:{encrypted.tls_port}", tls=tls, username="", password="")


def test_a_certificate_of_nobody(encrypted: dcpstream_node.Node, authority: Authority, shell: Shell) -> None:
    own = authority.issue("stranger")
    tls = TlsOptions(encrypted.ca_certificate, own.certificate, own.key)
    with pytest.raises((AccessDenied, AuthenticationFailed, TlsError, StatusError), match=r"certificate|stranger"):
        shell(f"couchbases://127.0.0.1:{encrypted.tls_port}", tls=tls, username="", password="")
