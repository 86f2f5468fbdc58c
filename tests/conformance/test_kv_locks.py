"""Documents that GET_LOCKED locked: what every other command says of them."""

from __future__ import annotations

import struct
from typing import Any

from dcpstream.wire import Frame, Opcode, Status
from dcpstream.wire.values import encode_xattrs
from dcpstream_node.testing.simulation import Peer, SimulatedNode
from tests.kit.cases import each_case
from tests.kit.rules import of_release, rule
from tests.kit.streams import WITHOUT_XERROR

KEY = b"\0k"
ALL_ONES = (1 << 64) - 1
STORE = bytes(8)
COUNT = struct.pack(">QQI", 1, 1, 0)
WINNING = struct.pack(">IIQQ", 0, 0, 99, 1 << 60)
LOSING = struct.pack(">IIQQ", 0, 0, 1, 1)

CHANGES = {
    Opcode.SET: (STORE, b"2"),
    Opcode.REPLACE: (STORE, b"2"),
    Opcode.APPEND: (b"", b"2"),
    Opcode.PREPEND: (b"", b"2"),
    Opcode.TOUCH: (bytes(4), b""),
    Opcode.GAT: (bytes(4), b""),
}


def node_with(value: bytes = b"1", **fields: Any) -> SimulatedNode:
    node = SimulatedNode()
    node.set_doc(1, "k", value, **fields)
    return node


def lock(peer: Peer) -> Frame:
    answer = peer.call(Opcode.GET_LOCKED, vbid=1, key=KEY)
    assert answer.status == 0
    return answer


@rule("KV-LOCK-01")
def test_get_of_a_locked_document_shows_all_ones_as_its_cas() -> None:
    peer = node_with(b"v").connect()
    assert lock(peer).cas not in (0, ALL_ONES)
    answer = peer.call(Opcode.GET, vbid=1, key=KEY)
    assert (answer.status, answer.cas, answer.value) == (0, ALL_ONES, b"v")


@rule("KV-LOCK-02")
@each_case(("version", "status"), [("7.2", Status.TMPFAIL), ("7.6", Status.NOT_LOCKED)])
def test_unlocking(version: str, status: int) -> None:
    node = SimulatedNode(release=version)
    node.set_doc(1, "k", b"v")
    peer = node.connect()
    unlock: dict[str, Any] = {"opcode": Opcode.UNLOCK, "vbid": 1, "key": KEY}
    assert peer.call(**unlock, cas=5).status == status
    assert peer.call(**unlock).status == Status.EINVAL
    cas = lock(peer).cas
    assert peer.call(**unlock, cas=cas + 1).status == Status.LOCKED
    assert node.connect(features=WITHOUT_XERROR).call(**unlock, cas=cas + 1).status == Status.TMPFAIL
    assert peer.call(**unlock, cas=cas).status == 0
    assert peer.call(**unlock, cas=cas).status == status
    assert peer.call(Opcode.UNLOCK, vbid=1, key=b"\0none", cas=5).status == Status.KEY_ENOENT


@rule("KV-LOCK-03")
@each_case("opcode", CHANGES)
@each_case("cas", [0, 5])
def test_changes_of_a_locked_document_are_refused(opcode: Opcode, cas: int) -> None:
    node = node_with()
    peer, old = node.connect(), node.connect(features=WITHOUT_XERROR)
    lock(peer)
    extras, value = CHANGES[opcode]
    fields: dict[str, Any] = {"vbid": 1, "key": KEY, "extras": extras, "value": value}
    if opcode not in (Opcode.TOUCH, Opcode.GAT):
        fields["cas"] = cas
    for who, status in ((peer, Status.LOCKED), (old, Status.KEY_EEXISTS)):
        answer = who.call(opcode, **fields)
        assert (answer.status, answer.value, answer.cas) == (status, b"", 0)
    assert peer.call(Opcode.ADD, vbid=1, key=KEY, extras=STORE).status == Status.KEY_EEXISTS
    assert peer.call(Opcode.GET, vbid=1, key=KEY).cas == ALL_ONES


@rule("KV-LOCK-04")
@each_case("opcode", [Opcode.SET, Opcode.REPLACE, Opcode.APPEND, Opcode.PREPEND])
@each_case("has_xattrs", [False, True])
def test_the_locks_owner_writes_and_unlocks(opcode: Opcode, has_xattrs: bool) -> None:
    node = node_with()
    peer = node.connect()
    if has_xattrs:
        extras = struct.pack(">IIQQ", 0, 0, 9, 1 << 60)
        value = encode_xattrs({"u": b"1"}, b"1")
        assert peer.call(Opcode.SET_WITH_META, vbid=1, key=KEY, extras=extras, value=value, datatype=4).status == 0
    cas = lock(peer).cas
    extras, value = CHANGES[opcode]
    assert peer.call(opcode, vbid=1, key=KEY, extras=extras, value=value, cas=cas).status == 0
    assert peer.call(Opcode.GET, vbid=1, key=KEY).cas not in (cas, ALL_ONES)
    assert peer.call(Opcode.SET, vbid=1, key=KEY, extras=STORE).status == 0


