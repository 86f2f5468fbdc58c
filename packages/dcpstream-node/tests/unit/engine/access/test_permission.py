"""Who may do what, command by command: rights of a bucket, of a scope, of one collection, and changes of them."""

from __future__ import annotations

import json
import struct

import pytest

from dcpstream.model import Collection, Manifest, Scope
from dcpstream.wire import Frame, Opcode, Status
from dcpstream_node.dcp.dispatch import handle_dcp
from dcpstream_node.dcp.stats import dcp_stats
from dcpstream_node.engine import ClusterConfig, Engine, Group, Role, Users, new_engine, parse_roles
from dcpstream_node.store import MemoryBucketStore
from dcpstream_node.testing.simulation import START_UNIX_S, SeededRandom
from tests.kit.engine import Talker
from tests.kit.rules import rule

AIRLINE, HOTEL, LANDMARK = 8, 9, 10
MANIFEST = Manifest(
    3,
    (
        Scope(0, "_default", (Collection(0, "_default"),)),
        Scope(8, "inventory", (Collection(AIRLINE, "airline"), Collection(HOTEL, "hotel"))),
        Scope(9, "places", (Collection(LANDMARK, "landmark"),)),
    ),
)
STORE = struct.pack(">II", 0, 0)


@pytest.fixture
def engine() -> Engine:
    users = Users(SeededRandom(), iterations=1)
    users.add("admin", "secret")
    engine = new_engine(users, ClusterConfig([], cluster_uuid="c"), SeededRandom(2), handle_dcp, dcp_stats)
    engine.set_time(100.0, START_UNIX_S * 10**9)
    for name in ("default", "beer"):
        engine.add_bucket(name, MemoryBucketStore(4))
    engine.set_manifest(engine.buckets["default"], MANIFEST)
    return engine


def connect(engine: Engine, *roles: str, name: str = "ann") -> Talker:
    engine.users.put(name, "secret", roles)
    return Talker(engine, user=name)


def get(peer: Talker, collection: int, key: bytes = b"k") -> Frame:
    return peer.call(Opcode.GET, key=bytes((collection,)) + key)


def put(peer: Talker, collection: int, key: bytes = b"k") -> Frame:
    return peer.call(Opcode.SET, key=bytes((collection,)) + key, value=b"1", extras=STORE)


@rule("KV-ACCESS-09", "KV-ACCESS-10")
def test_a_reader_of_a_collection_reads_there_and_nowhere_else(engine: Engine) -> None:
    admin = Talker(engine)
    for collection in (0, AIRLINE, HOTEL, LANDMARK):
        assert put(admin, collection).status == Status.SUCCESS
    ann = connect(engine, "data_reader[default:inventory:airline]")
    assert get(ann, AIRLINE).value == b"1"
    assert put(ann, AIRLINE).status == Status.EACCESS
    for hidden in (0, HOTEL, LANDMARK):
        answer = get(ann, hidden)
        assert answer.status == Status.UNKNOWN_COLLECTION, "not told that it exists"
        assert get(ann, 0x7F).status == answer.status, "as of one that does not, but for the manifest's uid of 8.0"


@rule("KV-ACCESS-10")
def test_no_access_is_reported_where_the_user_may_do_something_else(engine: Engine) -> None:
    ann = connect(engine, "data_writer[default:inventory]", "data_monitoring[default:places]")
    assert put(ann, HOTEL).status == Status.SUCCESS
    assert get(ann, HOTEL).status == Status.EACCESS
    assert get(ann, LANDMARK).status == Status.EACCESS


@pytest.mark.parametrize(
    ("opcode", "extras"),
    [
        (Opcode.GAT, bytes(4)),
        (Opcode.INCREMENT, struct.pack(">QQI", 1, 1, 0)),
        (Opcode.DECREMENT, struct.pack(">QQI", 1, 1, 0)),
    ],
)
def test_who_may_only_write_learns_no_value_on_the_way(engine: Engine, opcode: int, extras: bytes) -> None:
    ann = connect(engine, "data_writer[default]")
    assert put(ann, 0).status == Status.SUCCESS
    assert ann.call(opcode, key=b"\0k", extras=extras).status == Status.EACCESS
    engine.users.put("ann", None, ["data_writer[default]", "data_reader[default]"])
    assert ann.call(opcode, key=b"\0k", extras=extras).status == Status.SUCCESS


