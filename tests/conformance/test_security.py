"""Rules of login and privileges."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from dcpstream.dcp import sasl
from dcpstream.dcp.sasl import MECHANISMS, ClientLogin
from dcpstream.errors import RemoteProtocolError
from dcpstream.wire import Feature, Opcode, Status, encode_request, encode_response
from dcpstream_node.engine import Users
from dcpstream_node.testing.simulation import USUAL_FEATURES, WITHOUT_COLLECTIONS, Peer, SeededRandom, SimulatedNode
from tests.kit.cases import each_case
from tests.kit.rules import of_release, rule
from tests.kit.streams import WITHOUT_XERROR, dcp_names, is_plain, of, opcodes

SCOPES = {
    "uid": "1",
    "scopes": [
        {"name": "_default", "uid": "0", "collections": [{"name": "_default", "uid": "0"}]},
        {"name": "shop", "uid": "8", "collections": [{"name": "orders", "uid": "8"}, {"name": "prices", "uid": "9"}]},
        {"name": "hidden", "uid": "9", "collections": [{"name": "secrets", "uid": "a"}]},
    ],
}


def users(*privileges: str) -> Users:
    """Users of a node: `admin` with all privileges and `some` with these besides opening a producer."""
    found = Users(SeededRandom())
    found.add("@admin", "secret")
    found.add("some", "secret", frozenset(("DcpProducer", *privileges)))
    return found


def node_for(*privileges: str) -> SimulatedNode:
    """A node with collections and the user `some`."""
    node = SimulatedNode(users=users(*privileges))
    assert node.admin.call(Opcode.SET_COLLECTIONS, value=json.dumps(SCOPES).encode()).status == 0
    return node


def status_of(node: SimulatedNode, value: bytes, *, features: tuple[int, ...] = USUAL_FEATURES) -> int:
    """The status of a stream request by the user `some`."""
    peer = node.producer(user="some", features=features)
    return peer.stream(1, value=value)[0].status


BEFORE_LOGIN = {Opcode.HELLO, Opcode.SASL_LIST_MECHS, Opcode.SASL_AUTH, Opcode.SASL_STEP, Opcode.GET_ERROR_MAP}


@rule("SEC-01")
def test_five_commands_before_the_login() -> None:
    node = SimulatedNode()
    for opcode in (item for item in Opcode if item not in BEFORE_LOGIN):
        peer = node.connect(user=None)
        assert peer.call(opcode).status == Status.EACCESS, opcode
        assert not peer.closed
    peer = node.connect(user=None, features=())
    assert peer.hello((Feature.XERROR,)).status == 0
    assert peer.call(Opcode.SASL_LIST_MECHS).status == 0
    assert peer.call(Opcode.GET_ERROR_MAP, value=b"\0\1").status == 0
    assert peer.call(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0admin\0wrong").status == Status.AUTH_ERROR
    assert peer.call(Opcode.SASL_STEP, key=b"SCRAM-SHA1", value=b"x").status != Status.EACCESS
    assert peer.call(Opcode.SELECT_BUCKET, key=b"default").status == Status.EACCESS
    assert peer.call(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0admin\0secret").status == 0
    assert peer.call(Opcode.SELECT_BUCKET, key=b"default").status == 0


@rule("SEC-01")
def test_what_is_unknown_is_not_answered_before_the_login() -> None:
    node = SimulatedNode()
    assert node.connect(user=None).call(0xEE).status == Status.EACCESS
    assert node.connect().call(0xEE).status == Status.UNKNOWN_COMMAND


@rule("SEC-02")
@of_release("7.2", "8.0")
def test_the_size_of_a_frame_before_the_login(release: str) -> None:
    limit = {"7.2": 1024, "8.0": 16 * 1024}[release]
    node = SimulatedNode()
    peer = node.connect(user=None)
    assert peer.call(Opcode.SASL_AUTH, key=b"PLAIN", value=b"x" * (limit - 24 - 5)).status == Status.EINVAL
    header = struct.pack(">BBHBBHIIQ", 0x80, Opcode.SASL_AUTH, 5, 0, 0, 0, limit - 24 + 1, 1, 0)
    assert peer.send_bytes(header) == []
    assert peer.closed
    later = node.connect()
    fields: dict[str, Any] = {"vbid": 1, "key": b"\0k", "extras": bytes(8), "value": b"v" * 32 * 1024}
    assert later.call(Opcode.SET, **fields).status == 0


@rule("SEC-03")
@each_case("opcode", [Opcode.DCP_NOOP, Opcode.DCP_MUTATION, Opcode.GET_ERROR_MAP, Opcode.GET, 0xEE])
def test_an_answer_before_the_login_closes(opcode: int) -> None:
    peer = SimulatedNode().connect(user=None)
    assert peer.send_bytes(encode_response(opcode, opaque=1) + encode_request(Opcode.SASL_LIST_MECHS)) == []
    assert peer.closed


@rule("SEC-04")
@each_case(
    ("user", "flags", "status"),
    [
        ("producer", 1, 0),
        ("producer", 0, Status.EACCESS),
        ("consumer", 0, 0),
        ("consumer", 1, Status.EACCESS),
        ("writer", 0, Status.EACCESS),
        ("writer", 1, Status.EACCESS),
        ("admin", 0, 0),
        ("admin", 1, 0),
    ],
)
def test_each_role_has_its_privilege(user: str, flags: int, status: int) -> None:
    node = SimulatedNode()
    peer = node.connect(user=user)
    assert peer.dcp_open(b"n", flags).status == status
    assert not status or is_plain(peer)
    assert dcp_names(node) == ([] if status else ["n"])
    assert not peer.closed
    if status:
        plain = node.connect(user=user, features=WITHOUT_XERROR)
        assert plain.send(Opcode.DCP_OPEN, key=b"n", extras=struct.pack(">II", 0, flags)) == []
        assert plain.closed


@rule("SEC-05")
@each_case(
    ("privileges", "value", "status"),
    [
        (["DcpStream"], b"", 0),
        (["DcpStream"], b'{"scope":"8"}', 0),
        (["DcpStream"], b'{"collections":["8","9"]}', 0),
        (["Read"], b"", Status.EACCESS),
        (["Read"], b'{"scope":"8"}', Status.EACCESS),
        (["Read"], b'{"collections":["8"]}', Status.EACCESS),
        (["DcpStream:shop"], b"", Status.EACCESS),
        (["DcpStream:shop"], b'{"scope":"8"}', 0),
        (["DcpStream:shop"], b'{"collections":["8","9"]}', 0),
        (["DcpStream:shop", "Read"], b'{"collections":["8","a"]}', Status.EACCESS),
        (["DcpStream:shop.orders"], b'{"collections":["8"]}', 0),
        (["DcpStream:shop.orders", "Read"], b'{"scope":"8"}', Status.EACCESS),
        (["DcpStream:shop.orders", "Read:shop"], b'{"collections":["8","9"]}', Status.EACCESS),
        (["DcpStream:shop.orders", "DcpStream:shop.prices"], b'{"collections":["8","9"]}', 0),
    ],
)
def test_a_stream_needs_dcpstream_for_all_it_carries(privileges: list[str], value: bytes, status: int) -> None:
    node = node_for(*privileges)
    assert status_of(node, value) == status


@rule("SEC-05")
def test_without_collections_it_is_the_default_one() -> None:
    assert status_of(node_for("DcpStream:_default"), b"", features=WITHOUT_COLLECTIONS) == 0
    assert status_of(node_for("Read", "DcpStream:shop"), b"", features=WITHOUT_COLLECTIONS) == Status.EACCESS


@rule("SEC-05")
def test_without_xerror_a_missing_privilege_drops() -> None:
    node = node_for("Read")
    peer = node.producer(user="some", features=WITHOUT_XERROR)
    assert peer.stream(1) == []
    assert peer.closed


@rule("SEC-06")
@each_case(
    ("privileges", "value", "status"),
    [
        (["DcpStream:shop"], b'{"collections":["8","a"]}', Status.UNKNOWN_COLLECTION),
        (["Read:shop"], b'{"collections":["8","a"]}', Status.UNKNOWN_COLLECTION),
        (["Read:shop"], b'{"collections":["8"]}', Status.EACCESS),
        (["Read:shop.orders", "DcpStream:shop.prices"], b'{"collections":["8","9","a"]}', Status.UNKNOWN_COLLECTION),
        (["DcpStream:shop"], b'{"scope":"9"}', Status.UNKNOWN_SCOPE),
        (["Read"], b'{"collections":["8","a"]}', Status.EACCESS),
    ],
)
def test_what_the_user_cannot_see_does_not_exist(privileges: list[str], value: bytes, status: int) -> None:
    node = node_for(*privileges)
    peer = node.producer(user="some")
    answer = peer.stream(1, value=value)[0]
    assert answer.status == status
    if status in (Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE):
        unknown = peer.stream(1, value=value.replace(b'"a"', b'"77"').replace(b'"9"}', b'"77"}'))[0]
        assert (answer.status, answer.value) == (unknown.status, unknown.value), "told apart from nothing"
    assert not peer.closed


@rule("SEC-07")
@each_case(("features", "reason"), [(USUAL_FEATURES, 8), (WITHOUT_COLLECTIONS, 0)])
def test_a_lost_privilege_ends_the_stream_at_the_next_marker(features: tuple[int, ...], reason: int) -> None:
    node = node_for("DcpStream")
    peer = node.producer(user="some", features=features)
    node.set_doc(1, "before")
    assert opcodes(peer.stream(1))[-1] == Opcode.DCP_MUTATION
    node.users.set_privileges("some", frozenset(("DcpProducer", "Read")))
    node.pump()
    assert peer.take() == [], "nothing happens until there is something to say"
    node.set_doc(1, "after")
    (end,) = peer.take()
    assert (end.opcode, end.opaque, end.extras) == (Opcode.DCP_STREAM_END, 0x77, reason.to_bytes(4, "big"))
    assert not peer.closed
    assert peer.stream(1)[0].status == Status.EACCESS
    node.users.set_privileges("some", frozenset(("DcpProducer", "DcpStream")))
    node.pump()
    assert len(of(peer.stream(1), Opcode.DCP_MUTATION)) == 2


@rule("SEC-08")
def test_the_mechanisms() -> None:
    peer = SimulatedNode().connect(user=None)
    answer = peer.call(Opcode.SASL_LIST_MECHS)
    assert (answer.status, answer.value) == (0, b"SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN")


@rule("SEC-09")
def test_plain_takes_one_step() -> None:
    node = SimulatedNode()
    peer = node.connect(user=None)
    answer = peer.call(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0admin\0secret")
    assert (answer.status, answer.key, answer.extras) == (0, b"", b"")
    assert peer.call(Opcode.SELECT_BUCKET, key=b"default").status == 0
    for value in (b"garbage", b"admin\0secret", b"", b"\0admin"):
        other = node.connect(user=None)
        assert other.call(Opcode.SASL_AUTH, key=b"PLAIN", value=value).status != 0
        assert other.call(Opcode.SELECT_BUCKET, key=b"default").status == Status.EACCESS


def scram(peer: Peer, mechanism: str, password: str) -> tuple[list[int], bytes]:
    """A login by SCRAM: the statuses, and the last answer's value."""
    login = ClientLogin(mechanism, "admin", password, bytes(range(24)))
    first = peer.call(Opcode.SASL_AUTH, key=mechanism.encode(), value=login.start())
    if first.status != Status.AUTH_CONTINUE:
        return [first.status], first.value
    assert first.value.startswith(b"r=")
    assert b",s=" in first.value
    assert b",i=" in first.value
    second = peer.call(Opcode.SASL_STEP, key=mechanism.encode(), value=login.step(first.value))
    if not second.status:
        login.finish(second.value)
    return [first.status, second.status], second.value


