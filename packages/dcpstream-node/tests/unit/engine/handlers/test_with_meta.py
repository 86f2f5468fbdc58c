"""SET, ADD and DELETE_WITH_META."""

from __future__ import annotations

import struct

import pytest

from dcpstream.model import BucketSettings, ConflictResolution
from dcpstream.wire import Opcode, Status, encode_request
from dcpstream.wire.values import encode_xattrs, snappy_compress
from dcpstream_node.store import MemoryBucketStore
from dcpstream_node.testing.simulation import START_UNIX_S
from tests.kit.cases import each_case
from tests.kit.engine import Talker, engine_of, with_collection
from tests.kit.rules import rule

SET, ADD, DELETE = Opcode.SET_WITH_META, Opcode.ADD_WITH_META, Opcode.DELETE_WITH_META
SKIP, REGENERATE, EXPIRATION = 8, 4, 16


@pytest.fixture
def client():
    return Talker(engine_of())


def meta(*, flags: int = 7, time: int = 0, rev: int = 5, cas: int = 0x1234, options: int | None = None) -> bytes:
    extras = struct.pack(">IIQQ", flags, time, rev, cas)
    return extras if options is None else extras + struct.pack(">I", options)


def write(client, opcode: int = SET, value: bytes = b"v", extras: bytes | None = None, **fields):
    return client.call(opcode, key=b"\0k", value=value, extras=meta() if extras is None else extras, **fields)


def item(client):
    return client.engine.buckets["default"].vbuckets[0].log.get(b"\0k")


def test_a_version_from_elsewhere(client):
    written = write(client, extras=meta(time=START_UNIX_S + 9))
    assert (written.status, written.cas) == (0, 0x1234)
    assert struct.unpack(">QQ", written.extras)[1] == 1
    found = item(client)
    assert (found.flags, found.expiration, found.rev_seqno, found.cas) == (7, START_UNIX_S + 9, 5, 0x1234)
    assert client.set("k", b"next").cas > 0x1234
    assert item(client).rev_seqno == 6


@each_case(("release", "sent", "kept"), [("7.2", 0, 0), ("7.2", 1, 1), ("8.0", 0, 1), ("8.0", 1, 1)])
def test_json_is_what_came_as_json_and_from_80_on_what_is_json(release, sent, kept):
    client = Talker(engine_of(release=release))
    write(client, value=b'{"a":1}', datatype=sent)
    assert item(client).datatype == kept


@rule("KV-META-13")
def test_a_compressed_value_and_further_meta_data(client):
    extras = meta() + struct.pack(">H", 3)
    write(client, value=snappy_compress(b"a" * 100), datatype=2)
    assert item(client).value == b"a" * 100
    extension = b"\x01\x01\0\1t"  # version 1: one field of type 1 with one byte
    write(client, value=b"v" + extension, extras=struct.pack(">IIQQH", 7, 0, 6, 1, len(extension)))
    assert item(client).value == b"v"
    for short in (b"v", b"\x01"):
        assert write(client, value=short, extras=extras).status == Status.EINVAL


@pytest.mark.parametrize(
    ("new", "wins"),
    [
        (meta(rev=6, cas=1), True),
        (meta(rev=4, cas=0x9999), False),
        (meta(cas=0x1235), True),
        (meta(cas=0x1233), False),
        (meta(time=START_UNIX_S + 9), True),
        (meta(flags=8), True),
        (meta(), False),
        (meta(rev=1, cas=1, options=SKIP), True),
    ],
)
def test_which_version_stays(client, new, wins):
    write(client)
    assert write(client, value=b"new", extras=new).status == (0 if wins else Status.KEY_EEXISTS)
    assert item(client).value == (b"new" if wins else b"v")


def test_the_cas_of_the_header(client):
    assert write(client, cas=1).status == Status.KEY_ENOENT
    write(client)
    assert write(client, extras=meta(rev=6), cas=1).status == Status.KEY_EEXISTS
    assert write(client, extras=meta(rev=6), cas=0x1234).status == 0


def test_add(client):
    assert write(client, ADD).status == 0
    assert write(client, ADD, extras=meta(rev=9)).status == Status.KEY_EEXISTS
    client.delete("k")
    assert write(client, ADD, extras=meta(rev=9)).status == 0