@rule("KV-ACCESS-10")
def test_the_direct_ways_ask_for_the_default_collection(engine: Engine) -> None:
    ann = connect(engine, "data_reader[default:_default:_default]", "data_writer[default:_default]")
    assert put(ann, 0).status == Status.SUCCESS
    assert get(ann, 0).value == b"1"
    assert {int(Opcode.GET), int(Opcode.SET)} <= ann.session.plain_opcodes
    bob = connect(engine, "data_reader[default:inventory]", "data_writer[default:inventory]", name="bob")
    assert not bob.session.plain_opcodes
    assert put(bob, 0).status == Status.UNKNOWN_COLLECTION


def test_a_change_of_roles_holds_at_once_on_an_open_connection(engine: Engine) -> None:
    ann = connect(engine, "data_reader[default]", "data_writer[default]")
    assert put(ann, 0).status == Status.SUCCESS
    engine.users.put("ann", None, ["data_reader[default]"])
    assert put(ann, 0).status == Status.EACCESS
    assert get(ann, 0).status == Status.SUCCESS
    engine.users.put("ann", None, ["data_reader[default]", "data_writer[default]"])
    assert put(ann, 0).status == Status.SUCCESS


def test_a_change_of_a_group_holds_at_once_on_an_open_connection(engine: Engine) -> None:
    engine.users.put_group(Group(name="writers", roles=(Role.parse("data_writer[default]"),)))
    ann = connect(engine, "data_reader[default]")
    assert put(ann, 0).status == Status.EACCESS
    engine.users.put("ann", None, ["data_reader[default]"], groups=["writers"])
    assert put(ann, 0).status == Status.SUCCESS
    engine.users.put_group(Group(name="writers", roles=(Role.parse("data_writer[other]"),)))
    assert put(ann, 0).status == Status.EACCESS
    engine.users.put_group(Group(name="writers", roles=parse_roles("data_writer[default],data_reader[default]")))
    assert put(ann, 0).status == Status.SUCCESS
    engine.users.remove_group("writers")
    assert put(ann, 0).status == Status.EACCESS
    assert get(ann, 0).status == Status.SUCCESS, "this one is ann's own"


@rule("KV-ACCESS-09", "KV-LOGIN-03")
def test_a_removed_user_may_do_nothing_and_a_new_one_of_that_name_does_not_help(engine: Engine) -> None:
    ann = connect(engine, "bucket_full_access[default]")
    assert put(ann, 0).status == Status.SUCCESS
    engine.users.remove("ann")
    assert get(ann, 0).status == Status.UNKNOWN_COLLECTION
    assert ann.call(Opcode.SELECT_BUCKET, key=b"default").status == Status.EACCESS
    engine.users.put("ann", "other", ["bucket_full_access[default]"])
    assert ann.call(Opcode.SELECT_BUCKET, key=b"default").status == Status.EACCESS