@rule("SEC-10")
@each_case("mechanism", [name for name in MECHANISMS if name != "PLAIN"])
def test_scram_takes_two_steps(mechanism: str) -> None:
    peer = SimulatedNode().connect(user=None)
    statuses, value = scram(peer, mechanism, "secret")
    assert statuses == [Status.AUTH_CONTINUE, Status.SUCCESS]
    assert value.startswith(b"v=")
    assert peer.call(Opcode.SELECT_BUCKET, key=b"default").status == 0


@rule("SEC-10", "SEC-11")
@each_case("mechanism", [name for name in MECHANISMS if name != "PLAIN"])
def test_scram_with_a_wrong_password(mechanism: str) -> None:
    peer = SimulatedNode().connect(user=None)
    statuses, _ = scram(peer, mechanism, "wrong")
    assert statuses == [Status.AUTH_CONTINUE, Status.AUTH_ERROR]
    assert peer.call(Opcode.SELECT_BUCKET, key=b"default").status == Status.EACCESS


@rule("SEC-11")
@each_case(
    ("mechanism", "value"),
    [
        (b"PLAIN", b"\0admin\0wrong"),
        (b"PLAIN", b"\0nobody\0secret"),
        (b"PLAIN", b"\0admin\0"),
        (b"FOO", b"\0admin\0secret"),
        (b"SCRAM-SHA3", b"n,,n=admin,r=x"),
    ],
)
def test_who_is_not_known_or_knows_not_how_is_refused(mechanism: bytes, value: bytes) -> None:
    peer = SimulatedNode().connect(user=None)
    assert peer.call(Opcode.SASL_AUTH, key=mechanism, value=value).status == Status.AUTH_ERROR
    assert not peer.closed
    assert peer.call(Opcode.SELECT_BUCKET, key=b"default").status == Status.EACCESS