@rule("KV-META-14")
def test_a_deletion(client):
    assert write(client, DELETE, b"", meta(time=77)).status == 0  # also of a document that is not there
    assert (item(client).is_deleted, item(client).delete_time, item(client).rev_seqno) == (True, 77, 5)
    assert client.get("k").status == Status.KEY_ENOENT
    xattrs = encode_xattrs({"_s": b"1"})
    assert write(client, DELETE, xattrs, meta(rev=6), datatype=4).status == 0
    assert (item(client).value, item(client).delete_time) == (xattrs, START_UNIX_S)
    assert write(client, DELETE, xattrs + b"body", meta(rev=7), datatype=4).status == 0
    assert item(client).value == xattrs
    assert write(client, DELETE, b"body", meta(rev=8)).status == 0
    assert item(client).value == xattrs, "what the system keeps of a document stays"


@rule("KV-META-14")
def test_a_deletion_with_a_body_can_be_refused(client):
    parameter = b"allow_sanitize_value_in_deletion"
    assert client.call(Opcode.SET_PARAM, key=parameter, value=b"false", extras=bytes(3) + b"\1").status == 0
    xattrs = encode_xattrs({"_s": b"1"})
    assert write(client, DELETE, xattrs + b"body", meta(rev=7), datatype=4).status == Status.EINVAL
    assert write(client, DELETE, b"body", meta(rev=7)).status == Status.EINVAL
    assert write(client, DELETE, xattrs, meta(rev=7), datatype=4).status == 0


def test_an_expiration(client):
    write(client, DELETE, b"", meta(time=77, options=EXPIRATION))
    block = client.engine.buckets["default"].vbuckets[0].log.read(0, 1)
    assert block.data[1] == Opcode.DCP_EXPIRATION


@rule("KV-META-17")
@each_case(("version", "is_told"), [("7.2", False), ("7.6", True)])
def test_a_cas_of_ones_own(version, is_told):
    client = Talker(engine_of(release=version))
    answer = write(client, extras=meta(options=SKIP | REGENERATE))
    assert item(client).cas != 0x1234
    assert answer.cas == (item(client).cas if is_told else 0x1234)


@each_case(("release", "status"), [("7.2", Status.KEY_EEXISTS), ("8.0", Status.CAS_VALUE_INVALID)])
@each_case("cas", [0, 2**64 - 1])
def test_an_impossible_cas(release, status, cas):
    client = Talker(engine_of(release=release))
    assert write(client, extras=meta(cas=cas)).status == status
    assert write(client, DELETE, b"", meta(cas=cas)).status == status
    elsewhere = client.call(SET, key=b"\0k", value=b"v", extras=meta(cas=cas), vbid=9)
    assert elsewhere.status == Status.NOT_MY_VBUCKET


def test_a_cas_from_the_future_is_not_followed(client):
    write(client, extras=meta(cas=2**63 + 1))
    assert client.set("l", b"v").cas < 2**63


@pytest.mark.parametrize("options", [2, REGENERATE])
def test_options_that_cannot_be(client, options):
    assert write(client, extras=meta(options=options)).status == Status.EINVAL


@pytest.mark.parametrize("size", [0, 23, 25, 27, 29, 31])
def test_lengths_of_the_extras(client, size):
    assert write(client, extras=bytes(size)).status == Status.EINVAL


@rule("KV-META-13")
def test_broken_values(client):
    assert write(client, value=b"\xff", datatype=2).status == Status.EINVAL
    assert write(client, value=b"\0\0\0\xff", datatype=4).status == Status.XATTR_EINVAL


@pytest.mark.parametrize("opcode", [Opcode.SETQ_WITH_META, Opcode.ADDQ_WITH_META, Opcode.DELETEQ_WITH_META])
def test_the_quiet_forms(client, opcode):
    assert client.send(encode_request(opcode, key=b"\0k", extras=meta())) == []
    assert item(client).cas == 0x1234
    assert [frame.status for frame in client.send(encode_request(opcode, key=b"\0k", extras=meta()))] == [
        Status.KEY_EEXISTS
    ]


def test_nobody_without_the_privilege():
    assert write(Talker(engine_of(), user="writer")).status == Status.EACCESS


TIMES = 2


@pytest.fixture
def by_time():
    settings = BucketSettings(conflict_resolution=ConflictResolution.LWW)
    return Talker(engine_of(MemoryBucketStore(4, settings)))


@pytest.mark.parametrize(
    ("new", "wins"),
    [
        (meta(rev=4, cas=0x9999, options=TIMES), True),
        (meta(rev=6, cas=1, options=TIMES), False),
        (meta(rev=6, options=TIMES), True),
        (meta(rev=4, options=TIMES), False),
        (meta(time=START_UNIX_S + 9, options=TIMES), True),
        (meta(flags=8, options=TIMES), True),
        (meta(options=TIMES), False),
        (meta(rev=1, cas=1, options=TIMES | SKIP), True),
        (meta(rev=1, cas=1, options=REGENERATE | SKIP), True),
    ],
)
def test_which_version_stays_by_time(by_time, new, wins):
    assert write(by_time, extras=meta(options=TIMES)).status == 0
    assert write(by_time, value=b"new", extras=new).status == (0 if wins else Status.KEY_EEXISTS)
    assert item(by_time).value == (b"new" if wins else b"v")


