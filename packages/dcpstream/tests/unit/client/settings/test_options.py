"""Options for the address, the user and the security."""

from __future__ import annotations

from typing import Any

import pytest

from dcpstream.client.settings.client_options import ClientOptions
from dcpstream.client.settings.options import access
from dcpstream.client.settings.tls import TlsOptions
from dcpstream.errors import ConfigError
from tests.kit.cases import each_case

LOGIN: dict[str, Any] = {"username": "u", "password": "p", "bucket": "b"}
NOBODY: dict[str, Any] = {"username": "", "password": "", "bucket": "b"}
PAIR = TlsOptions(certificate="own.pem", key="own.key")


@each_case(
    ("text", "options", "option"),
    [
        ("couchbase://a", {**LOGIN, "options": ClientOptions(tls=TlsOptions())}, "tls"),
        ("couchbase://a?tls_verify=none", LOGIN, "tls_verify"),
        ("couchbases://a?tls_verify=maybe", LOGIN, "tls_verify"),
        ("couchbase://a", {**LOGIN, "options": ClientOptions(sasl_mechanism="PLAIN")}, "sasl_mechanism"),
        ("couchbases://a?sasl_mechanism=GSSAPI", LOGIN, "sasl_mechanism"),
        ("couchbases://a", {**LOGIN, "options": ClientOptions(tls=PAIR)}, "username"),
        ("couchbases://a", {**NOBODY, "options": ClientOptions(tls=PAIR, sasl_mechanism="PLAIN")}, "username"),
        ("couchbases://a", NOBODY, "username"),
    ],
)
def test_what_does_not_go_together(text: str, options: dict[str, Any], option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        access(text, **options)
    assert caught.value.option == option


def test_no_secret_in_texts() -> None:
    tls = TlsOptions(certificate="c", key="k", key_password="secret word")
    given = access("couchbases://a", **NOBODY, options=ClientOptions(tls=tls))
    assert "secret word" not in repr(given)
    assert "hidden" not in repr(access("couchbase://a", username="u", password="hidden", bucket="b"))
