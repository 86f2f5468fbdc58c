"""Limits of clients: each one reached over real sockets, and others who are not harmed by it."""

from __future__ import annotations

import base64
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from dcpstream.wire import HEADER_BYTES, MAX_FRAME_BYTES_BEFORE_AUTH, Magic, Opcode, Status, encode_request
from dcpstream_node import Node
from dcpstream_node.shell.limits import Limits
from dcpstream_node.shell.server import KvServer
from tests.kit.cases import each_case
from tests.kit.peer import SocketPeer
from tests.kit.rest import ask
from tests.kit.tls import trusting
from tests.kit.waiting import TIMEOUT_S, wait_until

MIB = 1024 * 1024
USERS = {"ann": {"password": "hunter22", "roles": ["data_reader[default]", "data_writer[default]"]}}


@contextmanager
def serving(tls: bool | None = None, **limits: Any) -> Iterator[Node]:
    with Node(vbuckets=4, users=USERS, tls=tls, limits=Limits(**limits)) as node:
        yield node


def header(opcode: int, body: int, key: int = 0, extras: int = 0) -> bytes:
    """The header of a frame whose body may never come."""
    return bytes((Magic.REQUEST, opcode)) + key.to_bytes(2) + bytes((extras, 0, 0, 0)) + body.to_bytes(4) + bytes(12)


# --------------------------------------------------------------------------------------------------------- how many


def test_connections_are_limited_and_those_that_are_there_go_on() -> None:
    with serving(connections=3) as node, ExitStack() as stack:
        wires = [stack.enter_context(SocketPeer(node.port).open()) for _ in range(3)]
        with SocketPeer(node.port) as fourth:
            assert fourth.is_closed()
        assert [wire.set("k", b"1").status for wire in wires] == [0, 0, 0]
        wires[0].close()
        wait_until(lambda: node.engine is not None and len(node.engine.sessions) == 2, "it is not forgotten")
        SocketPeer(node.port).open().close()


def test_connections_that_have_not_logged_in_are_limited() -> None:
    with serving(connections_before_login=2) as node, ExitStack() as stack:
        wires = [stack.enter_context(SocketPeer(node.port)) for _ in range(2)]
        for wire in wires:
            wire.hello()
        third = stack.enter_context(SocketPeer(node.port))
        third.hello()
        assert wires[0].is_closed(), "the oldest"
        assert wires[1].plain("Administrator", "password") == 0
        stack.enter_context(SocketPeer(node.port)).hello()
        third.hello()
        assert len(server_of(node)._strangers) == 2


def test_who_never_logs_in_keeps_nobody_out() -> None:
    with serving(connections_before_login=10) as node, ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(SocketPeer(node.port))
        good = [stack.enter_context(SocketPeer(node.port).open()) for _ in range(5)]
        for _ in range(30):
            stack.enter_context(SocketPeer(node.port))
        assert [wire.set("k", b"1").status for wire in good] == [0] * 5
        wait_until(lambda: len(server_of(node).protocols) <= 15, "those that only connected stay")


def server_of(node: Node) -> KvServer:
    assert node._server is not None
    return node._server


def test_connections_of_one_user_are_limited() -> None:
    with serving(connections_per_user=2) as node, ExitStack() as stack:
        wires = [stack.enter_context(SocketPeer(node.port).open("ann", "hunter22")) for _ in range(2)]
        with SocketPeer(node.port) as third:
            third.hello()
            third.plain("ann", "hunter22")
            assert third.is_closed()
        stack.enter_context(SocketPeer(node.port).open())
        wires.pop().close()
        wait_until(lambda: node._server is not None and node._server._by_user["ann"] == 1, "it is not forgotten")
        stack.enter_context(SocketPeer(node.port).open("ann", "hunter22"))


def test_frames_before_the_login_are_small() -> None:
    with serving() as node, SocketPeer(node.port) as wire:
        wire.socket.sendall(header(Opcode.SASL_AUTH, MAX_FRAME_BYTES_BEFORE_AUTH - HEADER_BYTES + 1, key=5))
        assert wire.is_closed()


# --------------------------------------------------------------------------------------------------------- how long


def test_who_does_not_log_in_is_closed() -> None:
    with serving(login_s=0.2) as node, SocketPeer(node.port) as wire, SocketPeer(node.port).open() as good:
        wire.hello()
        assert wire.is_closed()
        assert good.set("k", b"1").status == Status.SUCCESS


def test_who_does_not_finish_a_handshake_is_closed() -> None:
    with serving(tls=True, login_s=0.2) as node:
        with socket.create_connection(("127.0.0.1", node.tls_port), TIMEOUT_S) as silent:
            assert silent.recv(1) == b""
        SocketPeer(node.tls_port, trusting(node)).open().close()


