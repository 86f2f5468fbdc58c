"""SET by its paths (command table, native path): the same bytes out, the same stored state.

Each run makes random requests, mostly SETs and some with odd headers, with other commands and changes of the bucket
between them. Equal nodes get the same reads; one has the command table alone, and one has both.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import NamedTuple

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from dcpstream.model import VbucketState
from dcpstream.wire import Feature, Opcode, Status, encode_request, encode_response
from dcpstream.wire.buffers import Buffer
from dcpstream.wire.values import snappy_compress
from dcpstream_node.engine.bucket.bucket import Bucket
from dcpstream_node.engine.handlers.native import answer_plain
from dcpstream_node.engine.session.responses import pack_duration
from dcpstream_node.engine.session.session import Session
from dcpstream_node.testing.simulation import USUAL_FEATURES
from tests.kit.cases import each_case
from tests.kit.engine import Talker, engine_of, pass_time, with_collection

VBUCKETS = 4
NAMED = 9
DOCUMENTS = 6
FEATURES = tuple(sorted({*USUAL_FEATURES, Feature.SYNC_REPLICATION}))
WITHOUT = (Feature.SNAPPY, Feature.COLLECTIONS, Feature.MUTATION_SEQNO, Feature.JSON, Feature.XERROR)
CONNECTIONS = {
    "usual": FEATURES,
    **{f"without {feature.name}": tuple(code for code in FEATURES if code != feature) for feature in WITHOUT},
    "traced": (*FEATURES, Feature.TRACING),
}
TICK_S = 0.000_123
"""Each look at the stopwatch takes this long, so that requests have a duration."""


PACKED = (snappy_compress(b'"' + b"x" * 300 + b'"'), snappy_compress(b"short"), snappy_compress(b""))
"""Values that are compressed: one that becomes shorter, and two that do not."""


needs_kernel = pytest.mark.skipif(answer_plain is None, reason="needs the native kernel")


class Step(NamedTuple):
    """One thing that happens: a request, or a change of the node."""

    request: bytes = b""
    change: Callable[[Talker], object] | None = None


def sets() -> st.SearchStrategy[Step]:
    """SETs: most are plain, each field may be odd."""
    mostly = st.sampled_from
    return st.builds(
        lambda prefix, key, value, vbid, cas, datatype, extras, framing, opaque, opcode: Step(
            encode_request(
                opcode,
                key=prefix + key,
                value=value,
                vbid=vbid,
                cas=cas,
                datatype=datatype,
                extras=extras,
                framing=framing,
                opaque=opaque,
            )
        ),
        mostly((*[b"\0"] * 8, bytes((NAMED,)), b"\x20", b"", b"\x80\0")),
        st.one_of(
            st.integers(0, DOCUMENTS - 1).map(lambda number: b"key-%d" % number),
            mostly((b"", b"k" * 249, b"k" * 250, b"k" * 251)),
        ),
        mostly((b"plain", b'{"a":[1]}', b"", b"{", b"\xff", b"1", b" null", *PACKED, b"NaN", PACKED[0][:-1])),
        mostly((*range(VBUCKETS), 0, 1, 2, VBUCKETS, 0xFFFF)),
        mostly((*[0] * 12, 1, (1 << 64) - 1)),
        mostly((*[0] * 8, *[2] * 4, 1, 3, 4, 6, 0x80)),
        mostly(
            (
                *[struct.pack(">II", 7, 0)] * 6,
                *(struct.pack(">II", 0xFFFFFFFF, time) for time in (5, 30 * 24 * 3600, 10_000_000, 4_000_000_000)),
                *(b"", bytes(4), bytes(12)),
            )
        ),
        mostly((*[b""] * 12, b"\x11\x01", b"\x11\x03", b"\x50", b"\x13\x01\x00\x10")),
        st.integers(0, (1 << 32) - 1),
        mostly((*[Opcode.SET] * 10, Opcode.SETQ, Opcode.ADD, Opcode.REPLACE)),
    )


EXPIRATIONS = (*[0] * 3, 5, 30 * 24 * 3600, 30 * 24 * 3600 + 1, 4_000_000_000)


def runs() -> st.SearchStrategy[list[Step]]:
    """Plain SETs of different documents, which the native path takes unless the present versions need more."""
    one = st.tuples(st.sampled_from((b"plain", b'{"a":[1]}', b"", b"{")), st.sampled_from(EXPIRATIONS))
    return st.dictionaries(st.integers(0, DOCUMENTS - 1), one, min_size=2, max_size=DOCUMENTS).map(
        lambda values: [
            Step(
                encode_request(
                    Opcode.SET,
                    key=b"\0key-%d" % number,
                    vbid=number % VBUCKETS,
                    opaque=number,
                    extras=struct.pack(">II", number, expiration),
                    value=value,
                )
            )
            for number, (value, expiration) in values.items()
        ]
    )


def neighbours() -> st.SearchStrategy[Step]:
    """Other requests for the same documents: they leave tombstones, locks, xattrs and expirations behind."""
    requests = (
        (Opcode.GET, b"", b""),
        (Opcode.GET, bytes(4), b""),
        (Opcode.DELETE, b"", b""),
        (Opcode.GET_LOCKED, b"", b""),
        (Opcode.GET_LOCKED, struct.pack(">I", 30), b""),
        (Opcode.TOUCH, struct.pack(">I", 2), b""),
        (Opcode.APPEND, b"", b"more"),
        (Opcode.SUBDOC_DICT_UPSERT, b"\0\2\4\1", b"_s1"),
    )
    return st.builds(
        lambda form, number, prefix: Step(
            encode_request(
                form[0], key=prefix + b"key-%d" % number, extras=form[1], value=form[2], vbid=number % VBUCKETS
            )
        ),
        st.sampled_from(requests),
        st.integers(0, DOCUMENTS - 1),
        st.sampled_from((b"\0", b"\0", b"")),
    )


def bucket_of(client: Talker) -> Bucket:
    return client.engine.buckets["default"]


def set_state(state: VbucketState, vbid: int) -> Callable[[Talker], object]:
    value = b'{"topology":[["here"]]}' if state is VbucketState.ACTIVE else b""
    return lambda client: Talker(client.engine, user="@admin").call(
        Opcode.SET_VBUCKET, extras=bytes((state,)), vbid=vbid, value=value, datatype=1 if value else 0
    )


def put_off_writes(vbid: int, is_on: bool) -> Callable[[Talker], object]:
    def change(client: Talker) -> None:
        vbucket = bucket_of(client).vbuckets[vbid]
        assert vbucket is not None
        vbucket.is_backed_up = is_on

    return change


def begin_durable_write(client: Talker) -> None:
    """Another client's durable write of the first document, which waits for a replica that is not there."""
    topology = b'{"topology":[["here","there"]]}'
    Talker(client.engine, user="@admin").call(
        Opcode.SET_VBUCKET, extras=bytes((VbucketState.ACTIVE,)), value=topology, datatype=1
    )
    request = encode_request(Opcode.SET, key=b"\0key-0", extras=bytes(8), value=b"durable", framing=b"\x11\x01")
    other = Talker(client.engine, features=FEATURES)
    other.receive(request)
    assert other.session.is_waiting


