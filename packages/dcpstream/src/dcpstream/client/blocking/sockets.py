"""Sockets of the blocking shell: a selector, and one non-blocking socket for each connection."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dcpstream.client.machine.connection.connection import NodeConnection
from dcpstream.client.machine.nodes.nodes import Nodes
from dcpstream.client.settings.tls import TlsOptions
from dcpstream.client.transport import cannot_connect, lost_by, make_context, server_name, tls_failure
from dcpstream.errors import ConnectionLost
from dcpstream.model import NodeAddress

SEND_BYTES_MAX = 256 * 1024
"""Bytes handed to one send call."""

GATHER_BYTES = 1024 * 1024
"""Bytes that are worth a read at once, see `dcpstream.client.machine.reader.gathering`."""

GATHER_SHARE = 4
"""A quarter of the flow-control window is worth a read, too: with more, the node would have to stop sending."""

AddressInfo = tuple[Any, ...]
"""As `socket.getaddrinfo` gives them."""


@dataclass(slots=True, eq=False)
class _Link:
    connection: NodeConnection
    socket: socket.socket
    others: list[AddressInfo]
    is_connected: bool = False
    is_secured: bool = False
    unsent: bytearray = field(default_factory=bytearray)
    events: int = 0


class Sockets:
    """Moves the bytes of all connections of some `Nodes`; one thread, no decisions.

    With TLS a socket is wrapped as soon as it is connected. The selector does not see bytes that OpenSSL has decrypted
    and still holds, so such connections are read again without waiting.

    Args:
        tls: how connections are secured, None for none.

    Raises:
        ConfigError: a certificate or key cannot be read.
    """

    def __init__(self, tls: TlsOptions | None = None) -> None:
        self._tls = tls
        self._context = make_context(tls) if tls is not None else None
        self._full: set[NodeConnection] = set()
        self._selector = selectors.DefaultSelector()
        self._links: dict[NodeConnection, _Link] = {}

    def sync(self, nodes: Nodes) -> list[tuple[NodeConnection, ConnectionLost]]:
        """Open and close sockets as `nodes` wants it; returns connections for which that failed at once."""
        for connection in nodes.to_disconnect():
            self._close(connection)
        failed: list[tuple[NodeConnection, ConnectionLost]] = []
        for connection in nodes.to_connect():
            try:
                infos = addresses_of(connection.address)
                self._links[connection] = link = _Link(connection, open_socket(infos[0]), infos[1:])
                self._watch(link, selectors.EVENT_WRITE)
            except (OSError, ValueError) as error:  # ValueError: a name that cannot be one
                failed.append((connection, cannot_connect(connection.address, error)))
        return failed

    def poll(
        self, timeout_s: float, gather_s: Callable[[], float] = lambda: 0.0
    ) -> Iterator[tuple[NodeConnection, ConnectionLost | None]]:
        """Send pending bytes, wait for bytes, read them into the connections' buffers.

        Args:
            timeout_s: seconds to wait for the first bytes.
            gather_s: gives the seconds to wait for more of them, once there are some. Not called without a time-out.

        Returns: (connection, None) if bytes were read, (connection, error) if it is lost.
        """
        for link in list(self._links.values()):
            if link.is_secured:
                error = self._flush(link)
                if error is not None:
                    yield link.connection, error
        full, self._full = self._full, set()
        found = self._selector.select(0.0 if full else timeout_s)
        if timeout_s and found and not full and (wait_s := gather_s()):
            found = self._gathered(wait_s)
        ready = {key.data.connection: events for key, events in found}
        for connection in full:
            ready[connection] = ready.get(connection, 0) | selectors.EVENT_READ
        for connection, events in ready.items():
            if connection not in self._links:
                continue
            link = self._links[connection]
            error = None
            if not link.is_secured:
                error = self._advance(link)
            elif events & selectors.EVENT_WRITE:
                error = self._flush(link)
            if error is None and link.is_secured and events & selectors.EVENT_READ:
                count, error = read_into(link.socket, connection)
                if isinstance(link.socket, ssl.SSLSocket) and error is None and link.socket.pending():
                    self._full.add(connection)
                if count:
                    yield connection, None
            if error is not None:
                yield connection, error

    def close(self) -> None:
        """Close all sockets."""
        for connection in list(self._links):
            self._close(connection)
        self._selector.close()

    def _gathered(self, wait_s: float) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for more bytes; returns what is ready then.

        The system wakes us when a socket has enough. It also makes room for them in the socket's buffer.
        """
        links = [link for link in self._links.values() if link.is_secured]
        for link in links:
            enough = min(GATHER_BYTES, link.connection.settings.buffer_bytes // GATHER_SHARE)
            link.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, enough)
        self._selector.select(wait_s)
        for link in links:
            link.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        return self._selector.select(0.0)

    def _watch(self, link: _Link, events: int) -> None:
        if link.events == events:
            return
        if link.events:
            self._selector.modify(link.socket, events, link)
        else:
            self._selector.register(link.socket, events, link)
        link.events = events

    def _close(self, connection: NodeConnection) -> None:
        link = self._links.pop(connection, None)
        self._full.discard(connection)
        if link is not None:
            if link.events:
                self._selector.unregister(link.socket)
            link.socket.close()
        connection.close()

    def _advance(self, link: _Link) -> ConnectionLost | None:
        """Take the next step of a socket that is not usable yet: the connection, or the TLS handshake."""
        if not link.is_connected:
            number = link.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if number:
                return self._try_next(link, OSError(number, os.strerror(number)))
            link.is_connected = True
            if self._context is not None and self._tls is not None:
                # Another object for the same descriptor; the old one no longer owns it.
                self._selector.unregister(link.socket)
                link.events = 0
                try:
                    link.socket = self._context.wrap_socket(
                        link.socket,
                        server_hostname=server_name(self._tls, link.connection.address),
                        do_handshake_on_connect=False,
                    )
                except (OSError, ValueError) as error:
                    # Lost at once, or a name that cannot be one.
                    return ConnectionLost(f"{link.connection.address}: {error}", cause=error)
        if isinstance(link.socket, ssl.SSLSocket):
            try:
                link.socket.do_handshake()
            except ssl.SSLWantReadError:
                self._watch(link, selectors.EVENT_READ)
                return None
            except ssl.SSLWantWriteError:
                self._watch(link, selectors.EVENT_WRITE)
                return None
            except OSError as error:
                return tls_failure(link.connection.address, error)
            self._full.add(link.connection)
        link.is_secured = True
        return self._flush(link)

    def _try_next(self, link: _Link, error: OSError) -> ConnectionLost | None:
        """A name may stand for several addresses (localhost: ::1 and 127.0.0.1); the node may listen on one only."""
        while link.others:
            try:
                fresh = open_socket(link.others.pop(0))
            except OSError as other:
                error = other
                continue
            self._selector.unregister(link.socket)
            link.socket.close()
            link.socket, link.events = fresh, 0
            self._watch(link, selectors.EVENT_WRITE)
            return None
        return cannot_connect(link.connection.address, error)

    def _flush(self, link: _Link) -> ConnectionLost | None:
        link.unsent += link.connection.data_to_send()
        try:
            while link.unsent:
                sent = link.socket.send(memoryview(link.unsent)[:SEND_BYTES_MAX])
                del link.unsent[:sent]
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError as error:
            return lost_by(link.connection.address, error)
        self._watch(link, selectors.EVENT_READ | (selectors.EVENT_WRITE if link.unsent else 0))
        return None


def addresses_of(address: NodeAddress) -> list[AddressInfo]:
    """The addresses of a node's name; raises OSError."""
    return list(socket.getaddrinfo(address.host, address.kv_port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP))


def open_socket(info: AddressInfo) -> socket.socket:
    """A socket that is being connected; raises OSError."""
    family, kind, protocol, _, where = info
    result = socket.socket(family, kind, protocol)
    try:
        result.setblocking(False)
        result.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(BlockingIOError):
            result.connect(where)
    except BaseException:
        result.close()
        raise
    return result


def read_into(source: socket.socket, connection: NodeConnection) -> tuple[int, ConnectionLost | None]:
    """Read the available bytes, until the connection's buffer is full: large portions are decoded faster.

    Returns: how many bytes, and the error if the connection has ended.
    """
    total = 0
    room = connection.get_buffer()
    try:
        while total < len(room):
            count = source.recv_into(room[total:])
            if not count:
                connection.buffer_updated(total)
                return total, ConnectionLost(f"{connection.address} closed the connection")
            total += count
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        pass
    except OSError as error:
        connection.buffer_updated(total)
        return total, lost_by(connection.address, error)
    connection.buffer_updated(total)
    return total, None
