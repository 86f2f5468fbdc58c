"""SET, ADD and DELETE_WITH_META."""

from __future__ import annotations

import struct

import pytest

from dcpstream.model import BucketSettings, ConflictResolution
from dcpstream.wire import Opcode, Status
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


@rule("KV-META-17")
@each_case(("version", "is_told"), [("7.2", False), ("7.6", True)])
def test_a_cas_of_ones_own(version, is_told):
    client = Talker(engine_of(release=version))
    answer = write(client, extras=meta(options=SKIP | REGENERATE))
    assert item(client).cas != 0x1234
    assert answer.cas == (item(client).cas if is_told else 0x1234)


@rule("KV-META-13")
def test_broken_values(client):
    assert write(client, value=b"\xff", datatype=2).status == Status.EINVAL
    assert write(client, value=b"\0\0\0\xff", datatype=4).status == Status.XATTR_EINVAL


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
    assert system.status == Status.XATTR_EINVAL
    user = encode_xattrs({"u": text}, body)
    assert write(client, value=user, datatype=4, extras=meta(rev=9)).status == Status.E2BIG
    assert write(client, value=user[: 20 << 20], datatype=4, extras=meta(rev=9)).status == 0