def test_encrypted_connections_are_limited_whether_their_handshake_is_done_or_not() -> None:
    with serving(tls=True, tls_connections=2) as node, ExitStack() as stack:
        context = trusting(node)
        good = stack.enter_context(SocketPeer(node.tls_port, context).open())
        silent = stack.enter_context(socket.create_connection(("127.0.0.1", node.tls_port), TIMEOUT_S))
        second = stack.enter_context(SocketPeer(node.tls_port, context).open())
        assert silent.recv(1) == b"", "who does its handshake takes the place of who does not"
        with socket.create_connection(("127.0.0.1", node.tls_port), TIMEOUT_S) as third:
            assert third.recv(1) == b""
        assert [wire.set("k", b"1").status for wire in (good, second)] == [0, 0]


@each_case("kind", ["silent", "trickling"])
def test_a_frame_that_comes_too_slowly_is_closed(kind: str) -> None:
    with serving(frame_s=0.4) as node, SocketPeer(node.port).open() as slow, SocketPeer(node.port).open() as good:
        slow.socket.sendall(header(Opcode.SET, 100_000, key=2, extras=8))
        if kind == "trickling":
            slow.socket.settimeout(0.02)
            for _ in range(500):
                try:
                    slow.socket.sendall(b"x")
                    if not slow.socket.recv(1):
                        break
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
            else:
                pytest.fail("it was never closed")
        else:
            assert slow.is_closed()
        assert good.set("k", b"1").status == Status.SUCCESS