@rule("SEC-11")
@of_release("7.2", "8.0")
@each_case("mechanism", [b"plain", b"Plain", b"scram-sha256"])
def test_a_mechanism_may_be_written_in_small_letters(mechanism: bytes) -> None:
    peer = SimulatedNode().connect(user=None)
    if mechanism == b"scram-sha256":
        login = ClientLogin("SCRAM-SHA256", "admin", "secret", bytes(24))
        first = peer.call(Opcode.SASL_AUTH, key=mechanism, value=login.start())
        assert first.status == Status.AUTH_CONTINUE
        last = peer.call(Opcode.SASL_STEP, key=mechanism, value=login.step(first.value))
    else:
        last = peer.call(Opcode.SASL_AUTH, key=mechanism, value=b"\0admin\0secret")
    assert last.status == Status.SUCCESS


def challenge(login: ClientLogin, **changes: Any) -> bytes:
    """A server's first message that fits a login, or does not."""
    nonce = login.start().rpartition(b",r=")[2]
    fields: dict[str, Any] = {"r": nonce + b"more", "s": b"c2FsdHNhbHQ=", "i": b"4096", **changes}
    return b",".join(b"%b=%b" % (name.encode(), value) for name, value in fields.items() if value is not None)


@rule("SEC-10")
@each_case(
    "changes",
    [
        {"r": b"another"},
        {"r": b""},
        {"s": b""},
        {"s": b"!"},
        {"i": b""},
        {"i": b"0"},
        {"i": b"many"},
        {"i": b"-1"},
        {"i": b"99999999999"},
    ],
)
def test_the_client_trusts_no_wrong_challenge(changes: dict[str, bytes]) -> None:
    login = ClientLogin("SCRAM-SHA256", "admin", "secret", bytes(range(24)))
    with pytest.raises(RemoteProtocolError):
        login.step(challenge(login, **changes))


