"""Bootstrap by DNS: the SRV records of a cluster's name, `_couchbase._tcp.NAME` or `_couchbases._tcp.NAME`.

Done only where the SDKs do it: the connection string has a scheme and one host name, without a port. A name without
such records, or a resolver that does not answer in time, leaves the name itself as the seed.

Source: Couchbase SDK RFC 0011 (connection string), section on DNS SRV.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from dcpstream.client.settings.connection_string import ConnectionString
from dcpstream.model import NodeAddress

logger = logging.getLogger(__name__)

SRV_TIMEOUT_S = 2.0
"""Longest wait for the answer: a working resolver needs milliseconds, and the name itself is tried after it."""

MAX_RECORDS = 64
"""Records that are used at most: that many seeds are tried to find a map."""

Lookup = Callable[[str, float], Sequence[tuple[int, int, str, int]]]
"""From a record's name and a time-out in seconds: (priority, weight, host, port) of each record."""


def wants_srv(parsed: ConnectionString) -> bool:
    """Whether the string's host may be a name with SRV records."""
    if not parsed.has_scheme or len(parsed.seeds) != 1 or parsed.has_port:
        return False
    if parsed.options.get("enable_dns_srv", "true").lower() in {"false", "off", "0"}:
        return False
    return not _is_address(parsed.seeds[0].host)


def resolve_seeds(parsed: ConnectionString, lookup: Lookup | None = None) -> tuple[NodeAddress, ...]:
    """The seeds to begin with: those of the SRV records, else those of the string. Blocks for `SRV_TIMEOUT_S` at most.

    Args:
        parsed: the connection string.
        lookup: asks the resolver; the system's by dnspython if None.
    """
    if not wants_srv(parsed):
        return parsed.seeds
    name = f"_{'couchbases' if parsed.is_secure else 'couchbase'}._tcp.{parsed.seeds[0].host}"
    try:
        records = (lookup or _dns_lookup)(name, SRV_TIMEOUT_S)
    except Exception as error:  # noqa: BLE001 - whatever a resolver does, the name itself may still work
        logger.debug("no SRV records of %s: %r", name, error)
        return parsed.seeds
    found = sorted(records, key=lambda record: (record[0], -record[1], record[2], record[3]))[:MAX_RECORDS]
    seeds = tuple(
        replace(parsed.seeds[0], host=host.rstrip("."), kv_port=port) for _, _, host, port in found if host.rstrip(".")
    )
    return seeds or parsed.seeds


def _is_address(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _dns_lookup(name: str, timeout_s: float) -> list[tuple[int, int, str, int]]:
    import dns.resolver

    answer = dns.resolver.resolve(name, "SRV", lifetime=timeout_s)
    return [(record.priority, record.weight, record.target.to_text(), record.port) for record in answer]
