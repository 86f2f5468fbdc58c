"""A session: framing, limits, login, what is refused and what closes the connection."""

from __future__ import annotations

import json
import struct

import pytest

from dcpstream.dcp.sasl import MECHANISMS, ClientLogin
from dcpstream.wire import Feature, Magic, Opcode, Status, encode_request, encode_response
from dcpstream_node.engine import MAX_OUTPUT_BYTES
from dcpstream_node.engine.session.responses import encode_duration
from dcpstream_node.engine.session.step import Wants
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


def test_needed_reports_the_size_of_the_frame_that_is_coming():
    client = Talker(engine_of())
    data = encode_request(Opcode.SET, extras=bytes(8), key=b"\0k", value=b"v" * 5000)
    step = client.session.receive(data[:100])
    assert (step.used, step.wants, step.needed) == (0, Wants.INPUT, len(data))


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


def test_frames_are_small_before_the_login():
    client = Talker(engine_of(), user=None)
    assert client.call(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0x\0" + b"y" * 16_000).status == Status.AUTH_ERROR
    client.send(encode_request(Opcode.SASL_AUTH, key=b"PLAIN", value=b"y" * 16_384))
    assert client.session.is_closing


def test_before_the_login_only_the_login_is_answered():
    client = Talker(engine_of(), user=None)
    for opcode in (Opcode.VERSION, Opcode.NOOP, Opcode.GET, Opcode.DCP_OPEN, Opcode.SELECT_BUCKET, Opcode.STAT):
        assert client.call(opcode).status == Status.EACCESS, opcode
    assert not client.session.is_closing
    assert client.call(Opcode.SASL_LIST_MECHS).value.split() == [name.encode() for name in MECHANISMS]


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


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("user", "password"), [("admin", "tiptoe7"), ("nobody", "secret")])
def test_a_wrong_login_is_refused_without_a_reason(mechanism, user, password, caplog):
    client = Talker(engine_of(), user=None)
    login = ClientLogin(mechanism, user, password, b"0123456789abcdef")
    answer = client.call(Opcode.SASL_AUTH, key=mechanism.encode(), value=login.start())
    if mechanism != "PLAIN":
        answer = client.call(Opcode.SASL_STEP, key=mechanism.encode(), value=login.step(answer.value))
    assert answer.status == Status.AUTH_ERROR
    assert list(json.loads(answer.value)["error"]) == ["ref"]
    assert json.loads(answer.value)["error"]["ref"] in caplog.text
    assert password not in caplog.text
    assert client.call(Opcode.NOOP).status == Status.EACCESS


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


def test_a_step_without_a_start_is_refused():
    client = Talker(engine_of(), user=None)
    assert client.call(Opcode.SASL_STEP, key=b"SCRAM-SHA512", value=b"c=biws").status == Status.EINVAL


@each_case("release", ["7.2", "8.0"])
def test_hello_grants_what_is_done_and_resets_what_is_not_asked(release):
    client = Talker(engine_of(release=release))
    asked = [0x99, Feature.TLS, Feature.JSON, Feature.JSON, Feature.TRACING, Feature.COLLECTIONS]
    assert client.hello(asked).value == struct.pack(">3H", Feature.JSON, Feature.TRACING, Feature.COLLECTIONS)
    assert client.hello([]).value == b""
    assert not client.session.has_collections
    assert client.call(Opcode.HELLO, value=b"\0\x06\0").status == Status.EINVAL
    both = client.hello([Feature.TCP_NODELAY, Feature.TCP_DELAY])
    assert both.status == (Status.EINVAL if release == "7.2" else Status.SUCCESS)
    assert both.status or both.value == struct.pack(">H", Feature.TCP_NODELAY)
    snappy = client.hello([Feature.SNAPPY_EVERYWHERE])
    assert snappy.value == (b"" if release == "7.2" else struct.pack(">H", Feature.SNAPPY_EVERYWHERE))
    assert client.hello([Feature.CLUSTERMAP_NOTIFICATION]).status == Status.EINVAL


def test_buckets_are_selected_and_left():
    client = Talker(engine_of())
    assert client.call(Opcode.SELECT_BUCKET, key=b"@no bucket@").status == 0
    assert client.get("k").status == Status.NO_BUCKET
    assert client.call(Opcode.SELECT_BUCKET, key=b"nosuch").status == Status.EACCESS
    assert client.call(Opcode.SELECT_BUCKET, key=b"default").status == 0
    assert client.get("k").status == Status.KEY_ENOENT


def test_an_internal_user_gets_an_error_for_a_bucket_that_does_not_exist():
    engine = engine_of()
    client = Talker(engine, user="@admin")
    assert client.call(Opcode.SELECT_BUCKET, key=b"nosuch").status == Status.KEY_ENOENT


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


def test_unknown_and_malformed_requests():
    client = Talker(engine_of())
    assert client.call(0xEE).status == Status.UNKNOWN_COMMAND
    answer = client.call(Opcode.NOOP, extras=b"1234")
    assert (answer.status, answer.datatype) == (Status.EINVAL, 1)
    assert json.loads(answer.value) == {"error": {"context": "Request must not include extras"}}
    assert client.call(Opcode.GET).status == Status.EINVAL
    assert client.call(Opcode.SET, extras=bytes(8)).status == Status.EINVAL
    assert client.call(Opcode.SET, key=b"\0k", extras=b"123").status == Status.EINVAL
    assert client.call(Opcode.SET, key=b"\0k", extras=bytes(8), datatype=0xFF).status == Status.EINVAL
    assert client.call(Opcode.NOOP, key=b"k").status == Status.EINVAL
    assert client.call(Opcode.NOOP, value=b"v").status == Status.EINVAL
    assert client.call(Opcode.NOOP, cas=1).status == Status.EINVAL


