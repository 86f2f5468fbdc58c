"""HELLO, logins and SELECT_BUCKET: what is refused, and to whom."""

from __future__ import annotations

import json
import struct
from typing import Any

from dcpstream.errors import StoreError
from dcpstream.wire import Feature, Frame, Opcode, Status, encode_response
from dcpstream_node.engine import Users
from dcpstream_node.testing.simulation import Peer, SeededRandom, SimulatedNode
from tests.kit.cases import each_case
from tests.kit.rules import of_release, rule
from tests.kit.streams import WITHOUT_XERROR


def hello(peer: Peer, *features: int) -> Frame:
    return peer.call(Opcode.HELLO, key=b"test", value=b"".join(struct.pack(">H", code) for code in features))


@rule("KV-LOGIN-01")
@of_release("7.2")
def test_features_that_hello_refuses() -> None:
    peer = SimulatedNode().connect(user=None)
    odd = peer.call(Opcode.HELLO, key=b"test", value=b"\0\1\0")
    assert odd.status == Status.EINVAL
    assert b"even length" in odd.value
    push = Feature.CLUSTERMAP_NOTIFICATION
    for wrong, right in (
        ((Feature.TCP_NODELAY, Feature.TCP_DELAY), (Feature.TCP_NODELAY,)),
        ((push,), (push, Feature.DUPLEX)),
        ((Feature.VATTR,), (Feature.VATTR, Feature.XATTR)),
        ((Feature.SUBDOC_DOCUMENT_MACROS,), (Feature.SUBDOC_DOCUMENT_MACROS, Feature.XATTR)),
    ):
        refused = hello(peer, Feature.XERROR, *wrong)
        assert refused.status == Status.EINVAL
        assert json.loads(refused.value)["error"]["context"]
        granted = hello(peer, *right)
        assert granted.status == 0
        assert {code for (code,) in struct.iter_unpack(">H", granted.value)} == {int(code) for code in right}


@rule("KV-LOGIN-02")
def test_the_user_of_a_certificate_cannot_log_in_otherwise() -> None:
    peer = SimulatedNode().connect()
    peer.session.identity.is_certified = True
    login = {"key": b"PLAIN", "value": b"\0admin\0secret"}
    cases: list[tuple[Any, dict[str, Any]]] = [
        (Opcode.SASL_LIST_MECHS, {}),
        (Opcode.SASL_AUTH, login),
        (Opcode.SASL_STEP, login),
    ]
    for opcode, fields in cases:
        assert peer.call(opcode, **fields).status == Status.NOT_SUPPORTED, opcode
    assert peer.call(Opcode.GET, vbid=1, key=b"\0k").status == Status.KEY_ENOENT, "still logged in"


def node_for_ann() -> SimulatedNode:
    """A node whose user ann may read in no bucket but `beer`, which is not there."""
    users = Users(SeededRandom(), iterations=1)
    users.add("admin", "secret")
    users.add("@admin", "secret")
    users.put("ann", "secret", ["data_reader[beer]"])
    return SimulatedNode(users=users)


@rule("KV-LOGIN-03")
def test_buckets_that_cannot_be_selected() -> None:
    node = node_for_ann()
    ann = node.connect(user="ann", bucket=None)
    for name in (b"default", b"beer", b"nowhere"):
        assert ann.call(Opcode.SELECT_BUCKET, key=name).status == Status.EACCESS
    assert node.admin.call(Opcode.SELECT_BUCKET, key=b"nowhere").status == Status.KEY_ENOENT


@rule("KV-LOGIN-03")
def test_a_damaged_bucket_is_reported_only_to_those_who_may_use_it() -> None:
    node = node_for_ann()
    node.engine.damaged["shop"] = StoreError("a page is damaged")
    answer = node.connect().call(Opcode.SELECT_BUCKET, key=b"shop")
    assert (answer.status, b"damaged" in answer.value) == (Status.TMPFAIL, True)
    ann = node.connect(user="ann", bucket=None)
    assert ann.call(Opcode.SELECT_BUCKET, key=b"shop").status == Status.EACCESS


@rule("KV-LOGIN-04")
def test_a_wrong_password_is_reported_with_and_without_xerror() -> None:
    node = SimulatedNode()
    for features in ((Feature.XERROR,), (Feature.SNAPPY,)):
        peer = node.connect(user=None, features=features)
        answer = peer.call(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0admin\0wrong")
        assert answer.status == Status.AUTH_ERROR
        assert json.loads(answer.value)["error"]["ref"]
        assert not peer.closed


@rule("KV-LOGIN-04", "SEC-01")
def test_a_second_login_that_fails_leaves_nobody_logged_in() -> None:
    node = SimulatedNode()
    node.set_doc(1, "k")
    peer = node.connect()
    assert peer.call(Opcode.GET, vbid=1, key=b"\0k").status == 0
    assert peer.call(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0admin\0wrong").status == Status.AUTH_ERROR
    for opcode, fields in (
        (Opcode.GET, {"vbid": 1, "key": b"\0k"}),
        (Opcode.SET, {"vbid": 1, "key": b"\0k", "extras": bytes(8)}),
        (Opcode.GET_META, {"vbid": 1, "key": b"\0k"}),
        (Opcode.SELECT_BUCKET, {"key": b"default"}),
    ):
        assert peer.call(opcode, **fields).status == Status.EACCESS


@rule("KV-FRAME-06")
def test_nobody_asks_for_another_user_before_the_login() -> None:
    peer = SimulatedNode().connect(user=None)
    answer = peer.call(Opcode.HELLO, key=b"test", framing=b"\x45admin")
    assert answer.status == Status.EACCESS
    assert b"Impersonate" in answer.value


@rule("CLI-22")
def test_an_answer_to_a_pushed_map_is_ignored() -> None:
    answer = bytearray(encode_response(1, opaque=7))
    answer[0] = 0x83
    for user in (None, "admin"):
        peer = SimulatedNode().connect(user=user)
        assert peer.send_bytes(bytes(answer)) == []
        assert peer.closed == (user is None), "nothing is pushed before the login"


@rule("KV-ACCESS-08")
def test_without_xerror_a_reader_is_closed_before_anything_is_written() -> None:
    node = node_for_ann()
    node.users.put("bob", "secret", ["data_reader[default]"])
    peer = node.connect(user="bob", features=WITHOUT_XERROR)
    assert peer.send(Opcode.SET, vbid=1, key=b"\0k", extras=bytes(8)) == []
    assert peer.closed
    assert node.admin.call(Opcode.GET, vbid=1, key=b"\0k").status == Status.KEY_ENOENT


@rule("KV-ACCESS-09", "KV-COL-06")
@each_case("is_there", [True, False])
@of_release("7.2", "8.0")
def test_an_invisible_collection_is_unknown(is_there: bool, release: str) -> None:
    node = node_for_ann()
    collections = [{"name": "_default", "uid": "0"}, {"name": "other", "uid": "8"}]
    manifest = {"uid": "1", "scopes": [{"name": "_default", "uid": "0", "collections": collections}]}
    assert node.admin.call(Opcode.SET_COLLECTIONS, value=json.dumps(manifest).encode()).status == 0
    node.users.put("bob", "secret", ["data_reader[default:_default:other]"])
    answer = node.connect(user="bob").call(Opcode.GET, vbid=1, key=(b"\0" if is_there else b"\x55") + b"k")
    assert answer.status == Status.UNKNOWN_COLLECTION
    assert json.loads(answer.value) == {
        "error": {"context": "Unknown scope or collection in operation"},
        "manifest_uid": "0" if is_there or release == "7.2" else "1",
    }  # fmt: skip
