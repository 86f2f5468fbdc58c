"""GET_EX and GET_EX_REPLICA of 8.0: documents as they are stored. The answers are those of a recorded 8.0.1."""

from __future__ import annotations

import struct

from dcpstream.wire import Datatype, Feature, Opcode, Status
from dcpstream.wire.messages import REQUESTS
from dcpstream.wire.messages.admin import FOREIGN
from dcpstream.wire.release import RELEASES
from dcpstream.wire.values import encode_xattrs
from dcpstream_node.testing.simulation import USUAL_FEATURES
from tests.kit.cases import each_case
from tests.kit.engine import Talker, engine_of
from tests.kit.rules import rule

FEATURES = (*USUAL_FEATURES, Feature.SNAPPY_EVERYWHERE)
BODY = b'{"b":3}'
KEY = b"\0x"
CAS = 1 << 40


def client(**options) -> Talker:
    peer = Talker(engine_of(release="8.0"), features=FEATURES, **options)
    value = encode_xattrs({"_s": b'{"a":1}', "u": b"2"}) + BODY
    meta = struct.pack(">IIQQ", 5, 0, 1, CAS)
    assert peer.call(Opcode.SET_WITH_META, key=KEY, value=value, extras=meta, datatype=5).status == Status.SUCCESS
    return peer


@rule("KV-GETEX-01")
def test_a_document_comes_with_its_attributes() -> None:
    peer = client()
    found = peer.call(Opcode.GET_EX, key=KEY)
    assert (found.status, found.datatype, found.extras, found.cas) == (0, 5, struct.pack(">I", 5), CAS)
    assert found.value == encode_xattrs({"_s": b'{"a":1}', "u": b"2"}) + BODY
    assert peer.call(Opcode.GET_EX, key=b"\0none").status == Status.KEY_ENOENT
    assert peer.call(Opcode.GET_LOCKED, key=KEY, extras=bytes(4)).status == Status.SUCCESS
    locked = peer.call(Opcode.GET_EX, key=KEY)
    assert (locked.status, locked.cas) == (Status.SUCCESS, 2**64 - 1)


@rule("KV-GETEX-01")
def test_without_the_privilege_the_attributes_of_the_system_stay_out_and_in_the_store() -> None:
    peer = client()
    assert peer.call(Opcode.DROP_PRIVILEGE, key=b"SystemXattrRead").status == Status.SUCCESS
    for _ in range(2):  # 8.0.1 spoils the stored document
        found = peer.call(Opcode.GET_EX, key=KEY)
        assert (found.datatype, found.value) == (5, encode_xattrs({"u": b"2"}) + BODY)
    only = encode_xattrs({"_s": b"1"}) + BODY
    meta = struct.pack(">IIQQ", 0, 0, 2, 2 * CAS)
    assert peer.call(Opcode.SET_WITH_META, key=KEY, value=only, extras=meta, datatype=5).status == Status.SUCCESS
    found = peer.call(Opcode.GET_EX, key=KEY)
    assert (found.datatype, found.value) == (int(Datatype.JSON), BODY)


@rule("KV-GETEX-01")
def test_a_client_needs_three_features() -> None:
    base = set(FEATURES) - {Feature.XATTR, Feature.JSON, Feature.SNAPPY_EVERYWHERE}
    texts = []
    for more in ((), (Feature.XATTR,), (Feature.XATTR, Feature.JSON)):
        peer = Talker(engine_of(release="8.0"), features=sorted(base | set(more)))
        refused = peer.call(Opcode.GET_EX, key=KEY)
        assert refused.status == Status.NOT_SUPPORTED
        texts.append(refused.value)
    assert [text.split(b'"')[5].split()[0] for text in texts] == [b"Xattr", b"JSON", b"SnappyEverywhere"]


@rule("KV-GETEX-01")
def test_each_has_its_kind_of_vbucket() -> None:
    peer = client()
    assert peer.call(Opcode.GET_EX_REPLICA, key=KEY).status == Status.NOT_MY_VBUCKET
    assert peer.call(Opcode.SET_VBUCKET, extras=b"\2").status == Status.SUCCESS
    assert peer.call(Opcode.GET_EX, key=KEY).status == Status.NOT_MY_VBUCKET
    assert peer.call(Opcode.GET_EX_REPLICA, key=KEY).value.endswith(BODY)
    assert peer.call(Opcode.GET_EX_REPLICA, key=b"\0none").status == Status.KEY_ENOENT


@rule("KV-GETEX-01")
@each_case("fields", [{"extras": bytes(4)}, {"value": b"v"}, {"cas": 1}, {"datatype": 1}, {"key": b""}])
def test_other_parts_are_refused(fields) -> None:
    assert client().call(Opcode.GET_EX, **({"key": KEY} | fields)).status == Status.EINVAL


@rule("KV-REQ-23")
def test_commands_of_newer_servers_are_refused_by_those_that_have_them() -> None:
    """As a recorded 8.0.1 without these services does it: first the parts, then NOT_SUPPORTED."""
    for name, release in RELEASES.items():
        peer = Talker(engine_of(release=name))
        for layout in REQUESTS:
            if layout.opcode not in FOREIGN:
                continue
            status = peer.call(layout.opcode).status
            if not release.knows(layout.since):
                assert status == Status.UNKNOWN_COMMAND
            else:
                gone = not release.knows(layout.since, layout.until)
                expected = (
                    {Status.NOT_SUPPORTED}
                    if gone or layout.refused
                    else {Status.NOT_SUPPORTED, Status.EINVAL, Status.KEY_ENOENT}
                )
                assert status in expected, layout.name
    peer = Talker(engine_of(release="8.0"))
    for opcode, fields, status in (
        (0x2A, {"value": b"{}"}, Status.NOT_SUPPORTED),
        (0x2B, {}, Status.EINVAL),
        (0x70, {}, Status.EINVAL),
        (0x70, {"value": b"{}", "datatype": 1}, Status.NOT_SUPPORTED),
        (0x73, {}, Status.NOT_SUPPORTED),
        (0x73, {"value": b"{}"}, Status.EINVAL),
        (0xE0, {"key": b"k"}, Status.EINVAL),
        (0xE1, {}, Status.KEY_ENOENT),
        (0xE3, {"key": b"k", "value": b"{}"}, Status.KEY_ENOENT),
        (0x4B, {}, Status.UNKNOWN_COMMAND),
    ):
        assert peer.call(opcode, **fields).status == status, hex(opcode)
