"""Versions from elsewhere (with-meta commands), RETURN_META, and what GET_META tells."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from dcpstream.model import BucketSettings, ConflictResolution
from dcpstream.wire import Feature, Frame, Opcode, Status, encode_request
from dcpstream.wire.values import encode_xattrs
from dcpstream_node.testing.simulation import START_UNIX_S, USUAL_FEATURES, Peer, SimulatedNode
from tests.kit.cases import each_case
from tests.kit.rules import of_release, rule
from tests.kit.streams import PENDING, REPLICA

KEY = b"\0k"
LATER = 4_000_000_000
"""An expiration that does not come while a test runs."""
STORE = bytes(8)
MIB = 1 << 20
FORCE, TIMES, REGENERATE, SKIP, EXPIRATION = 1, 2, 4, 8, 16
WITHOUT_JSON = tuple(feature for feature in USUAL_FEATURES if feature != Feature.JSON)
SET, ADD, DELETE = Opcode.SET_WITH_META, Opcode.ADD_WITH_META, Opcode.DELETE_WITH_META


def extras_of(
    *, flags: int = 7, time: int = 0, rev: int = 5, cas: int = 0x1234, options: int | None = None, nmeta: int = 0
) -> bytes:
    extras = struct.pack(">IIQQ", flags, time, rev, cas)
    extras += struct.pack(">I", options) if options is not None else b""
    return extras + (struct.pack(">H", nmeta) if nmeta else b"")


def write(peer: Peer, opcode: int = SET, value: bytes = b"v", *, datatype: int = 0, cas: int = 0, **meta: int) -> Frame:
    value = b"" if opcode == DELETE and not datatype else value
    return peer.call(opcode, vbid=1, key=KEY, value=value, datatype=datatype, cas=cas, extras=extras_of(**meta))


class Told:
    """The answer to GET_META with the datatype."""

    def __init__(self, peer: Peer) -> None:
        answer = peer.call(Opcode.GET_META, vbid=1, key=KEY, extras=b"\2")
        assert answer.status == 0
        self.cas = answer.cas
        fields = struct.unpack(">IIIQB", answer.extras)
        self.is_deleted, self.flags, self.time, self.rev, self.datatype = fields

    @property
    def is_of_now(self) -> bool:
        """True if the time of the deletion is that of its CAS, in seconds."""
        return abs(self.time - self.cas // 1_000_000_000) <= 1


@rule("KV-META-01")
@pytest.mark.parametrize("opcode", [SET, ADD, DELETE])
@pytest.mark.parametrize("cas", [0, (1 << 64) - 1])
@of_release("7.2")
def test_a_cas_that_none_can_have(peer: Peer, opcode: Opcode, cas: int) -> None:
    for options in (0, SKIP, SKIP | REGENERATE):
        answer = peer.call(opcode, vbid=1, key=b"\0x", extras=extras_of(cas=cas, options=options))
        assert (answer.status, answer.value) == (Status.KEY_EEXISTS, b"")
        elsewhere = peer.call(opcode, vbid=99, key=b"\0x", extras=extras_of(cas=cas, options=options))
        assert elsewhere.status == Status.NOT_MY_VBUCKET
    for extreme in (1, (1 << 64) - 2):
        answer = peer.call(SET, vbid=1, key=b"\0%d" % extreme, extras=extras_of(cas=extreme))
        assert (answer.status, answer.cas) == (0, extreme)


@rule("KV-META-02")
@pytest.mark.parametrize(
    ("options", "is_right"),
    [
        (0, True), (FORCE, True), (SKIP, True), (EXPIRATION, True), (0x20, True), (0x80000000, True),
        (REGENERATE | SKIP, True), (REGENERATE | FORCE, True), (REGENERATE, False), (TIMES, False),
        (TIMES | SKIP, False),
    ],
)  # fmt: skip
def test_options(peer: Peer, options: int, is_right: bool) -> None:
    for opcode in (SET, ADD, DELETE):
        answer = peer.call(opcode, vbid=1, key=b"\0%d" % opcode, extras=extras_of(options=options))
        assert (answer.status, answer.value) == (0 if is_right else Status.EINVAL, b"")


@rule("KV-META-02")
def test_options_of_a_bucket_that_resolves_by_time() -> None:
    peer = SimulatedNode(settings=BucketSettings(conflict_resolution=ConflictResolution.LWW)).connect()
    for options, is_right in (
        (0, False), (FORCE, False), (SKIP, False), (TIMES, True), (TIMES | SKIP, True), (REGENERATE | SKIP, True),
        (REGENERATE | FORCE, True), (REGENERATE, False), (REGENERATE | TIMES, False),
    ):  # fmt: skip
        answer = peer.call(SET, vbid=1, key=b"\0%d" % options, extras=extras_of(options=options))
        assert answer.status == (0 if is_right else Status.EINVAL), options


@rule("KV-META-20")
@each_case("state", [REPLICA, PENDING])
def test_a_forced_write_is_not_taken_in_other_roles_since_80(state: int) -> None:
    node = SimulatedNode(release="8.0")
    node.set_vbucket(1, state)
    peer = node.connect()
    peer.deliver(encode_request(SET, vbid=1, key=KEY, extras=extras_of(options=FORCE)))
    assert [frame.status for frame in peer.take()] == ([Status.NOT_MY_VBUCKET] if state == REPLICA else [])
    assert node.vbucket(1).high_seqno == 0


@rule("KV-META-02", "KV-META-20")
@each_case("state", [REPLICA, PENDING])
@each_case("release", ["7.2", "7.6"])
def test_a_forced_write_is_taken_in_other_roles(release: str, state: int) -> None:
    node = SimulatedNode(release=release)
    node.set_vbucket(1, state)
    peer = node.connect()
    for opcode in (SET, DELETE):
        for options in (FORCE, FORCE | REGENERATE):
            assert peer.call(opcode, vbid=1, key=KEY, extras=extras_of(rev=1, options=options)).status == 0
    if state == REPLICA:
        assert write(peer, options=SKIP).status == Status.NOT_MY_VBUCKET


@rule("KV-META-03")
@pytest.mark.parametrize(
    ("extension", "is_right"),
    [
        (b"\1", True),
        (b"\1\1\0\2ab", True),
        (b"\1\2\0\0\1\0\1x", True),
        (b"\2", False),
        (b"\1\3\0\0", False),
        (b"\1\1\0\3ab", False),
        (b"\1\1\0", False),
        (b"x", False),
    ],
)
def test_further_metadata(node: SimulatedNode, peer: Peer, extension: bytes, is_right: bool) -> None:
    for extras in (extras_of(nmeta=len(extension)), extras_of(rev=6, options=0, nmeta=len(extension))):
        answer = peer.call(SET, vbid=1, key=KEY, value=b"v" + extension, extras=extras)
        assert answer.status == (0 if is_right else Status.EINVAL)
        assert bool(answer.value) == (not is_right)
    if is_right:
        assert peer.call(Opcode.GET, vbid=1, key=KEY).value == b"v"
    answer = peer.call(DELETE, vbid=1, key=KEY, value=extension, extras=extras_of(rev=9, nmeta=len(extension)))
    assert answer.status == (0 if is_right else Status.EINVAL)


@rule("KV-META-04")
@of_release("7.2")
def test_the_datatype_is_kept_as_sent_or_found(node: SimulatedNode, peer: Peer) -> None:
    for rev, (value, sent, stored) in enumerate([(b"{}", 0, 0), (b"no", 1, 1), (b"{}", 1, 1), (b"", 1, 0)], 10):
        assert write(peer, value=value, datatype=sent, rev=rev).status == 0
        assert Told(peer).datatype == stored
    old = node.connect(features=WITHOUT_JSON)
    xattrs = encode_xattrs({"u": b"1"})
    for rev, (value, sent, stored) in enumerate(
        [(b"{}", 0, 1), (b"no", 0, 0), (xattrs + b"{}", 4, 5), (xattrs + b"no", 4, 4), (xattrs, 4, 4)], 20
    ):
        assert write(old, value=value, datatype=sent, rev=rev).status == 0
        assert Told(peer).datatype == stored


@rule("KV-META-05")
@of_release("7.2", "8.0")
def test_sizes(peer: Peer, release: str) -> None:
    large = b'"' + b"x" * MIB + b'"'
    system = write(peer, value=encode_xattrs({"_s": large}), datatype=4)
    expected = Status.EINVAL if release == "7.2" else Status.XATTR_EINVAL
    assert (system.status, bool(system.value)) == (expected, True)
    body = b"b" * (19 * MIB)
    assert write(peer, value=encode_xattrs({"u": large}, body), datatype=4).status == Status.E2BIG
    assert write(peer, value=encode_xattrs({"u": large[: MIB // 2] + b'"'}, body), datatype=4).status == 0


@rule("KV-META-06")
def test_the_cas_in_the_header(node: SimulatedNode, peer: Peer) -> None:
    for opcode in (SET, ADD):
        for options in (None, SKIP):
            extras = extras_of(options=options)
            answer = peer.call(opcode, vbid=1, key=b"\0missing", value=b"v", cas=9, extras=extras)
            assert answer.status == Status.KEY_ENOENT
    other = peer.call(DELETE, vbid=1, key=b"\0other", cas=9, extras=extras_of())
    assert other.status == Status.KEY_EEXISTS
    # A server that has just looked for a document on disk remembers that, so this is a key that nobody asked for.
    assert write(peer, DELETE, cas=9, options=SKIP).status == 0
    tombstone = Told(peer).cas
    assert write(peer, SET, cas=tombstone + 1, rev=9).status == Status.KEY_ENOENT
    assert write(peer, DELETE, cas=tombstone + 1, rev=9).status == Status.KEY_EEXISTS
    assert write(peer, SET, cas=tombstone, rev=9).status == 0
    assert write(peer, SET, cas=1, rev=10).status == Status.KEY_EEXISTS
    assert write(peer, SET, cas=0x1234, rev=10).status == 0


@rule("KV-META-07", "KV-META-10")
def test_a_deletion_from_elsewhere_keeps_what_is_the_systems(node: SimulatedNode, peer: Peer) -> None:
    xattrs = {"_s": b"1", "u": b"2"}
    assert write(peer, value=encode_xattrs(xattrs, b"{}"), datatype=4).status == 0
    assert write(peer, DELETE, rev=6, flags=9, time=77).status == 0
    item = node.vbucket(1).log.get(KEY)
    assert item is not None
    assert (item.is_deleted, item.value) == (True, encode_xattrs({"_s": b"1"}))
    told = Told(peer)
    assert (told.is_deleted, told.flags, told.rev, told.datatype, told.time) == (1, 9, 6, 4, 77)
    assert write(peer, DELETE, rev=7, options=EXPIRATION).status == 0
    log = node.vbucket(1).log
    assert bytes(log.read(2, 3).data)[1] == Opcode.DCP_DELETION, "the server does not keep that it expired"


@rule("KV-META-08")
def test_conflicts_of_equal_versions(peer: Peer) -> None:
    assert write(peer, flags=0x00000100).status == 0
    assert write(peer, flags=0x00000100).status == Status.KEY_EEXISTS
    assert write(peer, flags=0x00000002).status == 0, "2 comes after 0x100 with its bytes turned around"
    assert write(peer, flags=0x00000100).status == Status.KEY_EEXISTS
    xattrs = encode_xattrs({"u": b"1"}, b"v")
    assert write(peer, flags=2, value=xattrs, datatype=4).status == 0
    assert write(peer, flags=2, value=xattrs, datatype=4).status == Status.KEY_EEXISTS


@rule("KV-META-09")
def test_metadata_of_an_expired_document(node: SimulatedNode, peer: Peer) -> None:
    node.set_doc(1, "k", b"{}", flags=5, expiration=10)
    node.advance(11)
    told = Told(peer)
    assert (told.is_deleted, told.flags, told.rev, told.datatype) == (1, 5, 1, 1)
    assert told.time == START_UNIX_S + 10
    assert node.vbucket(1).high_seqno == 1
    assert write(peer, ADD, rev=9, cas=0).status == Status.KEY_EEXISTS
    assert write(peer, SET, rev=1, options=0).status == Status.KEY_EEXISTS
    assert node.vbucket(1).high_seqno == 1
    assert peer.call(Opcode.GET, vbid=1, key=KEY).status == Status.KEY_ENOENT
    assert node.vbucket(1).high_seqno == 2


@rule("KV-META-10")
def test_flags_of_deletions(node: SimulatedNode, peer: Peer, tmp_path: Path) -> None:
    disk = SimulatedNode(path=tmp_path)
    for where in (node, disk):
        where.set_doc(1, "k", b"{}", flags=5)
        where.delete_doc(1, "k")
    disk.flush()
    assert Told(disk.connect()).flags == 5
    disk.restart()
    assert Told(disk.connect()).flags == 5
    assert Told(peer).flags == 5
    assert write(peer, value=encode_xattrs({"_s": b"1"}, b"{}"), datatype=4, rev=9).status == 0
    node.delete_doc(1, "k")
    told = Told(peer)
    assert (told.is_deleted, told.flags, told.datatype) == (1, 0, 4)


@rule("KV-META-11")
def test_times_of_deletions(tmp_path: Path) -> None:
    node = SimulatedNode(path=tmp_path)
    peer = node.connect()
    for expiration, early in ((0, 0), (LATER, LATER)):
        node.set_doc(1, "k", b"{}", expiration=expiration)
        node.delete_doc(1, "k")
        assert Told(peer).time == early
        node.flush()
        assert Told(peer).is_of_now
    assert write(peer, DELETE, rev=50, options=REGENERATE | SKIP).status == 0
    assert Told(peer).time == 0
    node.flush()
    assert Told(peer).is_of_now
    assert write(peer, DELETE, rev=51, time=77).status == 0
    assert Told(peer).time == 77


@rule("KV-META-11")
@pytest.mark.parametrize("asks", ["stat", "observe", "time"])
def test_times_of_deletions_in_memory(node: SimulatedNode, peer: Peer, asks: str) -> None:
    node.set_doc(1, "k", b"{}")
    node.delete_doc(1, "k")
    assert Told(peer).time == 0
    if asks == "stat":
        node.flush()
        node.stats("vbucket-details 1")
    elif asks == "observe":
        node.flush()
        vbuuid = node.vbucket(1).vbuuid.to_bytes(8, "big")
        assert peer.call(Opcode.OBSERVE_SEQNO, vbid=1, value=vbuuid).status == 0
    else:
        node.advance(0.5)
    assert Told(peer).is_of_now


FLAGS = 0x07000007
"""Flags that are the same with their bytes turned around, as servers store them."""


def returning(
    peer: Peer, kind: int, value: bytes = b"{}", *, cas: int = 0, datatype: int = 0
) -> tuple[int, tuple[int, ...]]:
    extras = struct.pack(">III", kind, FLAGS, 0)
    answer = peer.call(Opcode.RETURN_META, vbid=1, key=KEY, value=value, cas=cas, extras=extras)
    assert answer.datatype == datatype
    return answer.status, struct.unpack(">IIQ", answer.extras) if answer.extras else ()


@rule("KV-META-12")
@of_release("7.2", "8.0")
def test_return_meta(node: SimulatedNode, peer: Peer, release: str) -> None:
    found = int(release != "7.2")
    assert returning(peer, 2, cas=99) == (Status.NOT_STORED, ())
    assert returning(peer, 2, datatype=found) == (0, (FLAGS, 0, 1))
    assert Told(peer).datatype == found
    assert returning(peer, 2) == (Status.NOT_STORED, ())
    assert returning(node.connect(features=WITHOUT_JSON), 1) == (0, (FLAGS, 0, 2))
    assert Told(peer).datatype == 1
    assert write(peer, value=encode_xattrs({"_s": b"1"}, b"old"), datatype=4, rev=9).status == 0
    assert returning(peer, 1, b"new") == (0, (FLAGS, 0, 10))
    assert Told(peer).datatype == 0
    assert returning(peer, 1, cas=5)[0] == Status.KEY_EEXISTS
    peer.call(Opcode.TOUCH, vbid=1, key=KEY, extras=struct.pack(">I", LATER))
    assert returning(peer, 3) == (0, (FLAGS, LATER, 12))
    assert returning(peer, 3)[0] == Status.KEY_ENOENT
    wrong = peer.call(Opcode.RETURN_META, vbid=99, key=KEY, extras=struct.pack(">III", 4, 0, 0))
    assert json.loads(wrong.value)["error"]["context"] == "Invalid mode"


@rule("KV-META-16")
def test_get_meta_reads_a_pending_vbucket(node: SimulatedNode) -> None:
    node.set_doc(1, "k", b"v")
    node.set_vbucket(1, PENDING)
    peer = node.connect()
    assert not Told(peer).is_deleted
    assert peer.send(Opcode.GET, vbid=1, key=KEY) == [], "it waits"
