"""The container without Docker: the calls that tests written for Testcontainers make."""

from __future__ import annotations

import enum

import pytest

from dcpstream.client.kv.client import KvClient
from dcpstream.errors import ConfigError, DcpstreamError
from dcpstream_node.testing import BucketDefinition, CouchbaseContainer


class Service(enum.Enum):
    KV = "kv"
    QUERY = "n1ql"


def test_it_serves_the_buckets_that_were_named_to_the_user_that_was_named() -> None:
    definition = BucketDefinition("shop").with_quota(200).with_flush_enabled()
    container = CouchbaseContainer("couchbase/server:7.6.2").with_bucket(definition).with_bucket("other")
    with container.with_credentials("me", "secret").with_enabled_services(Service.KV, "kv") as couchbase:
        assert couchbase.get_username() == couchbase.username == "me"
        assert couchbase.get_password() == couchbase.password == "secret"
        for bucket in (definition.get_name(), "other"):
            with KvClient(couchbase.get_connection_string(), "me", "secret", bucket) as kv:
                kv.set("k", b"{}")
                assert kv.get("k").value == b"{}"
        assert couchbase.node.engine is not None
        settings = couchbase.node.engine.buckets["shop"].settings
        assert settings.flush_enabled
        assert settings.ram_quota_bytes == 200 * 1024 * 1024
        kv_port, mgmt_port = couchbase.get_bootstrap_carrier_direct_port(), couchbase.get_bootstrap_http_direct_port()
        assert (couchbase.get_exposed_port(11210), couchbase.get_exposed_port(8091)) == (kv_port, mgmt_port)
        assert couchbase.get_connection_string() == f"couchbase://{couchbase.get_container_host_ip()}:{kv_port}"
        assert couchbase.get_host() == "127.0.0.1"
        with pytest.raises(ConfigError, match="8093"):
            couchbase.get_exposed_port(8093)
        with pytest.raises(DcpstreamError, match="before it is started"):
            couchbase.with_bucket("late")
    assert not container.is_running


def test_it_may_be_started_and_stopped_again_and_forgets() -> None:
    container = CouchbaseContainer(vbuckets=4)
    container.stop()
    for _ in range(2):
        assert container.start() is container.start()
        with KvClient(container.get_connection_string(), "Administrator", "password", "default") as kv:
            assert kv.get("k") is None
            kv.set("k", b"1")
        container.stop()


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="query"):
        CouchbaseContainer().with_enabled_services(Service.KV, Service.QUERY)
    with pytest.raises(DcpstreamError, match="does not run"):
        CouchbaseContainer().get_connection_string()
