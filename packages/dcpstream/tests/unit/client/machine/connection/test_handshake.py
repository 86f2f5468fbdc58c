"""Handshakes with a node that checks passwords by the server's own machine."""

from __future__ import annotations

import itertools

import pytest

from dcpstream.client.machine.connection.handshake import TRANSITIONS, Event, Handshake, State
from dcpstream.client.settings.options import DcpSettings, Login
from dcpstream.errors import (
    AuthenticationFailed,
    ConnectionLost,
    InvalidArguments,
    LocalProtocolError,
    RemoteProtocolError,
    TlsError,
)
from dcpstream.wire import Feature, FrameReader, Opcode, OpenFlag, Status, encode_response
from tests.kit.cases import each_case
from tests.kit.client_machines import NONCE, new_connection
from tests.kit.fake_node import ADDRESS, GRANTED, LOGIN, FakeNode

SETTINGS = DcpSettings(name="reader", buffer_bytes=4096)


def shake(node: FakeNode, login: Login = LOGIN, dcp: DcpSettings | None = SETTINGS) -> Handshake:
    handshake = Handshake(login, ADDRESS, NONCE, dcp)
    reader = FrameReader()
    data = handshake.start()
    while data:
        reader.receive_data(node.receive(data))
        data = b"".join(handshake.receive(frame) for frame in reader.frames())
    assert handshake.is_done
    return handshake


@each_case("is_8_0", [False, True])
def test_markers_with_the_purge_seqno_are_asked_of_newer_servers(is_8_0: bool) -> None:
    node = FakeNode(granted=GRANTED if is_8_0 else set(GRANTED) - {Feature.SUBDOC_REPLICA_READ_DELETED})
    shake(node)
    controls = {frame.key: frame.value for frame in node.asked(Opcode.DCP_CONTROL)}
    assert controls.get(b"max_marker_version") == (b"2.2" if is_8_0 else None)


def test_plain_only_if_allowed() -> None:
    with pytest.raises(AuthenticationFailed, match="offers only PLAIN"):
        shake(FakeNode(mechanisms="PLAIN"))
    shake(FakeNode(mechanisms="PLAIN"), Login("Administrator", "password", "default", allow_plain=True))


OVER_TLS = Login("Administrator", "password", "default", allow_plain=True)


def mechanisms_tried(node: FakeNode) -> list[str]:
    return [frame.key.decode() for frame in node.asked(Opcode.SASL_AUTH)]


def test_no_password_is_shown_where_that_is_not_allowed() -> None:
    node = FakeNode(scram_users=())
    with pytest.raises(AuthenticationFailed, match=r"SCRAM-SHA512\): check .*couchbases://"):
        shake(node)
    assert mechanisms_tried(node) == ["SCRAM-SHA512"]
    chosen = FakeNode(scram_users=())
    with pytest.raises(AuthenticationFailed):
        shake(chosen, Login("Administrator", "password", "default", allow_plain=True, mechanism="SCRAM-SHA256"))
    assert mechanisms_tried(chosen) == ["SCRAM-SHA256"]


def test_a_wrong_password_is_tried_twice_over_tls_and_no_more() -> None:
    node = FakeNode(password="other")
    with pytest.raises(AuthenticationFailed, match="SCRAM-SHA512 and PLAIN"):
        shake(node, OVER_TLS)
    assert mechanisms_tried(node) == ["SCRAM-SHA512", "PLAIN"]


def token_login(*tokens: str) -> Login:
    """A login by tokens, each of them for one connection."""
    given = iter(tokens)
    return Login("", lambda: next(given), "default", mechanism="OAUTHBEARER")


def test_a_refused_token_is_final_unless_the_next_login_may_have_another() -> None:
    fixed = Login("", "a.b.c", "default", mechanism="OAUTHBEARER")
    with pytest.raises(AuthenticationFailed, match=r"the token was refused by .*, OAUTHBEARER.*: it must be of") as it:
        shake(FakeNode(token="other"), fixed)
    assert "a.b.c" not in str(it.value) + repr(fixed)
    with pytest.raises(ConnectionLost) as caught:
        shake(FakeNode(token="other"), token_login("a.b.c"))
    assert not isinstance(caught.value, AuthenticationFailed)
    with pytest.raises(AuthenticationFailed, match="the node takes no tokens"):
        shake(FakeNode(), fixed)


@each_case("opcode", [Opcode.SELECT_BUCKET, Opcode.GET_CLUSTER_CONFIG, Opcode.NOOP, Opcode.DCP_CONTROL])
def test_a_token_that_expires_during_the_handshake(opcode: Opcode) -> None:
    node = FakeNode(token="a", statuses={opcode: Status.AUTH_STALE})
    with pytest.raises(ConnectionLost, match="wants a new login: the token has expired"):
        shake(node, token_login("a"), None if opcode is Opcode.NOOP else SETTINGS)


def test_wrong_password_names_user_and_node() -> None:
    with pytest.raises(AuthenticationFailed, match=r"'Administrator' was refused by 127\.0\.0\.1:11210"):
        shake(FakeNode(password="other"))


def test_a_node_that_does_not_know_the_password_is_not_trusted() -> None:
    handshake = Handshake(LOGIN, ADDRESS, NONCE)
    reader = FrameReader()
    reader.receive_data(FakeNode().receive(handshake.start()))
    for frame in reader.frames():
        handshake.receive(frame)
    reader.receive_data(encode_response(Opcode.SASL_STEP, value=b"v=bm8="))
    (forged,) = reader.frames()
    with pytest.raises(AuthenticationFailed, match="cannot be trusted"):
        handshake.receive(forged)


def test_no_map_yet_can_be_tried_again() -> None:
    with pytest.raises(ConnectionLost, match="no cluster map"):
        shake(FakeNode(statuses={Opcode.GET_CLUSTER_CONFIG: Status.KEY_ENOENT}))


def test_a_refused_control_that_is_needed() -> None:
    with pytest.raises(InvalidArguments, match="connection_buffer_size"):
        shake(FakeNode(statuses={Opcode.DCP_CONTROL: Status.EINVAL}))


def test_an_answer_to_something_else_is_refused() -> None:
    handshake = Handshake(LOGIN, ADDRESS, NONCE)
    handshake.start()
    reader = FrameReader()
    reader.receive_data(encode_response(Opcode.NOOP))
    with pytest.raises(RemoteProtocolError, match="NOOP"):
        handshake.receive(next(reader.frames()))


def test_open_flags() -> None:
    everything = OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES | OpenFlag.INCLUDE_XATTRS
    assert DcpSettings(name="x").open_flags == everything
    keys_only = OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES | OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE
    assert DcpSettings(name="x", xattrs=False, no_value=True).open_flags == keys_only


def test_the_password_is_not_shown() -> None:
    assert "password" not in repr(LOGIN).replace("allow_plain", "")


def test_a_port_with_tls_is_recognized_by_its_alert() -> None:
    with pytest.raises(TlsError, match="use couchbases://"):
        new_connection().receive_data(bytes.fromhex("15030300020246"), 0.0)


@each_case(("state", "event"), [*itertools.product(State, Event)])
def test_every_state_and_event(state: State, event: Event) -> None:
    if TRANSITIONS.is_legal(state, event):
        assert TRANSITIONS.after(state, event) is TRANSITIONS.rows[state][event]
        return
    with pytest.raises((LocalProtocolError, RemoteProtocolError), match="handshake with node: not legal"):
        TRANSITIONS.after(state, event, "node")
