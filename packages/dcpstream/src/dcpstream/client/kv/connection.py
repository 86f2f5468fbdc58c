"""One blocking connection of the key-value client: the handshake, requests out, answers in."""

from __future__ import annotations

import socket
import ssl
import sys

from dcpstream.client.kv.bulk import Answered, cut_answers, fault_in
from dcpstream.client.machine.connection.handshake import Handshake, login_is_over
from dcpstream.client.settings.tls import TlsOptions, check_for_alert, closed_at_once
from dcpstream.client.transport import cannot_connect, lost_by, server_name, tls_failure
from dcpstream.errors import ConnectionLost, ConnectTimeout, DeadConnection, RemoteProtocolError, WireError
from dcpstream.model import NodeAddress
from dcpstream.runtime import Clock
from dcpstream.wire import HEADER_BYTES, Feature, FrameReader, Opcode, Status
from dcpstream.wire.codes import code_name
from dcpstream.wire.status import status_error

ANSWER_TIMEOUT_S = 30.0
"""Seconds that a node may be silent while requests wait for answers."""

RECEIVE_BYTES = 64 * 1024
"""Most bytes of one read. The allocator maps and clears pages for each larger buffer."""

GATHER_BYTES = 16 * 1024
"""Most bytes that a read of answers waits for. Some servers write a few answers at a time, and waking up for each piece
costs more than the answers do."""

_CAN_GATHER = sys.platform == "linux"
"""True on Linux: a program that waits for a socket there wakes up once it has `SO_RCVLOWAT` bytes."""


class KvConnection:
    """One connection to a node.

    Args:
        address: the node.
        connect_timeout_s: limit for connecting and the handshakes.
        clock: for that limit.
        tls, context: how the connection is secured; None without TLS.

    Raises:
        ConnectTimeout, TlsError: no connection.
    """

    def __init__(
        self,
        address: NodeAddress,
        connect_timeout_s: float,
        clock: Clock,
        tls: TlsOptions | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.address = address
        self.has_collections = False
        self.is_unordered = False
        self.is_closed = False
        self.release = ""
        self._deadline = clock.monotonic() + connect_timeout_s
        self._clock = clock
        self._received = bytearray()
        try:
            self._socket = socket.create_connection((address.host, address.kv_port), timeout=connect_timeout_s)
        except (OSError, ValueError) as error:  # ValueError: a name that cannot be one
            raise cannot_connect(address, error) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._is_secured = tls is not None
        self._least = 1
        if tls is not None and context is not None:
            self._secure(tls, context)

    def _secure(self, tls: TlsOptions, context: ssl.SSLContext) -> None:
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=server_name(tls, self.address))
        except TimeoutError as error:
            self._socket.close()
            raise ConnectTimeout(f"{self.address} did not finish the TLS handshake in time", cause=error) from error
        except OSError as error:
            self._socket.close()
            raise tls_failure(self.address, error) from error

    def shake_hands(self, handshake: Handshake) -> None:
        """Do the handshake."""
        reader = FrameReader()
        has_received = False
        self.send(handshake.start())
        while not handshake.is_done:
            if self._clock.monotonic() >= self._deadline:
                raise ConnectTimeout(f"{self.address} did not let us in in time")
            try:
                data = self._receive()
            except DeadConnection as error:
                raise ConnectTimeout(f"{self.address} did not let us in in time", cause=error) from error
            except ConnectionLost as error:
                explained = closed_at_once(error, is_secured=self._is_secured)
                if has_received or type(error) is not ConnectionLost or explained is error:
                    raise
                raise explained from error
            has_received = True
            check_for_alert(self.address, data)
            try:
                reader.receive_data(data)
                frames = list(reader.frames())
            except WireError as error:
                raise RemoteProtocolError(
                    f"{self.address} does not speak this protocol; is it the data port? ({error})"
                ) from error
            for frame in frames:
                self.send(handshake.receive(frame))
        self.release = handshake.release
        self.has_collections = Feature.COLLECTIONS in handshake.granted
        self.is_unordered = Feature.UNORDERED_EXECUTION in handshake.granted
        self._socket.settimeout(ANSWER_TIMEOUT_S)

    def send(self, data: bytes) -> None:
        """Send all of it."""
        if not data:
            return
        try:
            self._socket.sendall(data)
        except TimeoutError as error:
            raise DeadConnection(f"{self.address} takes no more data", cause=error) from error
        except OSError as error:
            raise lost_by(self.address, error) from error

    def ask(self, request: bytes) -> Answered:
        """The answer to a request that must succeed; nothing else may be in flight."""
        answer = self.exchange(request)
        if answer.status != Status.SUCCESS:
            raise status_error(answer.status, opcode=request[1])
        return answer

    def exchange(self, request: bytes) -> Answered:
        """Send one request and read its answer."""
        self.send(request)
        answer = self.answers(1)[0]
        self.check(answer, request[1])
        self.check_login(answer)
        return answer

    def check_login(self, answer: Answered) -> None:
        """Close the connection if an answer says that the login is over; the next use of the pool logs in again.

        Raises:
            ConnectionLost: that is so.
        """
        if answer.status == Status.AUTH_STALE:
            self.close()
            raise login_is_over(self.address)

    def check(self, answer: Answered, opcode: int) -> None:
        """Refuse an answer to another request than the next one.

        Raises:
            RemoteProtocolError: it has another opcode.
        """
        if answer.opcode != opcode:
            raise RemoteProtocolError(
                f"{self.address} answered {code_name(Opcode, opcode)} with {code_name(Opcode, answer.opcode)}"
            )

    def answers(self, count: int) -> list[Answered]:
        """The next answers. They come in the order of the requests, unless the connection is unordered."""
        result: list[Answered] = []
        while True:
            found, used = cut_answers(self._received, count - len(result))
            del self._received[:used]
            result += found
            if len(result) == count:
                return result
            if fault := fault_in(self._received):
                raise RemoteProtocolError(f"{self.address} sent {fault}")
            # Each missing answer has at least a header.
            self._wake_at((count - len(result)) * HEADER_BYTES - len(self._received))
            self._received += self._receive()

    def pause(self, seconds: float) -> None:
        """Wait on the socket while nothing is expected."""
        self._socket.settimeout(seconds)
        try:
            # With TLS a socket cannot be peeked at; bytes that come unasked are kept for the next answer.
            data = self._socket.recv(RECEIVE_BYTES)
            if not data:
                raise ConnectionLost(f"{self.address} closed the connection")
            self._received += data
        except TimeoutError:
            pass
        finally:
            self._socket.settimeout(ANSWER_TIMEOUT_S)

    def close(self) -> None:
        """Close the socket."""
        self.is_closed = True
        self._socket.close()

    def _receive(self) -> bytes:
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except TimeoutError as error:
            raise DeadConnection(f"{self.address} did not answer in time", cause=error) from error
        except OSError as error:
            raise lost_by(self.address, error) from error
        if not data:
            raise ConnectionLost(f"{self.address} closed the connection")
        return data

    def _wake_at(self, least: int) -> None:
        """Have the next read wait for so many bytes, which are sure to come.

        A secured connection reads at once: bytes of answers may be in the TLS layer already.
        """
        least = max(1, min(least, GATHER_BYTES))
        if least != self._least and _CAN_GATHER and not self._is_secured:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)
            self._least = least
