"""A session: framing, limits, login, what is refused and what closes the connection."""

from __future__ import annotations

import json
import struct

import pytest

from dcpstream.dcp.sasl import MECHANISMS, ClientLogin
from dcpstream.wire import Feature, Opcode, Status, encode_request, encode_response
from dcpstream_node.store import DiskBucketStore
from dcpstream_node.testing.simulation import USUAL_FEATURES
from tests.kit.cases import each_case
from tests.kit.engine import Talker, engine_of
from tests.kit.rules import rule

NOOP = encode_request(Opcode.NOOP, opaque=5)


def test_every_split_of_the_bytes_gives_the_same_answers():
    data = encode_request(Opcode.SET, opaque=1, extras=bytes(8), key=b"\0k", value=b"v" * 50) + NOOP
    data += encode_request(Opcode.GET, opaque=2, key=b"\0k") + NOOP
    whole = [frame.opaque for frame in Talker(engine_of()).send(data)]
    assert whole == [1, 5, 2, 5]
    for cut in range(1, len(data)):
        client = Talker(engine_of())
        opaques, rest = [], b""
        for piece in (data[:cut], data[cut:]):
            rest += piece
            rest = rest[client.receive(rest) :]
            opaques += [frame.opaque for frame in client.collect()]
        assert opaques == whole, cut
        assert not rest


@each_case(
    "data",
    [
        b"\0" * 24,
        b"stats\r\n" + b" " * 20,
        b"\x82" + NOOP[1:],
        struct.pack(">BBHBBHIIQ", 0x80, 0x0A, 9, 0, 0, 0, 3, 0, 0) + b"abc",
        struct.pack(">BBHBBHIIQ", 0x80, 0x01, 2, 8, 0, 0, 0xFFFFFFFF, 0, 0),
        struct.pack(">BBHBBHIIQ", 0x80, 0x01, 2, 8, 0, 0, 30 << 20, 0, 0),
    ],
)
def test_what_is_no_frame_closes_the_connection_without_an_answer(data):
    client = Talker(engine_of())
    assert client.send(data) == []
    assert client.session.is_closing


@each_case("mechanism", MECHANISMS)
def test_login_with_every_mechanism(mechanism):
    client = Talker(engine_of(), user=None)
    login = ClientLogin(mechanism, "admin", "secret", b"0123456789abcdef")
    answer = client.call(Opcode.SASL_AUTH, key=mechanism.encode(), value=login.start())
    if mechanism != "PLAIN":
        assert answer.status == Status.AUTH_CONTINUE
        answer = client.call(Opcode.SASL_STEP, key=mechanism.encode(), value=login.step(answer.value))
    assert answer.status == 0
    login.finish(answer.value)
    assert client.call(Opcode.NOOP).status == 0