def test_a_deletion_by_time(by_time):
    assert write(by_time, extras=meta(options=TIMES)).status == 0
    assert write(by_time, DELETE, b"", meta(rev=9, cas=1, options=TIMES)).status == Status.KEY_EEXISTS
    assert write(by_time, DELETE, b"", meta(rev=1, cas=0x9999, options=TIMES)).status == 0


@pytest.mark.parametrize("options", [None, 0, 1, SKIP, 1 | SKIP, REGENERATE])
def test_who_writes_by_time_has_to_say_so(by_time, options):
    assert write(by_time, extras=meta(options=options)).status == Status.EINVAL


def test_times_on_a_bucket_of_revisions(client):
    assert write(client, extras=meta(options=TIMES)).status == Status.EINVAL


def test_the_longest_life_holds_for_versions_from_elsewhere(client):
    with_collection(client.engine, 9, max_ttl=100)
    log = client.engine.buckets["default"].vbuckets[0].log
    for number, (asked, kept) in enumerate([(0, 100), (50, 50), (200, 100)], 1):
        extras = meta(time=asked and START_UNIX_S + asked, rev=number)
        assert client.call(SET, key=b"\x09k", value=b"v", extras=extras).status == 0
        assert log.meta(b"\x09k").expiration == START_UNIX_S + kept


@rule("KV-META-15")
def test_xattrs_have_a_limit_of_their_own(client):
    text = b'"' + b"x" * ((1 << 20) - 14) + b'"'  # with name and lengths 1 MiB
    body = b"b" * (20 << 20)
    assert write(client, value=encode_xattrs({"_s": text}, body), datatype=4).status == 0
    assert write(client, value=encode_xattrs({"_s": text}, body + b"b"), datatype=4).status == Status.E2BIG
    system = write(client, value=encode_xattrs({"_s": text[:-1] + b'x"'}, b""), datatype=4)
    assert (system.status, b"limit for system" in system.value) == (Status.EINVAL, True)
    user = encode_xattrs({"u": text}, body)
    assert write(client, value=user, datatype=4, extras=meta(rev=9)).status == Status.E2BIG
    assert write(client, value=user[: 20 << 20], datatype=4, extras=meta(rev=9)).status == 0


RETURN = struct.Struct(">IIQ")


def returning(client, kind: int, value: bytes = b"v", *, flags: int = 7, expiration: int = 0, **fields):
    extras = struct.pack(">III", kind, flags, expiration)
    return client.call(Opcode.RETURN_META, key=b"\0k", value=value, extras=extras, **fields)


def test_writes_that_answer_their_metadata(client):
    made = returning(client, 2, b"{}", expiration=9)
    assert (made.status, RETURN.unpack(made.extras)) == (0, (7, START_UNIX_S + 9, 1))
    assert (made.datatype, item(client).datatype) == (0, 0), "a client that knows JSON did not say so"
    assert made.cas == client.get("k").cas
    assert returning(client, 2).status == Status.NOT_STORED
    again = returning(client, 1, flags=8)
    assert RETURN.unpack(again.extras) == (8, 0, 2)
    assert returning(client, 1, cas=made.cas).status == Status.KEY_EEXISTS
    gone = returning(client, 3, cas=again.cas)
    assert RETURN.unpack(gone.extras) == (8, 0, 3)
    assert client.get("k").status == Status.KEY_ENOENT
    assert returning(client, 3).status == Status.KEY_ENOENT
    assert returning(client, 1, cas=5).status == Status.KEY_ENOENT
    assert returning(client, 4).status == Status.EINVAL
    assert returning(client, 0).status == Status.EINVAL


def test_xattrs_go_when_the_document_is_replaced(client):
    write(client, value=encode_xattrs({"_s": b"1", "u": b"1"}, b"old"), datatype=4)
    assert returning(client, 1, b"new").status == 0
    assert item(client).value == b"new"
    write(client, value=encode_xattrs({"_s": b"1"}, b"old"), datatype=4, extras=meta(rev=20, cas=1 << 61))
    assert returning(client, 3).status == 0
    assert (item(client).value, item(client).is_deleted) == (b"", True)
