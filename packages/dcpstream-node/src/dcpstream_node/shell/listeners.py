"""Addresses to listen on, and listening sockets."""

from __future__ import annotations

import errno
import ipaddress
import socket

from dcpstream.errors import ConfigError


def is_loopback(host: str) -> bool:
    """Whether an address is only reachable from this machine."""
    if host in ("localhost", ""):
        return host == "localhost"
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_unspecified(host: str) -> bool:
    """Whether an address stands for all of this machine's."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def listen(host: str, port: int, option: str) -> socket.socket:
    """A listening socket.

    Raises:
        ConfigError: the port is taken or not allowed, or the address is not one of this machine's.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise ConfigError("host", host, "a name or address of this machine") from error
    # With the protocol: asyncio sets TCP_NODELAY only on sockets that name it. Without TCP_NODELAY, the second of two
    # small messages waits for the acknowledgement of the first one, which a client delays by 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError("host", host, "a name or address of this machine") from error
        why = "is already in use" if error.errno == errno.EADDRINUSE else f"cannot be opened: {error.strerror}"
        name = "--" + option.replace("_", "-")
        raise ConfigError(
            option,
            port,
            "a free port, or 0 for any",
            message=f"port {port} of {host} {why}. Choose another one with {option} (on the command line {name}), or 0 "
            "to let the system choose",
        ) from error
    return listener