def set_durability(level: int) -> Callable[[Talker], object]:
    return lambda client: bucket_of(client).change_settings(
        replace(bucket_of(client).settings, durability_min_level=level)
    )


def set_max_ttl(seconds: int) -> Callable[[Talker], object]:
    return lambda client: bucket_of(client).change_settings(replace(bucket_of(client).settings, max_ttl=seconds))


def set_compression(mode: str) -> Callable[[Talker], object]:
    return lambda client: bucket_of(client).change_settings(replace(bucket_of(client).settings, compression=mode))


def changes() -> st.SearchStrategy[Step]:
    """Changes of the node: time, quota, roles, takeovers, the least durability, a longest life of documents."""
    vbids = st.integers(0, VBUCKETS - 1)
    return st.one_of(
        st.sampled_from((0.5, 3, 31)).map(lambda seconds: lambda client: pass_time(client.engine, seconds)),
        st.booleans().map(lambda is_over: lambda client: bucket_of(client).store.set_over_quota(is_over)),
        st.builds(set_state, st.sampled_from((VbucketState.ACTIVE, VbucketState.ACTIVE, VbucketState.REPLICA)), vbids),
        st.builds(put_off_writes, vbids, st.booleans()),
        st.sampled_from((0, 0, 1)).map(set_durability),
        st.sampled_from((0, 0, 60)).map(set_max_ttl),
        st.sampled_from(("off", "passive", "active")).map(set_compression),
    ).map(lambda change: Step(change=change))


