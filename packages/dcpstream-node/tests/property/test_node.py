"""Whatever a client sends: the engine never fails, and the direct ways answer as the command table does."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream.errors import FieldError
from dcpstream.wire import Feature, Opcode, encode_request
from dcpstream.wire.messages import DCP_OPCODES
from dcpstream_node.engine import COMMANDS
from dcpstream_node.testing.simulation import USUAL_FEATURES
from tests.kit.engine import Talker, engine_of, pass_time

FRAMES = 2000
OPCODES = [*COMMANDS.opcodes(), *sorted(DCP_OPCODES), 0xEE]
KEYS = [b"", b"k", b"\0k", b"\0l", b"\x08x", b"default", b"PLAIN", b"vbucket-details 1", b"dcp", b"enable_noop",
        b"connection_buffer_size", b"_default._default", b"\0" * 251, b"x" * 300]  # fmt: skip
VALUES = [b"", b"v", b'{"a":1}', b"100", b"true", b"\0admin\0secret", b"\0\x02", b'{"collections":["0"]}', b"0" * 5000]


def any_request(chance: random.Random) -> bytes:
    """A request that is right in some parts and wrong in others."""
    opcode = chance.choice(OPCODES)
    command = COMMANDS.get(opcode)
    length = chance.choice((0, 1, 4, 8, 12, 16, 18, 21, 31, 48))
    if command is not None and command.shape.extras and chance.random() < 0.8:
        length = chance.choice(command.shape.extras)
    extras = bytes(length) if chance.random() < 0.7 else chance.randbytes(length)
    if opcode == Opcode.DCP_STREAM_REQ:
        start, end = chance.choice((0, 1, 5)), chance.choice((5, (1 << 64) - 1))
        extras = struct.pack(">IIQQQQQ", 1 << chance.randrange(9), 0, start, end, 0, 0, start)
    elif opcode == Opcode.DCP_OPEN:
        extras = struct.pack(">II", 0, chance.choice((0, 1, 5, 33, 37, chance.getrandbits(10))))
    try:
        data = encode_request(
            opcode,
            vbid=chance.choice((0, 1, 2, 3, 4, 1024)),
            opaque=chance.getrandbits(32),
            cas=chance.choice((0, 0, 0, 1)),
            datatype=chance.choice((0, 0, 0, 1, 2, 3, 4, 255)),
            framing=chance.choice((b"", b"", b"", b"\x50", b"\x22\0\1", b"\x13\1\0\1", chance.randbytes(3))),
            extras=extras,
            key=chance.choice((*KEYS, chance.randbytes(3))),
            value=chance.choice((*VALUES, chance.randbytes(40))),
        )
    except FieldError:
        return b""
    if chance.random() < 0.02:
        data = chance.randbytes(30) + data
    return data if chance.random() < 0.9 else b"\x81" + data[1:]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_the_engine_survives_any_requests(seed):
    chance = random.Random(seed)
    engine = engine_of(vbuckets=4)
    clients: list[Talker] = []
    feature_sets = (USUAL_FEATURES, USUAL_FEATURES[:3], (), (*USUAL_FEATURES, Feature.UNORDERED_EXECUTION))
    for _ in range(FRAMES):
        if len(clients) < 6:
            user = chance.choice(("admin", "admin", "reader", "writer", None))
            clients.append(Talker(engine, user=user, features=chance.choice(feature_sets)))
        client = chance.choice(clients)
        client.receive(any_request(chance))
        for other in clients:
            other.collect()
            if other.session.dcp is not None and chance.random() < 0.01:
                other.session.dcp.handle_timeout(engine.now)
        if chance.random() < 0.01:
            pass_time(engine, chance.random() * 100)
        for other in list(clients):
            if other.session.is_closing or other.session.is_waiting:
                other.session.connection_lost()
                clients.remove(other)
    for client in clients:
        client.session.connection_lost()
    assert not engine.sessions
    assert not engine.buckets["default"].dcp_sessions
    assert Talker(engine).call(Opcode.NOOP).status == 0


operations = st.lists(
    st.tuples(
        st.sampled_from(
            (
                *(Opcode.SET, Opcode.SET, Opcode.SET, Opcode.GET, Opcode.GET, Opcode.DELETE, Opcode.DELETE, Opcode.ADD),
                *(Opcode.GET_LOCKED, Opcode.SUBDOC_DICT_UPSERT, Opcode.DISABLE_TRAFFIC, Opcode.ENABLE_TRAFFIC),
            )
        ),
        st.sampled_from(("a", "b", "c", "", "k" * 250, "k" * 251)),
        st.sampled_from((b"", b"1", b"plain", b'{"a":[1]}', b"{", b"\xff")),
        st.sampled_from((0, 0, 5, 10_000_000, 4_000_000_000)),
        st.integers(0, 4),
        st.sampled_from((0, 0, 1, 2)),
        st.sampled_from((0, 0, 0, 3)),
    ),
    max_size=40,
)


@given(operations, st.booleans())
def test_the_direct_ways_do_what_the_command_table_does(steps, has_collections):
    features = (
        USUAL_FEATURES if has_collections else tuple(code for code in USUAL_FEATURES if code != Feature.COLLECTIONS)
    )
    direct, by_table = (Talker(engine_of(vbuckets=4), features=features) for _ in range(2))
    assert direct.session.plain_opcodes
    by_table.session.plain_opcodes = frozenset()
    for opcode, key, value, expiration, vbid, datatype, seconds in steps:
        answers = []
        for client in (direct, by_table):
            pass_time(client.engine, seconds)
            step = client.session.receive(any_step(client, opcode, key, value, expiration, vbid, datatype))
            answers.append(step.output)
        assert b"".join(answers[0]) == b"".join(answers[1])
    assert history(direct) == history(by_table)


def any_step(client: Talker, opcode: int, key: str, value: bytes, expiration: int, vbid: int, datatype: int) -> bytes:
    """A request of that command: what it has no place for is left out."""
    if opcode in (Opcode.ENABLE_TRAFFIC, Opcode.DISABLE_TRAFFIC):
        return encode_request(opcode)
    if opcode == Opcode.SUBDOC_DICT_UPSERT:
        # A system xattr, of a new document if there is none: a tombstone keeps it.
        return encode_request(opcode, key=client.key(key), vbid=vbid, extras=b"\0\2\4\1", value=b"_s1")
    is_write = opcode in (Opcode.SET, Opcode.ADD)
    return encode_request(
        opcode,
        key=client.key(key),
        extras=struct.pack(">II", 7, expiration) if is_write else b"",
        value=value if is_write else b"",
        datatype=datatype if is_write else 0,
        vbid=vbid,
    )


def any_sets(chance: random.Random, client: Talker, count: int) -> bytes:
    """Many SETs as loaders send them, some of which the bulk way has to leave to others."""
    parts = []
    for number in range(count):
        is_odd = chance.random() < 0.003
        parts.append(
            encode_request(
                chance.choice((Opcode.SETQ, Opcode.GET, Opcode.ADD)) if is_odd else Opcode.SET,
                vbid=chance.choice((0, 1, 2, 3)) if not is_odd else chance.choice((0, 3, 4, 60000)),
                opaque=number,
                cas=chance.choice((0, 1)) if is_odd else 0,
                datatype=chance.choice((0, 1)),
                key=client.key(f"key-{chance.getrandbits(20)}"),
                extras=struct.pack(">II", chance.getrandbits(32), chance.choice((0, 0, 60, 3_000_000_000))),
                value=chance.choice((b"", b"1", b"plain", b'{"a":[1]}', b"{", b"\xff" * 40)),
            )
        )
    return b"".join(parts)


@pytest.mark.parametrize("has_collections", [True, False])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
def test_many_sets_at_once_do_what_the_command_table_does(seed, has_collections):
    left_out = {0: {Feature.MUTATION_SEQNO}}.get(seed, set()) | (set() if has_collections else {Feature.COLLECTIONS})
    features = tuple(code for code in USUAL_FEATURES if code not in left_out)
    at_once, by_table = (Talker(engine_of(vbuckets=4), features=features) for _ in range(2))
    by_table.session.plain_opcodes = frozenset()
    for round_number in range(6):
        chance = random.Random(seed * 100 + round_number)
        data = any_sets(chance, at_once, 600) + b"\x80"
        answers = []
        for client in (at_once, by_table):
            pass_time(client.engine, 25)
            rest, out = data, []
            while (step := client.session.receive(rest)).used:
                rest = rest[step.used :]
                out += step.output
            assert rest == b"\x80"
            answers.append(b"".join(out))
        assert answers[0] == answers[1]
    assert history(at_once) == history(by_table)
    assert at_once.engine.buckets["default"].dirty == by_table.engine.buckets["default"].dirty


def history(client: Talker) -> list[bytes]:
    """The bytes of every vbucket's history."""
    return [
        bytes(vbucket.read(0, vbucket.high_seqno, snapshot_end=None, max_bytes=1 << 20).data)
        for vbucket in client.engine.buckets["default"].vbuckets
        if vbucket is not None
    ]