def test_another_password_leaves_connections_open(engine: Engine) -> None:
    ann = connect(engine, "data_writer[default]")
    engine.users.set_password("ann", "new")
    assert put(ann, 0).status == Status.SUCCESS
    late = Talker(engine, user=None)
    assert late.call(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0ann\0secret").status == Status.AUTH_ERROR
    assert late.call(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0ann\0new").status == Status.SUCCESS


@rule("KV-LOGIN-03")
def test_buckets_that_one_may_not_use_are_neither_selected_nor_listed(engine: Engine) -> None:
    ann = connect(engine, "data_reader[default:inventory:airline]")
    assert ann.call(0x87).value == b"default"
    refused = ann.call(Opcode.SELECT_BUCKET, key=b"beer")
    unknown = ann.call(Opcode.SELECT_BUCKET, key=b"nowhere")
    assert (refused.status, refused.value) == (unknown.status, unknown.value) == (Status.EACCESS, b"")
    assert get(ann, AIRLINE).status == Status.KEY_ENOENT, "the bucket selected before is still selected"
    assert Talker(engine).call(0x87).value == b"default beer"


def test_logging_in_as_somebody_else_leaves_a_bucket_that_they_may_not_use(engine: Engine) -> None:
    engine.users.put("bob", "secret", ["data_reader[beer]"])
    peer = Talker(engine)
    assert peer.call(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0bob\0secret").status == Status.SUCCESS
    assert get(peer, 0).status == Status.NO_BUCKET


def test_the_manifest_shows_what_one_may_know(engine: Engine) -> None:
    ann = connect(engine, "data_reader[default:inventory:airline]")
    shown = json.loads(ann.call(Opcode.GET_COLLECTIONS_MANIFEST).value)
    assert [(scope["name"], [item["name"] for item in scope["collections"]]) for scope in shown["scopes"]] == [
        ("inventory", ["airline"])
    ]
    everything = json.loads(
        connect(engine, "data_reader[default]", name="bob").call(Opcode.GET_COLLECTIONS_MANIFEST).value
    )
    everything["scopes"].reverse()  # servers give scopes in no particular order
    assert everything == MANIFEST.to_json()


@rule("KV-ACCESS-09", "KV-COL-02")
def test_ids_are_given_of_visible_collections_only(engine: Engine) -> None:
    ann = connect(engine, "data_reader[default:inventory:airline]")
    assert ann.call(Opcode.GET_COLLECTION_ID, value=b"inventory.airline").status == Status.SUCCESS
    assert ann.call(Opcode.GET_COLLECTION_ID, value=b"inventory.hotel").status == Status.UNKNOWN_COLLECTION
    assert ann.call(Opcode.GET_COLLECTION_ID, value=b"places.landmark").status == Status.UNKNOWN_SCOPE
    assert ann.call(Opcode.GET_SCOPE_ID, value=b"inventory").status == Status.SUCCESS
    assert ann.call(Opcode.GET_SCOPE_ID, value=b"places").status == Status.UNKNOWN_SCOPE


@rule("KV-ACCESS-10")
def test_seqnos_are_given_to_who_may_read_somewhere(engine: Engine) -> None:
    ann = connect(engine, "data_reader[default:inventory:airline]")
    assert ann.call(Opcode.GET_ALL_VB_SEQNOS).status == Status.SUCCESS
    bob = connect(engine, "data_writer[default]", name="bob")
    assert bob.call(Opcode.GET_ALL_VB_SEQNOS).status == Status.EACCESS
    assert ann.call(Opcode.STAT, key=b"uuid").status == Status.EACCESS


def test_a_key_without_a_proper_prefix_is_refused_whoever_sends_it(engine: Engine) -> None:
    ann = connect(engine, "data_reader[default:inventory:airline]")
    assert ann.call(Opcode.GET, key=b"\xff\xff\xff\xff\xff\xffk").status == Status.EINVAL


@rule("KV-ACCESS-10")
def test_a_connection_without_collections_is_in_the_default_collection(engine: Engine) -> None:
    engine.users.put("ann", "secret", ["data_reader[default:inventory:airline]"])
    ann = Talker(engine, user="ann", features=())
    ann.send(Frame(0x80, Opcode.GET, key=b"k").encode())
    assert ann.session.is_closing, "EACCESS, which cannot be told without XERROR"


@rule("SEC-05")
def test_streams_are_of_what_one_may_stream(engine: Engine) -> None:
    ann = connect(engine, "data_dcp_reader[default:inventory:airline]")
    opened = ann.call(Opcode.DCP_OPEN, key=b"stream", extras=struct.pack(">II", 0, 1))
    assert opened.status == Status.SUCCESS
    assert ann.call(Opcode.DCP_CONTROL, key=b"enable_noop", value=b"true").status == Status.SUCCESS
    request = struct.pack(">IIQQQQQ", 0, 0, 0, 2**64 - 1, 0, 0, 0)

    def status(value: bytes) -> int:
        frames = ann.send(Frame(0x80, Opcode.DCP_STREAM_REQ, opaque=5, extras=request, value=value).encode())
        return next(frame.status for frame in frames if frame.opcode == Opcode.DCP_STREAM_REQ)

    assert status(b"") == Status.EACCESS
    assert status(b'{"collections":["9"]}') == Status.UNKNOWN_COLLECTION
    assert status(b'{"scope":"8"}') == Status.EACCESS
    assert status(b'{"scope":"9"}') == Status.UNKNOWN_SCOPE
    assert status(b'{"collections":["8"]}') == Status.SUCCESS
