"""Connection strings as people write them."""

from __future__ import annotations

import pytest

from dcpstream.client.settings.connection_string import parse
from dcpstream.errors import ConfigError
from dcpstream.model import NodeAddress
from tests.kit.cases import each_case


@each_case(
    ("text", "seeds"),
    [
        ("couchbase://127.0.0.1", [("127.0.0.1", 11210)]),
        ("couchbase://localhost:12000", [("localhost", 12000)]),
        ("localhost:12000", [("localhost", 12000)]),
        ("db.example", [("db.example", 11210)]),
        ("couchbase://a:1,b:2=mcd, c=kv", [("a", 1), ("b", 2), ("c", 11210)]),
        ("couchbase://[::1]:5,[fe80::1]", [("::1", 5), ("fe80::1", 11210)]),
        ("COUCHBASE://a/", [("a", 11210)]),
        ("a:7=cccp", [("a", 7)]),
        ("couchbases://a,b:5", [("a", 11207), ("b", 5)]),
    ],
)
def test_seeds(text: str, seeds: list[tuple[str, int]]) -> None:
    assert parse(text).seeds == tuple(NodeAddress(host, port) for host, port in seeds)


def test_options() -> None:
    found = parse("couchbase://a?network=external&enable_dns_srv=false")
    assert found.network == "external"
    assert dict(found.options) == {"enable_dns_srv": "false"}
    assert parse("couchbase://a").network == "auto"


def test_text_form_parses_to_the_same() -> None:
    found = parse("couchbase://a:1,[::1]?network=default")
    assert parse(str(found)) == found
    secured = parse("couchbases://a:1")
    assert secured.is_secure
    assert str(secured) == "couchbases://a:1"


def test_what_the_search_for_srv_records_must_know() -> None:
    assert parse("couchbase://a").has_scheme
    assert not parse("couchbase://a").has_port
    assert parse("couchbase://a,b:1").has_port
    assert not parse("a").has_scheme


@each_case(
    ("text", "hint"),
    [
        ("http://a:8091", "management port"),
        ("a:8091=http", "not a data port"),
        ("ftp://a", "HOST"),
        ("couchbase://", "no host"),
        ("", "no host"),
        ("a:0", "1 to 65535"),
        ("a:99999", "1 to 65535"),
        ("a:b", "not HOST"),
        ("::1", "not HOST"),
    ],
)
def test_what_is_no_connection_string(text: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint) as caught:
        parse(text)
    assert caught.value.option == "connection_string"
    assert str(caught.value).startswith(f"the connection string {text!r} cannot be used: ")