# Runs of plain SETs come in one read each.
reads = st.lists(
    st.one_of(
        runs(),
        runs(),
        st.lists(sets(), min_size=1, max_size=12),
        st.lists(st.one_of(sets(), neighbours()), min_size=1, max_size=12),
        changes().map(lambda change: [change]),
    ),
    max_size=20,
)


def client_with(features: tuple[int, ...], took: list[int] | None = None) -> Talker:
    """A client; of the native path too if there is a list for the number of bytes that it takes in each call."""
    client = Talker(engine_of(vbuckets=VBUCKETS), features=features)
    client.engine.stopwatch = count(step=TICK_S).__next__
    with_collection(client.engine, NAMED)

    def counted(session: Session, data: bytes, at: int) -> int:
        assert answer_plain is not None
        assert took is not None
        stop = answer_plain(session, data, at)
        took.append(stop - at)
        return stop

    client.session.dispatch = replace(client.session.dispatch, plain=None if took is None else counted)
    return client


def state_of(client: Talker) -> object:
    bucket = bucket_of(client)
    logs = [vbucket.log for vbucket in bucket.vbuckets if vbucket is not None]
    return (
        [bytes(log.read(0, log.high_seqno, max_bytes=1 << 24).data) for log in logs],
        [(log.high_seqno, log.item_count) for log in logs],
        [(log.rows.columns, log.rows.keys, log.rows.collection_high) for log in logs],
        [(log.rows.end, log.rows.stale_bytes, len(log.log.tail)) for log in logs],
        [(each.max_cas, each.max_deleted_rev, dict(each.locks)) for each in bucket.vbuckets if each is not None],
        set(bucket.dirty),
        list(bucket.ops),
    )


def answers_to(client: Talker, data: bytes) -> bytes:
    out: list[Buffer] = []
    used = -1
    while used:
        step = client.session.receive(data)
        used, data = step.used, data[step.used :]
        out += step.output
    return b"".join((*out, *client.session.send(0).output))


def plain_set(number: int) -> Step:
    return Step(
        encode_request(
            Opcode.SET, key=b"\0key-%d" % number, extras=bytes(8), value=b"plain", vbid=number % VBUCKETS, opaque=number
        )
    )


def packed_set(*values: bytes) -> Step:
    """SETs of the first document with compressed values."""
    sets_of_first = (
        encode_request(Opcode.SET, key=b"\0key-0", extras=bytes(8), value=value, datatype=2) for value in values
    )
    return Step(b"".join(sets_of_first))


def of_first(opcode: Opcode, extras: bytes = b"", value: bytes = b"") -> Step:
    """Another request for the first document."""
    return Step(encode_request(opcode, key=b"\0key-0", extras=extras, value=value))


def two_rounds(*between: Step) -> list[list[Step]]:
    """The same plain SETs twice, each time in one read, with something between them that the second must heed."""
    sets_of_all = [plain_set(number) for number in range(DOCUMENTS)]
    return [sets_of_all, list(between), sets_of_all]