@rule("KV-LOCK-05")
def test_deleting_a_locked_document() -> None:
    node = node_with()
    peer, old = node.connect(), node.connect(features=WITHOUT_XERROR)
    cas = lock(peer).cas
    for given, status in ((0, Status.KEY_EEXISTS), (cas + 1, Status.TMPFAIL)):
        assert peer.call(Opcode.DELETE, vbid=1, key=KEY, cas=given).status == Status.LOCKED
        assert old.call(Opcode.DELETE, vbid=1, key=KEY, cas=given).status == status
    assert peer.call(Opcode.DELETE, vbid=1, key=KEY, cas=cas).status == 0


@rule("KV-LOCK-06")
@each_case("opcode", [Opcode.INCREMENT, Opcode.DECREMENT])
def test_counting_in_a_locked_document(opcode: Opcode) -> None:
    for value, status, old_status in (
        (b"7", Status.LOCKED, Status.KEY_EEXISTS),
        (b"text", Status.DELTA_BADVAL, Status.DELTA_BADVAL),
    ):
        node = node_with(value)
        peer, old = node.connect(), node.connect(features=WITHOUT_XERROR)
        lock(peer)
        assert peer.call(opcode, vbid=1, key=KEY, extras=COUNT).status == status
        assert old.call(opcode, vbid=1, key=KEY, extras=COUNT).status == old_status


@rule("KV-LOCK-07")
def test_locking_twice() -> None:
    node = node_with()
    peer, old = node.connect(), node.connect(features=WITHOUT_XERROR)
    lock(peer)
    for who, status in ((peer, Status.LOCKED), (old, Status.TMPFAIL)):
        assert who.call(Opcode.GET_LOCKED, vbid=1, key=KEY).status == status


@rule("KV-LOCK-08")
def test_which_cas_is_sent_of_a_locked_document() -> None:
    node = node_with()
    peer = node.connect()
    own = peer.call(Opcode.GET, vbid=1, key=KEY).cas
    lock(peer)
    assert peer.call(Opcode.GET_META, vbid=1, key=KEY).cas == ALL_ONES
    observed = peer.call(Opcode.OBSERVE, value=struct.pack(">HH", 1, 2) + KEY).value
    assert int.from_bytes(observed[-8:], "big") == own
    assert node.stats("key k 1")["key_cas"] == str(own)


@rule("KV-LOCK-09")
@each_case("opcode", [Opcode.SET_WITH_META, Opcode.DELETE_WITH_META])
def test_versions_from_elsewhere_and_locks(opcode: Opcode) -> None:
    node = node_with()
    peer, old = node.connect(), node.connect(features=WITHOUT_XERROR)
    cas = lock(peer).cas
    fields: dict[str, Any] = {"vbid": 1, "key": KEY, "value": b"" if opcode == Opcode.DELETE_WITH_META else b"2"}
    assert peer.call(opcode, extras=LOSING, **fields).status == Status.KEY_EEXISTS
    for given in (0, cas + 1):
        assert peer.call(opcode, extras=WINNING, cas=given, **fields).status == Status.LOCKED
        expected = Status.TMPFAIL if opcode == Opcode.DELETE_WITH_META else Status.KEY_EEXISTS
        assert old.call(opcode, extras=WINNING, cas=given, **fields).status == expected
    assert peer.call(Opcode.ADD_WITH_META, extras=WINNING, **fields).status == Status.KEY_EEXISTS
    assert peer.call(opcode, extras=WINNING, cas=cas, **fields).status == 0


@rule("KV-LOCK-09")
@of_release("7.2", "8.0")
def test_a_deletion_from_elsewhere_of_what_the_system_keeps_looks_at_no_lock_until_76(release: str) -> None:
    node = node_with()
    peer = node.connect()
    extras = struct.pack(">IIQQ", 0, 0, 9, 1 << 59)
    value = encode_xattrs({"_s": b"1"}, b"1")
    assert peer.call(Opcode.SET_WITH_META, vbid=1, key=KEY, extras=extras, value=value, datatype=4).status == 0
    lock(peer)
    answer = peer.call(Opcode.DELETE_WITH_META, vbid=1, key=KEY, extras=WINNING, cas=5)
    assert answer.status == (0 if release == "7.2" else Status.LOCKED)


@rule("KV-LOCK-10")
def test_an_expired_document_is_not_locked() -> None:
    node = node_with(expiration=5)
    peer = node.connect()
    lock(peer)
    node.advance(6)
    assert peer.call(Opcode.SET, vbid=1, key=KEY, extras=STORE).status == 0