@pytest.mark.slow
def test_a_large_frame_that_comes_steadily_is_taken() -> None:
    with serving(frame_s=0.3) as node, SocketPeer(node.port).open() as wire:
        value = b"v" * (2 * MIB)
        data = encode_request(Opcode.SET, key=b"\0k", value=value, extras=bytes(8))
        pause = threading.Event()
        for at in range(0, len(data), len(data) // 20):
            wire.socket.sendall(data[at : at + len(data) // 20])
            pause.wait(0.05)  # a second in all, three times the limit
        answer = wire.read()
        assert answer is not None
        assert answer.status == Status.SUCCESS
        assert wire.get("k").value == value


def test_an_idle_connection_is_closed_unless_its_user_may_idle() -> None:
    with (
        serving(idle_s=0.3) as node,
        SocketPeer(node.port).open("ann", "hunter22") as idle,
        SocketPeer(node.port).open() as admin,
    ):
        assert idle.is_closed()
        assert admin.get("k").status == Status.KEY_ENOENT


def test_a_client_that_takes_no_answers_is_dropped() -> None:
    with (
        serving(stalled_s=0.4) as node,
        SocketPeer(node.port).open() as good,
        SocketPeer(node.port, small=True).open() as full,
    ):
        assert good.set("k", b"v" * MIB).status == Status.SUCCESS
        full.socket.sendall(encode_request(Opcode.GET, key=b"\0k") * 60)
        wait_until(lambda: node.engine is not None and len(node.engine.sessions) == 1, "it is still there")
        assert good.get("k").status == Status.SUCCESS


# --------------------------------------------------------------------------------------------------------- how much


def test_unfinished_requests_of_all_together_have_a_bound() -> None:
    with serving(buffered_bytes=8 * MIB) as node, SocketPeer(node.port).open() as good, ExitStack() as stack:
        server = node._server
        assert server is not None
        most = 0
        for _ in range(12):
            wire = stack.enter_context(SocketPeer(node.port).open())
            try:
                wire.socket.sendall(header(Opcode.SET, 20_000_000, key=2, extras=8) + bytes(2 * MIB))
            except ConnectionError:
                continue
            assert good.set("k", b"1").status == Status.SUCCESS
            most = max(most, server.memory.held_bytes)
        assert most <= 8 * MIB + 4 * MIB
        wait_until(lambda: server.memory.held_bytes <= 8 * MIB, "it holds too much")
        assert len(server.protocols) < 13, "some were dropped"


def test_answers_that_nobody_takes_have_a_bound_and_others_go_on() -> None:
    budget = 16 * MIB
    with serving(buffered_bytes=budget) as node, SocketPeer(node.port).open() as good, ExitStack() as stack:
        server = node._server
        assert server is not None
        assert good.set("k", b"v" * MIB).status == Status.SUCCESS
        most = 0
        for _ in range(40):
            wire = stack.enter_context(SocketPeer(node.port, small=True).open())
            wire.socket.sendall(encode_request(Opcode.GET, key=b"\0k") * 20)
            assert good.get("k").status == Status.SUCCESS
            waiting = sum(protocol.waiting_bytes for protocol in list(server.protocols.values()))
            most = max(most, waiting)
        assert most <= budget + 8 * MIB
        assert server.memory.is_short
        assert good.set("k", b"1").status == Status.SUCCESS
    # and when they are gone everybody gets as much as before
    with serving(buffered_bytes=budget) as node, SocketPeer(node.port).open() as good:
        assert good.set("k", b"v" * MIB).status == Status.SUCCESS
        with ExitStack() as stack:
            for _ in range(12):
                wire = stack.enter_context(SocketPeer(node.port, small=True).open())
                wire.socket.sendall(encode_request(Opcode.GET, key=b"\0k") * 20)
            wait_until(lambda: node._server is not None and node._server.memory.is_short, "memory is not short")
        wait_until(lambda: node._server is not None and not node._server.memory.is_short, "memory stays short")
        assert good.get("k").status == Status.SUCCESS


def test_a_reached_limit_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), serving(connections=1) as node, SocketPeer(node.port).open():
        for _ in range(20):
            with SocketPeer(node.port) as wire:
                assert wire.is_closed()
        lines = [record.getMessage() for record in caplog.records if "limit connections" in record.getMessage()]
        assert len(lines) == 1
    assert caplog.records[-1].getMessage() == "limit connections: 19 more since the last line"


# ------------------------------------------------------------------------------------------------------------- HTTP


def http(node: Node, path: str) -> socket.socket:
    """A connection on which a page has begun to be answered."""
    token = base64.b64encode(b"Administrator:password")
    connection = socket.create_connection(("127.0.0.1", node.mgmt_port), TIMEOUT_S)
    connection.sendall(b"GET %b HTTP/1.1\r\nHost: x\r\nAuthorization: Basic %b\r\n\r\n" % (path.encode(), token))
    return connection


def is_refused(connection: socket.socket) -> bool:
    try:
        return connection.recv(12) == b""
    except ConnectionError:
        return True


def test_connections_to_the_management_port_are_limited() -> None:
    stream = "/pools/default/bs/default"
    with serving(http_connections=2) as node, ExitStack() as stack:
        idle = stack.enter_context(http(node, "/pools"))
        assert idle.recv(12) == b"HTTP/1.1 200"
        for _ in range(2):  # the second takes the place of the one that is idle
            assert stack.enter_context(http(node, stream)).recv(12) == b"HTTP/1.1 200"
        while not is_refused(idle):
            pass
        assert is_refused(stack.enter_context(http(node, "/pools")))


@each_case("start", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nX-"])
def test_a_request_whose_header_does_not_come_is_closed(start: bytes) -> None:
    with serving(http_header_s=0.3) as node:
        with socket.create_connection(("127.0.0.1", node.mgmt_port), TIMEOUT_S) as slow:
            slow.sendall(start)
            try:
                while slow.recv(4096):
                    pass
            except ConnectionError:
                pass
        assert ask(node, "GET", "/pools").status == 200


def test_a_request_whose_body_does_not_come_is_refused() -> None:
    token = base64.b64encode(b"Administrator:password").decode()
    with serving(http_body_s=0.3) as node, socket.create_connection(("127.0.0.1", node.mgmt_port), TIMEOUT_S) as slow:
        slow.sendall(
            b"POST /pools/default/buckets HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"
            b"Authorization: Basic " + token.encode() + b"\r\n\r\nname="
        )
        assert slow.recv(4096).startswith(b"HTTP/1.1 408")


def test_a_streaming_answer_may_last() -> None:
    token = base64.b64encode(b"Administrator:password").decode()
    with (
        serving(http_header_s=0.2) as node,
        socket.create_connection(("127.0.0.1", node.mgmt_port), TIMEOUT_S) as stream,
    ):
        stream.sendall(
            b"GET /pools/default/bs/default HTTP/1.1\r\nHost: x\r\nAuthorization: Basic " + token.encode() + b"\r\n\r\n"
        )
        assert stream.recv(12) == b"HTTP/1.1 200"
        with SocketPeer(node.port):  # a second connection is closed by its own limit meanwhile
            pass
        with socket.create_connection(("127.0.0.1", node.mgmt_port), TIMEOUT_S) as silent:
            assert silent.recv(1) == b"", "long enough for the limit to be reached"
        stream.settimeout(0.01)
        try:
            while True:
                assert stream.recv(65536) != b"", "the stream was ended"
        except TimeoutError:
            pass


def test_who_guesses_passwords_is_slowed_down_on_both_ports() -> None:
    with serving() as node:
        assert node.engine is not None
        for number in range(11):
            if number % 2:
                assert ask(node, "GET", "/pools", password="wrong").status == 401
            else:
                with SocketPeer(node.port) as wire:
                    wire.hello()
                    assert wire.plain("Administrator", "wrong") == Status.AUTH_ERROR
        started = time.monotonic()
        with SocketPeer(node.port) as wire:
            wire.hello()
            assert wire.plain("Administrator", "wrong") == Status.AUTH_ERROR
        assert time.monotonic() - started >= 0.15
        started = time.monotonic()
        assert ask(node, "GET", "/pools").status == 200
        SocketPeer(node.port).open().close()
        assert time.monotonic() - started < 5, "who knows it does not wait for who does not"
