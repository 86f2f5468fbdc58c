"""The names at which a browser may reach a server: its addresses, and the names that it has for certain.

A page of another site can have its own name point to the server's address after it was loaded (DNS rebinding). The
browser then counts the server as that site, and the page reads its answers. Such a request has the foreign name in its
header Host, so a server that knows its names can refuse it. An address cannot be pointed elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

_LOCAL = "localhost"


def is_own_host(header: str, names: Iterable[str]) -> bool:
    """Whether a header Host names an address, localhost, or one of the names; browsers always send one.

    Args:
        header: with or without a port; of IPv6 addresses with brackets.
        names: in any case, without a port.
    """
    host = header.strip().lower()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    host = host.rstrip(".")
    if not host or host == _LOCAL or host.endswith(f".{_LOCAL}") or host in {name.lower() for name in names}:
        return True
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