def test_framing_extras_are_checked():
    client = Talker(engine_of())
    assert client.call(Opcode.NOOP, framing=b"\xf1\0\0").status == Status.UNKNOWN_FRAME_INFO
    assert client.call(Opcode.GET, key=b"\0k", framing=b"\x00").status == Status.KEY_ENOENT
    assert client.call(Opcode.GET, key=b"\0k", framing=b"\x50").status == Status.NOT_SUPPORTED
    assert client.call(Opcode.GET, key=b"\0k", framing=b"\x13\x01").status == Status.EINVAL
    durable = client.call(Opcode.SET, key=b"\0k", extras=bytes(8), framing=b"\x13\x01\x23\x28")
    assert durable.status == Status.DURABILITY_IMPOSSIBLE


@each_case("framing", [b"\x44user", b"\x45admin"])
def test_nobody_acts_for_others(framing):
    client = Talker(engine_of(), user="reader")
    assert client.call(Opcode.GET, key=b"\0k", framing=framing).status == Status.EACCESS
    assert client.call(Opcode.GET, key=b"\0k", framing=b"\x40").status == Status.EINVAL
    old = Talker(engine_of(), features=(Feature.ALT_REQUEST,), user="reader")
    assert old.send(encode_request(Opcode.GET, key=b"k", framing=framing)) == []
    assert old.session.is_closing


def test_answers_report_how_long_they_took_where_tracing_was_granted():
    engine = engine_of()
    client = Talker(engine, features=(*USUAL_FEATURES, Feature.TRACING))
    ticks = iter(range(1000))
    engine.stopwatch = lambda: next(ticks) * 0.001
    for answer in (client.set("k", b"v"), client.get("k"), client.get("none"), client.call(Opcode.NOOP)):
        # One millisecond: (2 * 1000) ** (1 / 1.74), rounded.
        assert (answer.magic, answer.framing) == (Magic.FLEX_RESPONSE, b"\x02\x00\x4f")
    assert client.hello(USUAL_FEATURES).framing == b""
    assert client.get("k").framing == b""


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


@each_case(("microseconds", "encoded"), [(0, 0), (1, 1), (1000, 79), (120_125_042, 65535), (1e12, 65535)])
def test_durations(microseconds, encoded):
    assert encode_duration(microseconds) == encoded


def test_statuses_that_an_old_client_does_not_know():
    manifest = b'{"uid":"%d","scopes":[{"name":"_default","uid":"0","collections":[{"name":"%s","uid":"9"}]}]}'
    for features, status in (((Feature.XERROR,), Status.CANNOT_APPLY_MANIFEST), ((), Status.EINTERNAL)):
        client = Talker(engine_of(), features=features)
        assert client.call(Opcode.SET_COLLECTIONS, value=manifest % (1, b"a")).status == 0
        assert client.call(Opcode.SET_COLLECTIONS, value=manifest % (1, b"b")).status == status


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


def test_a_client_that_asks_more_than_it_reads_is_not_read_on():
    client = Talker(engine_of())
    client.set("big", b"\x80" * 300_000)
    one = encode_request(Opcode.GET, key=b"\0big")
    step = client.session.receive(one * 100)
    assert step.used < len(one) * 100
    assert step.wants is Wants.ROOM
    assert step.used // len(one) * 300_000 < sum(map(len, step.output)) < MAX_OUTPUT_BYTES + 400_000
    assert client.session.receive(one).used == len(one)


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


def test_the_configuration_comes_with_and_without_a_bucket():
    client = Talker(engine_of(release="7.6"))
    config = json.loads(client.call(Opcode.GET_CLUSTER_CONFIG).value)
    assert config["name"] == "default"
    services = {"kv": 11210, "mgmt": 8091}
    assert config["nodesExt"] == [{"services": services, "thisNode": True, "serverGroup": "Group 1"}]
    assert config["vBucketServerMap"]["vBucketMap"] == [[0]] * 4
    known = struct.pack(">qq", config["revEpoch"], config["rev"])
    assert client.call(Opcode.GET_CLUSTER_CONFIG, extras=known).value == b""
    client.call(Opcode.SET_VBUCKET, vbid=1, extras=b"\x04")
    newer = json.loads(client.call(Opcode.GET_CLUSTER_CONFIG, extras=known).value)
    assert newer["rev"] > config["rev"]
    assert newer["vBucketServerMap"]["vBucketMap"] == [[0], [-1], [0], [0]]
    client.call(Opcode.SELECT_BUCKET, key=b"@no bucket@")
    alone = json.loads(client.call(Opcode.GET_CLUSTER_CONFIG).value)
    assert "vBucketServerMap" not in alone
    assert alone["nodesExt"]


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


def test_the_version_begins_with_a_number():
    assert Talker(engine_of()).call(Opcode.VERSION).value.startswith(b"8.")


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