@rule("SEC-10")
def test_the_client_wants_the_servers_proof() -> None:
    login = ClientLogin("SCRAM-SHA256", "admin", "secret", bytes(range(24)))
    with pytest.raises(RemoteProtocolError, match="before proving"):
        login.finish(b"v=AAAA")
    own_nonce = login.start().rpartition(b",r=")[2]
    with pytest.raises(RemoteProtocolError, match="extend"):
        login.step(challenge(login, r=own_nonce))
    assert b",p=" in login.step(challenge(login))
    for proof in (b"v=AAAA", b"", b"e=other-error", b"v=!"):
        with pytest.raises(RemoteProtocolError, match="signature"):
            login.finish(proof)
    with pytest.raises(RemoteProtocolError, match="second time"):
        login.step(challenge(login))


@rule("SEC-01")
@each_case(
    ("features", "status"),
    [
        (b"\0", Status.EINVAL),
        (b"\0\7\0", Status.EINVAL),
        (b"\0\3\0\5", Status.EINVAL),
        (b"\0\3", 0),
        (b"\0\5", 0),
        (b"\0\x0d", Status.EINVAL),
        (b"\0\x0d\0\x0c", 0),
        (b"\0\x0c", 0),
        (b"", 0),
    ],
)
@of_release("7.2")
def test_hello_refuses_what_does_not_go_together(features: bytes, status: int) -> None:
    peer = SimulatedNode().connect(user=None, features=())
    assert peer.call(Opcode.HELLO, key=b"agent", value=features).status == status
    assert not peer.closed


