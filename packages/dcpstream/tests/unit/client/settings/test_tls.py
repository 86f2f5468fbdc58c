"""Messages when a TLS handshake fails, and the demands of a context; whole connections are in tests/behaviour."""

from __future__ import annotations

import pickle
import ssl

import pytest

from dcpstream.client.settings.tls import MAX_PEM_BYTES, TlsOptions, closed_at_once
from dcpstream.client.transport import make_context, tls_failure
from dcpstream.errors import ConfigError, ConnectionLost, TlsError
from dcpstream.model import NodeAddress
from tests.kit.cases import each_case

ADDRESS = NodeAddress("node.example", 11207)


def ssl_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}] something")
    error.reason = reason
    return error


@each_case(
    ("reason", "hint"),
    [
        ("WRONG_VERSION_NUMBER", "does not speak TLS"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "client certificate"),
        ("SSLV3_ALERT_BAD_CERTIFICATE", "client certificate"),
    ],
)
def test_failures_that_no_other_attempt_can_help(reason: str, hint: str) -> None:
    assert hint in str(error := tls_failure(ADDRESS, ssl_error(reason)))
    assert isinstance(error, TlsError)


def test_the_error_of_an_expired_certificate_names_no_other_authority() -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "certificate has expired"
    told = tls_failure(ADDRESS, error)
    assert isinstance(told, TlsError)
    assert "has expired: the node needs a new one" in str(told)
    assert "trust_certificate" not in str(told)


def test_a_port_without_tls_that_closes_is_reported_without_the_words_of_the_library() -> None:
    told = str(tls_failure(ADDRESS, ssl_error("UNEXPECTED_EOF_WHILE_READING")))
    assert "node.example:11207 broke off the TLS handshake. The port with TLS (11207) is another one" in told
    assert "SSL" not in told


def test_files_of_tls_that_cannot_be_read_are_reported_in_words() -> None:
    with pytest.raises(ConfigError, match=r"certificate /no/ca\.pem cannot be read: No such file"):
        make_context(TlsOptions(trust="/no/ca.pem"))
    with pytest.raises(ConfigError, match=r"/no/me\.pem with the key /no/key\.pem cannot be used: No such file"):
        make_context(TlsOptions(certificate="/no/me.pem", key="/no/key.pem"))


def test_what_a_connection_that_ended_at_once_may_mean() -> None:
    closed = ConnectionLost("node.example:11207 closed the connection")
    assert "couchbases://" in str(closed_at_once(closed, is_secured=False))
    assert "client certificate" in str(closed_at_once(closed, is_secured=True))
    cut = tls_failure(ADDRESS, ConnectionResetError(104, "Connection reset by peer"))
    assert isinstance(cut, ConnectionLost)
    assert closed_at_once(cut, is_secured=True) is cut


def test_options_travel() -> None:
    options = TlsOptions(trust="ca.pem", certificate="c", key="k", key_password="p")
    assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(ConfigError, match="trust_certificate"):
        TlsOptions(trust="x" * (MAX_PEM_BYTES + 1))
