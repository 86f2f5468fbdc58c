"""Failed logins: free at first, then slower and slower, per address, and forgotten."""

from __future__ import annotations

from typing import Any

from dcpstream.wire import Opcode, Status, encode_request
from dcpstream_node.engine import Engine
from dcpstream_node.engine.access.login_throttle import (
    FIRST_DELAY_S,
    FORGIVEN_AFTER_S,
    FREE_FAILURES,
    MAX_DELAY_S,
    MAX_WAITING,
    LoginThrottle,
)
from dcpstream_node.engine.session.step import Wants
from tests.kit.engine import Talker, engine_of, pass_time
from tests.kit.rules import rule


def test_the_first_failures_are_free_and_then_each_takes_longer() -> None:
    guard = LoginThrottle()
    delays = [guard.failed("a", 1.0) for _ in range(FREE_FAILURES + 10)]
    assert delays[:FREE_FAILURES] == [0.0] * FREE_FAILURES
    assert delays[FREE_FAILURES : FREE_FAILURES + 2] == [FIRST_DELAY_S, 2 * FIRST_DELAY_S]
    assert delays[-1] == MAX_DELAY_S
    assert guard.failed("b", 1.0) == 0.0
    assert guard.failed("a", 1.0 + FORGIVEN_AFTER_S + 0.1) == 0.0


def test_addresses_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr("dcpstream_node.engine.access.login_throttle.MAX_ADDRESSES", 3)
    guard = LoginThrottle()
    for number in range(10):
        guard.failed(str(number), 1.0)
    assert len(guard._addresses) == 3


def guess(engine: Engine) -> Talker:
    peer = Talker(engine, user=None)
    peer.session.peer = "10.0.0.9:1"
    return peer


@rule("KV-LOGIN-04")
def test_a_refusal_that_waits_comes_in_time_and_a_right_password_does_not_wait() -> None:
    engine = engine_of()
    wrong: dict[str, Any] = {"key": b"PLAIN", "value": b"\0admin\0wrong"}
    peer = guess(engine)
    for _ in range(FREE_FAILURES):
        assert peer.call(Opcode.SASL_AUTH, **wrong).status == Status.AUTH_ERROR
    assert peer.send(encode_request(Opcode.SASL_AUTH, opaque=1, **wrong)) == []
    assert peer.session.receive(encode_request(Opcode.NOOP)).wants is Wants.EVENT
    assert guess(engine).call(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0admin\0secret").status == Status.SUCCESS
    at = engine.next_timeout()
    assert at is not None
    pass_time(engine, at - engine.now)
    engine.handle_timeout()
    assert [frame.status for frame in peer.collect()] == [Status.AUTH_ERROR]
    assert peer.call(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0admin\0secret").status == Status.SUCCESS


def test_an_address_has_so_many_refusals_waiting_and_no_more() -> None:
    engine = engine_of()
    wrong = encode_request(Opcode.SASL_AUTH, key=b"SCRAM-SHA1", value=b"n,,n=admin,r=abcdefgh", opaque=1)
    final = encode_request(Opcode.SASL_STEP, key=b"SCRAM-SHA1", value=b"c=biws,r=x,p=" + b"A" * 27 + b"=", opaque=2)
    for _ in range(FREE_FAILURES + MAX_WAITING):
        guess(engine).send(wrong + final)
    for request in (wrong, encode_request(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0admin\0secret", opaque=1)):
        last = guess(engine)
        last.send(request)
        assert last.session.is_closing, "not even a right password is looked at"
    elsewhere = Talker(engine, user=None)
    assert elsewhere.call(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0admin\0secret").status == Status.SUCCESS


def test_who_leaves_while_the_refusal_waits_is_forgotten() -> None:
    engine = engine_of()
    peers = [guess(engine) for _ in range(FREE_FAILURES + 2)]
    for peer in peers:
        peer.send(encode_request(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0admin\0wrong", opaque=1))
    peers[-1].session.connection_lost()
    pass_time(engine, 60.0)
    engine.handle_timeout()
    assert [frame.status for frame in peers[-2].collect()] == [Status.AUTH_ERROR]
    assert engine.next_timeout() is None