@rule("KV-LOGIN-06")
@each_case(("version", "keeps_bucket"), [("7.2", False), ("7.6", True)])
def test_a_new_login_ends_the_old_one(version, keeps_bucket):
    client = Talker(engine_of(release=version))
    assert client.call(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0admin\0wrong").status == Status.AUTH_ERROR
    assert client.get("k").status == Status.EACCESS
    assert client.call(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0reader\0secret").status == 0
    assert client.get("k").status == (Status.KEY_ENOENT if keeps_bucket else Status.NO_BUCKET)
    assert client.call(Opcode.SELECT_BUCKET, key=b"default").status == 0
    assert client.get("k").status == Status.KEY_ENOENT
    assert client.set("k", b"v").status == Status.EACCESS


def test_privileges_are_asked_for():
    engine = engine_of()
    reader, writer = Talker(engine, user="reader"), Talker(engine, user="writer")
    assert writer.set("k", b"v").status == 0
    assert reader.get("k").value == b"v"
    assert reader.set("k", b"w").status == Status.EACCESS
    assert writer.call(Opcode.SET_VBUCKET, extras=b"\x04").status == Status.EACCESS
    assert writer.call(Opcode.STAT, key=b"vbucket").status == Status.EACCESS


def test_without_xerror_a_missing_privilege_closes():
    client = Talker(engine_of(), user="reader", features=(Feature.SELECT_BUCKET,))
    assert client.send(encode_request(Opcode.SET, extras=bytes(8), key=b"k")) == []
    assert client.session.is_closing


def test_many_requests_at_once_are_traced_too():
    client, plain = Talker(engine_of(), features=(*USUAL_FEATURES, Feature.TRACING)), Talker(engine_of())
    requests = [
        encode_request(Opcode.SET, key=b"\0k%d" % number, value=b"v" * number, extras=bytes(8), opaque=number)
        for number in range(400)
    ]
    requests += [encode_request(Opcode.GET, key=b"\0k%d" % number, opaque=number) for number in range(401)]
    traced, others = client.send(b"".join(requests)), plain.send(b"".join(requests))
    assert len(traced) == len(others) == 801
    assert {frame.framing for frame in traced} == {b"\x02\0\0"}
    shown = [
        [(frame.opcode, frame.opaque, frame.status, frame.value, frame.extras[:4], frame.key) for frame in frames]
        for frames in (traced[400:], others[400:])
    ]
    assert shown[0] == shown[1]


def test_an_answer_that_nobody_asked_for_closes():
    client = Talker(engine_of())
    assert client.send(encode_response(Opcode.NOOP) + NOOP) == []
    assert client.session.is_closing


def test_quit_answers_and_closes_and_its_quiet_form_only_closes():
    loud, quiet = Talker(engine_of()), Talker(engine_of())
    assert loud.call(Opcode.QUIT).status == 0
    assert loud.session.is_closing
    assert quiet.send(encode_request(Opcode.QUITQ) + NOOP) == []
    assert quiet.session.is_closing


@rule("KV-LOGIN-08")
def test_an_answer_after_the_token_has_expired_closes():
    client = Talker(engine_of(release="8.0"))
    assert client.call(Opcode.DCP_OPEN, key=b"reader", extras=struct.pack(">II", 0, 1)).status == 0
    answer = encode_response(Opcode.DCP_MUTATION, opaque=7)
    client.session.identity.expires_at = client.engine.now
    assert client.send(answer) == []
    assert not client.session.is_closing, "it is the last moment of the token"
    client.session.identity.expires_at = client.engine.now - 1
    assert client.call(Opcode.DCP_CLOSE_STREAM).status == Status.AUTH_STALE
    assert client.send(answer) == []
    assert client.session.is_closing


@rule("NOP-07")
def test_a_dcp_client_that_is_silent_too_long_is_closed_at_the_timeout():
    client = Talker(engine_of())
    assert client.call(Opcode.DCP_OPEN, key=b"reader", extras=struct.pack(">II", 0, 1)).status == 0
    assert client.call(Opcode.DCP_CONTROL, key=b"enable_noop", value=b"true").status == 0
    client.session.handle_timeout()
    assert not client.session.is_closing
    client.engine.set_time(client.engine.now + 400, client.engine.unix_ns)
    client.session.handle_timeout()
    assert client.session.is_closing


def test_a_new_configuration_is_pushed_to_those_who_asked():
    engine = engine_of(release="7.6")
    admin, plain = Talker(engine), Talker(engine)
    full = Talker(engine, features=(*USUAL_FEATURES, Feature.DUPLEX, Feature.CLUSTERMAP_NOTIFICATION))
    brief = Talker(engine, features=(*USUAL_FEATURES, Feature.DUPLEX, Feature.CLUSTERMAP_NOTIFICATION_BRIEF))
    admin.call(Opcode.SET_VBUCKET, vbid=1, extras=b"\x04")
    assert plain.collect() == []
    (pushed,), (short,) = full.collect(), brief.collect()
    assert (pushed.magic, pushed.opcode, pushed.key) == (0x82, 0x01, b"default")
    assert struct.unpack(">qq", pushed.extras) == engine.config.version
    assert json.loads(pushed.value)["vBucketServerMap"]["vBucketMap"][1] == [-1]
    assert (short.extras, short.value) == (pushed.extras, b"")
    full.send(b"\x83\x01" + bytes(22))
    assert full.call(Opcode.NOOP).status == 0


def test_the_error_map():
    client = Talker(engine_of())
    content = json.loads(client.call(Opcode.GET_ERROR_MAP, value=b"\0\x02").value)
    assert content["version"] == 2
    assert content["errors"]["24"]["name"] == "EACCESS"
    assert json.loads(client.call(Opcode.GET_ERROR_MAP, value=b"\0\x01").value)["version"] == 1
    assert client.call(Opcode.GET_ERROR_MAP, value=b"\0\0").status == Status.KEY_ENOENT
    assert client.call(Opcode.GET_ERROR_MAP, value=b"\0").status == Status.EINVAL


def counted_steps(store: DiskBucketStore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of vbuckets in each durable step of a store's metadata."""
    steps: list[int] = []
    put = store._metadata.put

    def count(values, lines=()):
        found = list(lines)
        steps.append(len(found))
        put(values, found)

    monkeypatch.setattr(store._metadata, "put", count)
    return steps


def answered(client: Talker, data: bytes) -> list[int]:
    """The statuses of the answers to requests that come at once."""
    frames = client.send(data)
    assert [frame.opaque for frame in frames] == list(range(len(frames))), "in the order of the requests"
    return [frame.status for frame in frames]


def test_roles_that_come_together_become_durable_in_one_step(tmp_path, monkeypatch):
    store = DiskBucketStore(tmp_path, 8)
    client = Talker(engine_of(store))
    steps = counted_steps(store, monkeypatch)
    roles = [
        encode_request(Opcode.SET_VBUCKET, vbid=vbid % 9, opaque=vbid, extras=b"\x02" if vbid < 4 else b"\x04")
        for vbid in range(9)
    ]
    between = encode_request(Opcode.NOOP, opaque=9)
    last = encode_request(Opcode.SET_VBUCKET, vbid=0, opaque=10, extras=b"\x04")
    assert answered(client, b"".join(roles) + between + last) == [0] * 8 + [Status.ERANGE, 0, 0]
    assert steps == [8, 1], "the refused one changed nothing, and the last one is alone"
    store.close(clean=False)
    kept = DiskBucketStore(tmp_path, 8)
    assert [kept.vbuckets[vbid].state for vbid in range(8)] == [4, 2, 2, 2, 4, 4, 4, 4]
    kept.close()


def test_roles_are_durable_when_the_answers_are_there(tmp_path, monkeypatch):
    store = DiskBucketStore(tmp_path, 8)
    client = Talker(engine_of(store))
    steps = counted_steps(store, monkeypatch)
    roles = b"".join(encode_request(Opcode.SET_VBUCKET, vbid=vbid, extras=b"\x02") for vbid in range(8))
    half = len(roles) // 2 + 5
    first = client.session.receive(roles[:half])
    assert first.used == len(roles) // 2
    assert (len(first.output), steps) == (4, [4])
    second = client.session.receive(roles[first.used :])
    assert second.used == len(roles) - first.used
    assert (len(second.output), steps) == (4, [4, 4])
    store.close()


def test_a_broken_frame_behind_roles_closes_the_connection_after_their_answers():
    client = Talker(engine_of())
    roles = b"".join(encode_request(Opcode.SET_VBUCKET, vbid=vbid, extras=b"\x02") for vbid in range(3))
    broken = roles[:2] + b"\0\xff" + roles[4:24]  # a key longer than the body
    step = client.session.receive(roles + broken)
    assert step.used == len(roles)
    assert len(step.output) == 3
    assert client.session.is_closing
