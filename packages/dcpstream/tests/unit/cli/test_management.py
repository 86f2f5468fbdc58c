"""Messages about a management port that cannot be used."""

from __future__ import annotations

import pytest

import dcpstream_node
from dcpstream.cli.management import Management
from dcpstream.errors import AuthenticationFailed, ConfigError, ConnectionLost, TlsError


def asked(url: str, ca_file: str | None = None) -> object:
    return Management(url, "Administrator", "password", ca_file).get("/pools/default/buckets")


def test_each_wrong_port_is_reported_in_a_sentence(tmp_path: object) -> None:
    with dcpstream_node.Node(vbuckets=1, tls=True) as node:
        place = f"127.0.0.1:{node.mgmt_port}"
        secured = f"https://127.0.0.1:{node.mgmt_tls_port}"
        assert asked(place)
        with pytest.raises(TlsError, match=f"https://{place} does not speak TLS: is this the port with TLS"):
            asked(f"https://{place}")
        with pytest.raises(ConnectionLost, match="does not answer in HTTP: is this the management port"):
            asked(secured.replace("https", "http"))
        with pytest.raises(ConnectionLost, match="does not answer in HTTP"):
            asked(f"http://127.0.0.1:{node.port}")
        with pytest.raises(TlsError, match="is not trusted: self-signed certificate in certificate chain"):
            asked(secured)
        with pytest.raises(ConfigError, match="--trust: /no/file cannot be read: No such file"):
            asked(secured, "/no/file")
        with pytest.raises(AuthenticationFailed, match="check --user and --password"):
            Management(place, "Administrator", "wrong").get("/pools/default/buckets")
    with pytest.raises(ConnectionLost, match="cannot be reached: Connection refused"):
        asked(place)
    with pytest.raises(ConfigError, match="--cluster cannot be 'ftp://x'"):
        asked("ftp://x")