@rule("SEC-01")
@each_case(
    ("fields", "status"),
    [
        ({"value": b"\0\1"}, 0),
        ({"value": b"\0\2"}, 0),
        ({"value": b""}, Status.EINVAL),
        ({"value": b"\1"}, Status.EINVAL),
        ({"value": b"\0\0\1"}, Status.EINVAL),
        ({"value": b"\0\1", "vbid": 1}, Status.EINVAL),
    ],
)
def test_the_error_map_has_versions(fields: dict[str, Any], status: int) -> None:
    peer = SimulatedNode().connect(user=None)
    answer = peer.call(Opcode.GET_ERROR_MAP, **fields)
    assert answer.status == status
    assert status or json.loads(answer.value)["errors"]


@rule("SEC-10")
def test_a_step_needs_a_beginning() -> None:
    peer = SimulatedNode().connect(user=None)
    assert peer.call(Opcode.SASL_STEP, key=b"SCRAM-SHA1", value=b"c=biws,r=x,p=AAAA").status == Status.EINVAL
    for value in (b"", b"x", b"n,,", b"n,,n=admin", b"n,,r=abc", b"p=tls,,n=admin,r=abc"):
        assert peer.call(Opcode.SASL_AUTH, key=b"SCRAM-SHA1", value=value).status == Status.EINVAL
    assert peer.call(Opcode.SELECT_BUCKET, key=b"default").status == Status.EACCESS


@rule("SEC-01", "SEC-09")
def test_a_bucket_that_is_not_there() -> None:
    node = SimulatedNode()
    internal = node.connect(user="@admin", bucket=None)
    assert internal.call(Opcode.SELECT_BUCKET, key=b"nosuch").status == Status.KEY_ENOENT
    other = node.connect(user="producer", bucket=None)
    assert other.call(Opcode.SELECT_BUCKET, key=b"nosuch").status == Status.EACCESS
    assert not other.closed


@rule("SEC-10")
def test_the_client_takes_no_more_rounds_than_it_wants_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sasl, "MAX_ITERATIONS", 4010)
    for rounds, is_taken in ((b"1", False), (b"3999", False), (b"4000", True), (b"4010", True), (b"4011", False)):
        login = ClientLogin("SCRAM-SHA256", "admin", "secret", bytes(range(24)))
        if is_taken:
            assert b",p=" in login.step(challenge(login, i=rounds))
        else:
            with pytest.raises(RemoteProtocolError, match="rounds"):
                login.step(challenge(login, i=rounds))
