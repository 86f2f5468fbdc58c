"""Sub-document commands as a 7.2 server has them: checks, locks, attributes, tombstones."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from dcpstream.wire import Feature, Frame, Opcode, Status
from dcpstream.wire.values import encode_xattrs
from dcpstream_node.engine import ALL_PRIVILEGES, Users
from dcpstream_node.testing.simulation import USUAL_FEATURES, Peer, SeededRandom, SimulatedNode
from tests.kit.rules import of_release, rule
from tests.kit.streams import WITHOUT_XERROR, stored, stored_mutation

KEY = b"\0k"
ALL_ONES = (1 << 64) - 1
MIB = 1 << 20
GET, EXISTS, COUNT = Opcode.SUBDOC_GET, Opcode.SUBDOC_EXISTS, Opcode.SUBDOC_GET_COUNT
UPSERT, REMOVE, COUNTER = Opcode.SUBDOC_DICT_UPSERT, Opcode.SUBDOC_DELETE, Opcode.SUBDOC_COUNTER
PARENTS, XATTR, MACRO, BINARY = 1, 4, 0x10, 0x20
MKDOC, ADD, DELETED, AS_DELETED, REVIVE, REPLICA_READ = 1, 2, 4, 8, 16, 32
NOWHERE = 99


def one(
    peer: Peer, opcode: int, path: bytes, value: bytes = b"", *, flags: int = 0, doc: int | None = None, vbid: int = 1,
    more: bytes = b"", **fields: Any,
) -> Frame:  # fmt: skip
    extras = struct.pack(">HB", len(path), flags) + more + (bytes((doc,)) if doc is not None else b"")
    return peer.call(opcode, vbid=vbid, key=KEY, extras=extras, value=path + value, **fields)


def spec(opcode: int, path: bytes, value: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack(">BBHI", opcode, flags, len(path), len(value)) + path + value


def look(opcode: int, path: bytes, flags: int = 0) -> bytes:
    return struct.pack(">BBH", opcode, flags, len(path)) + path


def mutate(peer: Peer, *specs: bytes, doc: int | None = None, vbid: int = 1, **fields: Any) -> Frame:
    extras = bytes((doc,)) if doc is not None else b""
    fields = {"extras": extras, "value": b"".join(specs), **fields}
    return peer.call(Opcode.SUBDOC_MULTI_MUTATION, vbid=vbid, key=KEY, **fields)


def look_up(peer: Peer, *specs: bytes, doc: int | None = None, vbid: int = 1, **fields: Any) -> Frame:
    extras = bytes((doc,)) if doc is not None else b""
    fields = {"extras": extras, "value": b"".join(specs), **fields}
    return peer.call(Opcode.SUBDOC_MULTI_LOOKUP, vbid=vbid, key=KEY, **fields)


def reason(frame: Frame) -> tuple[int, bool]:
    """Status, and whether the body says why."""
    return frame.status, bool(frame.value and json.loads(frame.value)["error"]["context"])


@pytest.fixture
def node() -> SimulatedNode:
    node = SimulatedNode()
    node.set_doc(1, "k", b'{"a":1,"n":9223372036854775807,"big":9223372036854775808}', flags=5)
    return node


# -------------------------------------------------------------------------------------------------------------- locks


@rule("KV-SUBDOC-01")
@of_release("7.2")
def test_locked_documents(node: SimulatedNode, peer: Peer) -> None:
    old = node.connect(features=WITHOUT_XERROR)
    cas = peer.call(Opcode.GET_LOCKED, vbid=1, key=KEY).cas
    requests = {
        "get": lambda who, cas: one(who, GET, b"a", cas=cas),
        "exists": lambda who, cas: one(who, EXISTS, b"a", cas=cas),
        "lookup": lambda who, cas: look_up(who, look(GET, b"a"), look(Opcode.GET, b""), cas=cas),
        "document": lambda who, cas: one(who, GET, b"$document", flags=XATTR, cas=cas),
        "upsert": lambda who, cas: one(who, UPSERT, b"a", b"2", cas=cas),
        "mutation": lambda who, cas: mutate(who, spec(UPSERT, b"a", b"2"), cas=cas),
    }
    for name, request in requests.items():
        for given in (0, ALL_ONES):
            assert reason(request(peer, given)) == (Status.LOCKED, False), name
            assert reason(request(old, given)) == (Status.TMPFAIL, False), name
    for name in ("get", "exists", "lookup", "document"):
        answer = requests[name](peer, 77)
        assert (answer.status, answer.cas) == (0, 77)
    for name in ("upsert", "mutation"):
        assert requests[name](peer, 77).status == Status.LOCKED
        assert requests[name](old, 77).status == Status.KEY_EEXISTS
    assert one(peer, UPSERT, b"a", b"2", doc=ADD).status == Status.KEY_EEXISTS
    assert requests["upsert"](peer, cas).status == 0
    assert requests["upsert"](peer, 0).status == 0


# ------------------------------------------------------------------------------------------------------------- checks


@rule("KV-SUBDOC-02")
@pytest.mark.parametrize(
    ("opcode", "fields"),
    [
        (GET, {"extras": b"\0\1"}),
        (GET, {"extras": b"\0\1\0\0\0\0\0"}),
        (GET, {"extras": b"\0\1\0\x40"}),
        (GET, {"extras": b"\0\5\0"}),
        (GET, {"extras": b"\0\1\0", "value": b"pv"}),
        (GET, {"extras": b"\0\1\1"}),
        (GET, {"extras": b"\0\1\x80"}),
        (UPSERT, {"extras": b"\0\1\x08", "value": b"p1"}),
        (Opcode.SUBDOC_MULTI_LOOKUP, {"value": b"\xc5\x40\0\1p"}),
        (GET, {"extras": b"\0\1\0\1"}),
        (GET, {"extras": b"\0\0\0", "value": b""}),
        (UPSERT, {"extras": b"\0\1\0"}),
        (UPSERT, {"extras": b"\0\1\2", "value": b"p1"}),
        (UPSERT, {"extras": b"\0\1\0\3", "value": b"p1"}),
        (UPSERT, {"extras": b"\0\1\0\2", "value": b"p1", "cas": 5}),
        (UPSERT, {"extras": b"\0\1\4\x08", "value": b"p1"}),
        (UPSERT, {"extras": b"\0\1\0\x09", "value": b"p1"}),
        (REMOVE, {"extras": b"\0\1\0\1"}),
        (REMOVE, {"extras": b"\4\1\0", "value": b"p" * 1025}),
        (Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR, {"extras": b"\0\1\0"}),
        (Opcode.SUBDOC_ARRAY_INSERT, {"extras": b"\0\1\0\1", "value": b"p1"}),
        (Opcode.SUBDOC_MULTI_LOOKUP, {"extras": bytes(4)}),
        (Opcode.SUBDOC_MULTI_LOOKUP, {"extras": b"\x20"}),
        (Opcode.SUBDOC_MULTI_MUTATION, {"extras": b"\3"}),
        (Opcode.SUBDOC_MULTI_MUTATION, {"extras": b"\x10"}),
        (Opcode.SUBDOC_MULTI_MUTATION, {"extras": b"\x1c"}),
        (Opcode.SUBDOC_MULTI_MUTATION, {"value": spec(UPSERT, b"p", b"1")[:-1]}),
        (Opcode.SUBDOC_MULTI_MUTATION, {"value": spec(UPSERT, b"p")}),
        (Opcode.SUBDOC_MULTI_MUTATION, {"value": spec(Opcode.SET, b"p", b"1")}),
        (Opcode.SUBDOC_MULTI_LOOKUP, {"value": look(GET, b"")}),
    ],
)
def test_a_fault_of_the_request_is_answered_first(node: SimulatedNode, opcode: int, fields: dict[str, Any]) -> None:
    fields = {"value": b"p", **fields}
    answer = node.connect(user="consumer").call(opcode, vbid=NOWHERE, key=KEY, **fields)
    assert reason(answer) == (Status.EINVAL, True)


@rule("KV-SUBDOC-20")
@pytest.mark.parametrize(
    ("opcode", "extras", "value", "context"),
    [
        (GET, b"", b"p", "Invalid extras section"),
        (GET, b"\0\1", b"p", "Invalid extras section"),
        (GET, b"\0\1\0\x40", b"p", "Invalid extras section"),
        (GET, b"\0\1\0\0\0\0\0", b"p", "Request extras invalid"),
        (GET, b"\0\1\0\0\0\0\0\0", b"", "Path length can't exceed value"),
        (GET, b"\4\1\0", b"p", "Request path length exceeds maximum"),
        (UPSERT, b"\0\1\0" + bytes(6), b"p1", "Invalid extras section"),
        (UPSERT, b"\4\1\2\x1f", b"p" * 1025, "Request path length exceeds maximum"),
        (Opcode.SUBDOC_MULTI_LOOKUP, bytes(2), b"p", "Request extras invalid"),
        (Opcode.SUBDOC_MULTI_LOOKUP, bytes(4), b"p", "Request extras invalid"),
        (Opcode.SUBDOC_MULTI_LOOKUP, b"\x40", b"p", "Request extras invalid"),
        (Opcode.SUBDOC_MULTI_MUTATION, bytes(2), b"p", "Request extras invalid"),
    ],
)
def test_what_is_said_of_extras_and_long_paths(
    peer: Peer, opcode: int, extras: bytes, value: bytes, context: str
) -> None:
    answer = peer.call(opcode, vbid=1, key=KEY, extras=extras, value=value)
    assert (answer.status, json.loads(answer.value)["error"]["context"]) == (Status.EINVAL, context)


@rule("KV-SUBDOC-02")
def test_a_value_is_missed_before_a_name_is_judged(peer: Peer) -> None:
    assert one(peer, UPSERT, b"!bad", flags=XATTR).status == Status.EINVAL
    assert one(peer, UPSERT, b"!bad", b"1", flags=XATTR).status == Status.XATTR_EINVAL
    assert mutate(peer, spec(UPSERT, b"!bad", flags=XATTR)).status == Status.XATTR_EINVAL


@rule("KV-SUBDOC-03")
@of_release("7.2")
def test_several_attributes_in_a_request(node: SimulatedNode, peer: Peer) -> None:
    both = spec(UPSERT, b"u.x", b"1", XATTR | PARENTS), spec(UPSERT, b"v", b"1", XATTR)
    assert reason(mutate(peer, *both)) == (Status.SUBDOC_XATTR_INVALID_KEY_COMBO, False)
    assert mutate(peer, both[0], spec(UPSERT, b"u.y", b"1", XATTR)).status == 0
    refused = look_up(peer, look(GET, b"u", XATTR), look(GET, b"v", XATTR))
    assert reason(refused) == (Status.SUBDOC_XATTR_INVALID_KEY_COMBO, False)
    assert look_up(peer, look(GET, b"$document", XATTR), look(GET, b"u", XATTR), look(GET, b"$XTOC", XATTR)).status == 0
    newer = SimulatedNode(release="7.6")
    newer.set_doc(1, "k", b"{}")
    assert mutate(newer.connect(), *both).status == 0


@rule("KV-SUBDOC-04")
@of_release("7.2")
def test_what_came_with_later_releases(node: SimulatedNode, peer: Peer) -> None:
    newer = SimulatedNode(release="7.6")
    newer.set_doc(1, "k", b"{}")
    for who, is_known in ((peer, False), (newer.connect(), True)):
        answers = [
            one(who, UPSERT, b"u", b"1", flags=XATTR | BINARY),
            one(who, GET, b"u", flags=XATTR | BINARY),
            one(who, GET, b"u", doc=REPLICA_READ),
            look_up(who, look(GET, b"u"), doc=REPLICA_READ),
            one(who, UPSERT, b"a", b"1", more=bytes(8)),
            mutate(who, spec(UPSERT, b"a", b"1"), extras=bytes(8)),
        ]
        assert [answer.status == Status.EINVAL for answer in answers] == [not is_known] * len(answers)


@rule("KV-SUBDOC-05")
def test_which_paths_go_together(peer: Peer) -> None:
    combo = (Status.SUBDOC_INVALID_COMBO, True)
    assert look_up(peer, *[look(EXISTS, b"a")] * 16).status == 0
    assert reason(look_up(peer, *[look(EXISTS, b"a")] * 17)) == combo
    assert reason(look_up(peer)) == combo
    assert reason(look_up(peer, look(0x77, b"a"))) == combo
    assert reason(look_up(peer, look(UPSERT, b"a"))) == combo
    assert reason(mutate(peer, spec(GET, b"a"))) == combo
    assert reason(mutate(peer, spec(Opcode.DELETE, b""), spec(UPSERT, b"a", b"1"))) == combo
    assert reason(mutate(peer, spec(UPSERT, b"a", b"1"), spec(Opcode.DELETE, b""))) == combo
    late = look_up(peer, look(GET, b"a"), look(GET, b"u", XATTR))
    assert reason(late) == (Status.SUBDOC_INVALID_XATTR_ORDER, False)


@rule("KV-SUBDOC-06")
def test_attributes_in_requests(node: SimulatedNode, peer: Peer) -> None:
    for path in (b"!u", b"u" * 16, b"_", b"$", b"", b"u\0", b".u", b"\xff"):
        expected = Status.XATTR_EINVAL
        assert reason(one(peer, GET, path, flags=XATTR)) == (expected, True), path
        assert reason(look_up(peer, look(GET, path, XATTR))) == (expected, True), path
    assert one(peer, GET, b"u" * 15, flags=XATTR).status == Status.SUBDOC_PATH_ENOENT
    plain = node.connect(features=[feature for feature in USUAL_FEATURES if feature != Feature.XATTR])
    assert reason(one(plain, GET, b"u", flags=XATTR)) == (Status.NOT_SUPPORTED, True)
    virtual = one(peer, UPSERT, b"$document.x", b"1", flags=XATTR)
    assert reason(virtual) == (Status.SUBDOC_XATTR_CANT_MODIFY_VATTR, False)
    assert reason(one(peer, GET, b"$other", flags=XATTR)) == (Status.SUBDOC_XATTR_UNKNOWN_VATTR, False)
    macro = one(peer, UPSERT, b"u", b'"${Mutation.other}"', flags=XATTR | MACRO)
    assert reason(macro) == (Status.SUBDOC_XATTR_UNKNOWN_MACRO, False)
    document = one(peer, UPSERT, b"u", b'"${$document.other}"', flags=XATTR | MACRO)
    assert reason(document) == (Status.SUBDOC_XATTR_UNKNOWN_VATTR_MACRO, False)
    bare = one(peer, UPSERT, b"u", b'"${Mutation.CAS}"', flags=MACRO)
    assert reason(bare) == (Status.SUBDOC_XATTR_INVALID_FLAG_COMBO, True)


# ------------------------------------------------------------------------------------------------------------- access


@rule("KV-SUBDOC-07")
@of_release("7.2")
def test_attributes_of_the_system_need_a_privilege() -> None:
    users = Users(SeededRandom(), iterations=1)
    users.add("@admin", "secret")
    users.add("some", "secret", frozenset(("Read", "Upsert")))
    node = SimulatedNode(users=users)
    node.set_doc(1, "k", b'{"a":1}')
    admin, peer = node.admin, node.connect(user="some")
    assert one(admin, UPSERT, b"_s", b"1", flags=XATTR).status == 0
    for answer in (one(peer, GET, b"_s", flags=XATTR), one(peer, UPSERT, b"_s", b"1", flags=XATTR)):
        assert reason(answer) == (Status.EACCESS, True)
    found = look_up(peer, look(GET, b"$document.flags", XATTR), look(GET, b"_s", XATTR), look(GET, b"a"))
    assert found.status == Status.SUBDOC_MULTI_FAILURE
    denied = struct.pack(">HI", Status.EACCESS, 0)
    assert found.value == denied + denied + struct.pack(">HI", 0, 1) + b"1"
    changed = mutate(peer, spec(UPSERT, b"_s", b"1", XATTR))
    assert (changed.status, changed.value) == (Status.SUBDOC_MULTI_FAILURE, struct.pack(">BH", 0, Status.EACCESS))
    assert one(peer, GET, b"$XTOC", flags=XATTR).value == b"[]"
    for request in (
        lambda who: who.send(GET, vbid=1, key=KEY, extras=b"\0\2\4", value=b"_s"),
        lambda who: who.send(Opcode.SUBDOC_MULTI_LOOKUP, vbid=1, key=KEY, value=look(GET, b"_s", XATTR)),
    ):
        old = node.connect(user="some", features=WITHOUT_XERROR)
        assert request(old) == []
        assert old.closed


@rule("KV-SUBDOC-11")
def test_mutations_need_upsert_alone() -> None:
    users = Users(SeededRandom(), iterations=1)
    users.add("@admin", "secret")
    users.add("some", "secret", frozenset(("Upsert",)))
    users.add("other", "secret", ALL_PRIVILEGES - {"Upsert", "Administrator"})
    node = SimulatedNode(users=users)
    node.set_doc(1, "k", b'{"a":1}')
    peer, other = node.connect(user="some"), node.connect(user="other")
    for specs in ((spec(COUNTER, b"a", b"1"),), (spec(Opcode.DELETE, b""),)):
        assert reason(mutate(other, *specs)) == (Status.EACCESS, True)
        assert mutate(peer, *specs).status == 0


# --------------------------------------------------------------------------------------------------------- tombstones


@rule("KV-SUBDOC-08")
def test_creating_over_a_tombstone_that_is_not_seen(node: SimulatedNode, peer: Peer) -> None:
    node.delete_doc(1, "k")
    path: dict[str, Any] = {"path": b"_s", "value": b"1", "flags": XATTR}
    assert one(peer, UPSERT, doc=AS_DELETED | MKDOC, **path).status == Status.TMPFAIL
    assert one(peer, UPSERT, doc=AS_DELETED | ADD, **path).status == Status.NOT_STORED
    assert one(peer, UPSERT, doc=AS_DELETED | ADD | DELETED, **path).status == Status.KEY_EEXISTS
    assert one(peer, UPSERT, doc=AS_DELETED | MKDOC | DELETED, **path).status == Status.SUBDOC_SUCCESS_DELETED
    new: dict[str, Any] = {"vbid": 2, **path}
    assert one(peer, UPSERT, doc=AS_DELETED | ADD, **new).status == Status.SUBDOC_SUCCESS_DELETED


@rule("KV-SUBDOC-09")
def test_deleting_a_tombstone(node: SimulatedNode, peer: Peer) -> None:
    node.delete_doc(1, "k")
    assert mutate(peer, spec(Opcode.DELETE, b""), doc=DELETED).status == Status.SUBDOC_SUCCESS_DELETED
    assert mutate(peer, spec(UPSERT, b"u", b"1", XATTR), doc=DELETED).status == Status.SUBDOC_SUCCESS_DELETED
    assert mutate(peer, spec(Opcode.DELETE, b""), doc=DELETED).status == Status.KEY_ENOENT
    system = mutate(peer, spec(UPSERT, b"_s", b"1", XATTR), spec(Opcode.DELETE, b""), doc=DELETED)
    assert system.status == Status.SUBDOC_SUCCESS_DELETED


@rule("KV-SUBDOC-10")
def test_flags_of_deletions(node: SimulatedNode, peer: Peer) -> None:
    def told() -> tuple[int, int]:
        answer = peer.call(Opcode.GET_META, vbid=1, key=KEY)
        is_deleted, flags, *_ = struct.unpack(">IIIQ", answer.extras)
        return is_deleted, flags

    assert one(peer, UPSERT, b"_s", b"1", flags=XATTR).status == 0
    assert mutate(peer, spec(Opcode.DELETE, b"")).status == 0
    assert told() == (1, 5)
    assert one(peer, UPSERT, b"_s", b"2", flags=XATTR, doc=DELETED).status == Status.SUBDOC_SUCCESS_DELETED
    assert told() == (1, 5)
    assert mutate(peer, spec(UPSERT, b"_s", b"3", XATTR), doc=DELETED | REVIVE).status == 0
    assert told() == (0, 5)


# --------------------------------------------------------------------------------------------------- sizes and numbers


@rule("KV-SUBDOC-12")
def test_sizes(node: SimulatedNode, peer: Peer) -> None:
    text = b'"' + b"x" * (MIB - 20) + b'"'
    assert one(peer, UPSERT, b"_s", text, flags=XATTR).status == 0
    assert one(peer, UPSERT, b"_t", text, flags=XATTR).status == Status.E2BIG
    body = b"b" * (20 * MIB)
    assert peer.call(Opcode.SET, vbid=1, key=KEY, extras=bytes(8), value=body).status == 0, (
        "what is the system's is apart"
    )
    node.set_doc(2, "k", b"{}")
    assert one(peer, UPSERT, b"u", text, flags=XATTR, vbid=2).status == 0
    assert peer.call(Opcode.SET, vbid=2, key=KEY, extras=bytes(8), value=body).status == Status.E2BIG
    assert peer.call(Opcode.APPEND, vbid=2, key=KEY, value=body[: -MIB // 2]).status == Status.E2BIG
    assert peer.call(Opcode.SET, vbid=2, key=KEY, extras=bytes(8), value=body[:-MIB]).status == 0
    assert stored(node, KEY, 2).value.startswith(encode_xattrs({"u": text}))


@rule("KV-SUBDOC-13")
@of_release("7.2")
def test_counters(peer: Peer) -> None:
    for delta in (b"0", b"x", b"1.5", b"", b"+1", b"18446744073709551616", b"-18446744073709551616", b"01", b'"1"'):
        answer = one(peer, COUNTER, b"a", delta)
        assert answer.status == (Status.SUBDOC_DELTA_EINVAL if delta else Status.EINVAL), delta
    assert one(peer, COUNTER, b"n", b"1").status == Status.SUBDOC_VALUE_CANTINSERT
    assert one(peer, COUNTER, b"n", b"-1").value == b"9223372036854775806"
    assert one(peer, COUNTER, b"big", b"1").status == Status.SUBDOC_NUM_ERANGE
    made = one(peer, COUNTER, b"new", b"-9223372036854775808")
    if made.status == Status.SUBDOC_DELTA_EINVAL:
        return  # 7.2.9 takes no numbers of more than 63 bits, as the recorded server of that release did
    assert (made.status, made.value) == (0, b"-9223372036854775808")
    assert one(peer, COUNTER, b"new", b"-1").status == Status.SUBDOC_VALUE_CANTINSERT
    assert one(peer, COUNTER, b"n", b"9223372036854775808").value == b"-2"
    assert one(peer, COUNTER, b"n", b"-9223372036854775809").value == b"9223372036854775805"
    assert one(peer, COUNTER, b"n", b"18446744073709551615").value == b"9223372036854775804"


@rule("KV-SUBDOC-13")
def test_a_wide_delta_is_none_in_7_6() -> None:
    node = SimulatedNode(release="7.6")
    node.set_doc(1, "k", b'{"n":1}')
    assert one(node.connect(), COUNTER, b"n", b"9223372036854775808").status == Status.SUBDOC_DELTA_EINVAL


@rule("KV-SUBDOC-14")
def test_a_cas_of_what_is_not_there(peer: Peer) -> None:
    assert one(peer, UPSERT, b"a", b"1", doc=MKDOC, cas=5, vbid=2).status == 0
    assert one(peer, UPSERT, b"a", b"1", cas=5, vbid=3).status == Status.KEY_ENOENT
    assert reason(one(peer, UPSERT, b"a", b"1", doc=ADD, cas=5, vbid=3)) == (Status.EINVAL, True)
    assert one(peer, UPSERT, b"a", b"1", doc=MKDOC, cas=5, vbid=2).status == Status.KEY_EEXISTS


@rule("KV-SUBDOC-21")
@of_release("7.2")
def test_an_attribute_with_a_short_name_stays_in_7_2(node: SimulatedNode, peer: Peer) -> None:
    for name in (b"u", b"long"):
        assert one(peer, UPSERT, name, b"1", flags=XATTR).status == 0
    before = node.vbucket(1).high_seqno
    assert one(peer, REMOVE, b"u", flags=XATTR).status == Status.ENOMEM
    several = spec(REMOVE, b"u", flags=XATTR) + spec(UPSERT, b"new", b"1")
    answer = peer.call(Opcode.SUBDOC_MULTI_MUTATION, vbid=1, key=KEY, value=several)
    assert (answer.status, answer.value) == (Status.ENOMEM, b"")
    assert node.vbucket(1).high_seqno == before
    assert one(peer, REMOVE, b"long", flags=XATTR).status == 0


@rule("KV-SUBDOC-21")
def test_an_attribute_with_a_short_name_goes_in_7_6() -> None:
    node = SimulatedNode(release="7.6")
    node.set_doc(1, "k", b"{}")
    peer = node.connect()
    assert one(peer, UPSERT, b"u", b"1", flags=XATTR).status == 0
    assert one(peer, REMOVE, b"u", flags=XATTR).status == 0


@rule("KV-SUBDOC-22")
def test_the_first_revision_is_1(node: SimulatedNode, peer: Peer) -> None:
    for _ in range(2):
        node.set_doc(2, "other", b"{}")
    assert peer.call(Opcode.DELETE, vbid=2, key=b"\0other").status == 0
    assert one(peer, UPSERT, b"a", b"1", doc=MKDOC, vbid=2).status == 0
    # A server that does not look for a tombstone on disk, as its filter of deleted keys excludes one, begins at 4.
    assert stored_mutation(node, KEY, 2).rev_seqno in (1, 4)
    node.set_doc(2, "third", b"{}")
    assert stored_mutation(node, b"\0third", 2).rev_seqno == 4
