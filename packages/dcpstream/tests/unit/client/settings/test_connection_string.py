"""Connection strings as people write them."""

from __future__ import annotations

import pytest

from dcpstream.client.settings.connection_string import parse
from dcpstream.errors import ConfigError
from tests.kit.cases import each_case


def test_text_form_parses_to_the_same() -> None:
    found = parse("couchbase://a:1,[::1]?network=default")
    assert parse(str(found)) == found
    secured = parse("couchbases://a:1")
    assert secured.is_secure
    assert str(secured) == "couchbases://a:1"


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
