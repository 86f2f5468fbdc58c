"""Connection strings, as the Couchbase SDKs take them: `couchbase://host1:11210,host2=mcd?network=external`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from urllib.parse import parse_qsl

from dcpstream.errors import ConfigError
from dcpstream.model import NodeAddress

DEFAULT_KV_PORT = 11210
"""The port of the data service without TLS."""

DEFAULT_TLS_PORT = 11207
"""The port of the data service with TLS."""

_KV_SUFFIXES = ("", "mcd", "kv", "cccp")
_OPTION = "connection_string"
_SEED = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[^\[\]:=/?,\s]+))(?::(?P<port>\d+))?(?:=(?P<kind>\w+))?\Z")


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """A parsed connection string.

    Attributes:
        seeds: the nodes to try, in the given order; their management port is 0.
        network: "default", "external" or another name of the cluster's alternate addresses; "auto" to choose by
            which address list the seeds are in.
        options: the other options of the string, as text.
        is_secure: whether the scheme is couchbases: with TLS.
        has_scheme, has_port: whether a scheme was given, and a port with any host; SRV records are looked for only
            with a scheme and without ports.
    """

    seeds: tuple[NodeAddress, ...]
    network: str = "auto"
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    is_secure: bool = False
    has_scheme: bool = True
    has_port: bool = False

    def __str__(self) -> str:
        """The string again, in its long form, without options that may be secret."""
        query = "" if self.network == "auto" else f"?network={self.network}"
        scheme = "couchbases" if self.is_secure else "couchbase"
        return f"{scheme}://" + ",".join(str(seed) for seed in self.seeds) + query


def parse(text: str) -> ConnectionString:
    """Parse a connection string.

    Args:
        text: `couchbase://host[:port][=mcd][,host…][?network=…&option=…]`, `couchbases://…` for TLS, or only
            `host[:port]`; the port is 11210, with TLS 11207, if it is left out, IPv6 addresses stand in brackets.

    Raises:
        ConfigError: not such a string, or one that asks for the management port.
    """
    scheme, separator, rest = text.strip().partition("://")
    if not separator:
        scheme, rest = "couchbase", scheme
    scheme = scheme.lower()
    if scheme in {"http", "https"}:
        raise _malformed(text, "it names the management port. Give the data port: couchbase://HOST:11210")
    if scheme not in {"couchbase", "couchbases"}:
        raise _malformed(text, "write couchbase[s]://HOST[:PORT][,HOST…][?OPTION=VALUE] or HOST[:PORT]")
    hosts, _, query = rest.partition("?")
    is_secure = scheme == "couchbases"
    found = tuple(
        _seed(part.strip(), text, is_secure=is_secure) for part in hosts.rstrip("/").split(",") if part.strip()
    )
    if not found:
        raise _malformed(text, "it names no host; for example couchbase://127.0.0.1:11210")
    options = dict(parse_qsl(query, keep_blank_values=True))
    network = options.pop("network", "auto") or "auto"
    return ConnectionString(
        seeds=tuple(seed for seed, _ in found),
        network=network,
        options=MappingProxyType(options),
        is_secure=is_secure,
        has_scheme=bool(separator),
        has_port=any(has_port for _, has_port in found),
    )


def _seed(part: str, text: str, *, is_secure: bool) -> tuple[NodeAddress, bool]:
    """A host, and whether its port was given."""
    match = _SEED.match(part)
    if match is None:
        raise _malformed(text, f"{part!r} is not HOST, HOST:PORT or [IPV6]:PORT")
    if (match["kind"] or "") not in _KV_SUFFIXES:
        raise _malformed(text, f"{part!r} is not a data port; only =mcd, =kv and =cccp are understood")
    port = int(match["port"] or (DEFAULT_TLS_PORT if is_secure else DEFAULT_KV_PORT))
    if not 0 < port < 65536:
        raise _malformed(text, f"the port of {part!r} must be 1 to 65535")
    return NodeAddress(match["v6"] or match["host"], port), match["port"] is not None


def _malformed(text: str, why: str) -> ConfigError:
    message = f"the connection string {text!r} cannot be used: {why}"
    return ConfigError(_OPTION, text, "couchbase[s]://HOST[:PORT]", message=message)