@needs_kernel
@pytest.mark.parametrize("features", CONNECTIONS.values(), ids=CONNECTIONS)
@given(reads)
@example(two_rounds(of_first(Opcode.GET_LOCKED, struct.pack(">I", 30))))
@example(two_rounds(of_first(Opcode.DELETE)))
@example(
    two_rounds(of_first(Opcode.TOUCH, struct.pack(">I", 2)), Step(change=lambda client: pass_time(client.engine, 3)))
)
@example(two_rounds(of_first(Opcode.SUBDOC_DICT_UPSERT, b"\0\2\4\1", b"_s1")))
@example(two_rounds(Step(change=put_off_writes(0, True))))
@example(two_rounds(Step(change=begin_durable_write)))
@example(two_rounds(Step(change=set_durability(1))))
@example(two_rounds(Step(change=set_max_ttl(60))))
@example(
    [[packed_set(*PACKED)], [Step(change=set_compression("passive"))], [packed_set(*PACKED), of_first(Opcode.GET)]]
)
@example(two_rounds(Step(change=set_state(VbucketState.REPLICA, 0))))
@example(two_rounds(Step(change=lambda client: bucket_of(client).store.set_over_quota(True))))
def test_both_paths_of_a_set_answer_and_store_the_same(features, steps_of_reads):
    took: list[int] = []
    plain, native = client_with(features), client_with(features, took)
    for steps in steps_of_reads:
        for step in steps:
            if step.change is not None:
                for client in (plain, native):
                    step.change(client)
        data = b"".join(step.request for step in steps)
        assert answers_to(native, data) == answers_to(plain, data)
        assert native.session.close_reason == plain.session.close_reason
        assert native.session.is_waiting == plain.session.is_waiting
    assert state_of(native) == state_of(plain)
    event(f"native path took {'some' if any(took) else 'no'} requests")


@needs_kernel
@each_case("features", [FEATURES, CONNECTIONS["traced"]], ids=["usual", "traced"])
@each_case("opcode", [Opcode.GET, Opcode.SET])
def test_a_request_that_ends_with_its_header_is_left_to_the_command_table(opcode, features):
    extras = bytes(8) if opcode == Opcode.SET else b""
    request = encode_request(opcode, extras=extras)
    assert answers_to(client_with(features, took=[]), request) == answers_to(client_with(features), request)


@needs_kernel
@given(st.lists(st.one_of(st.floats(-1, 0.01), st.floats(0, 200)), min_size=1, max_size=8))
@example([0.0, 120.125042, 120.125043, 1e9])
def test_the_native_path_sends_the_duration_of_each_request(durations):
    client = client_with(CONNECTIONS["traced"], took=(took := []))
    looks = iter([told for seconds in durations for told in (1.0, 1.0 + seconds)])
    client.engine.stopwatch = looks.__next__
    gets = b"".join(encode_request(Opcode.GET, key=b"\0missing", opaque=number) for number in range(len(durations)))
    answers = b"".join(
        encode_response(Opcode.GET, status=Status.KEY_ENOENT, opaque=number, framing=pack_duration(1.0 + seconds - 1.0))
        for number, seconds in enumerate(durations)
    )
    assert answers_to(client, gets) == answers
    assert took == [len(gets)]


@needs_kernel
def test_a_stopwatch_that_fails_is_reported():
    client = client_with(CONNECTIONS["traced"], took=[])
    client.engine.stopwatch = iter([1.0]).__next__
    with pytest.raises(StopIteration):
        answers_to(client, encode_request(Opcode.GET, key=b"\0missing"))


@needs_kernel
def test_the_native_path_is_taken():
    took: list[int] = []
    request = b"".join(
        encode_request(Opcode.SET, key=b"\0key-%03d" % number, extras=bytes(8), value=b"v") for number in range(400)
    )
    client = client_with(FEATURES, took=took)
    assert len(answers_to(client, request)) == 400 * 40
    assert took == [0, len(request) - len(request) // 400], "the first CAS is looked for in the log"
