"""Every way to read, against servers that break the protocol: in bounded time the right error, or right data.

Rows that were given out before an error are always a part of the right ones: each vbucket's from the first seqno on,
in order, none twice.
"""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from dcpstream.cli import exits
from dcpstream.client import BucketReader, Client, ClientOptions, KvClient
from dcpstream.client.machine.nodes import nodes, retry
from dcpstream.client.machine.nodes.retry import PROTOCOL_ERRORS_MAX
from dcpstream.errors import (
    AuthenticationFailed,
    ConfigError,
    ConnectionLost,
    DcpstreamError,
    KeyNotFound,
    RemoteProtocolError,
    StatusError,
    WireError,
)
from dcpstream.wire import Datatype, Frame, Magic, Opcode, Status, encode_request, encode_response
from dcpstream.wire.frames import HEADER
from dcpstream.wire.values import encode_vbucket_seqnos
from lab.tools.patience import patient
from tests.kit.cases import each_case
from tests.kit.fake_node import config
from tests.kit.hostile import (
    LONG_S,
    READINGS,
    ROWS,
    SHORT_S,
    VBUCKETS,
    WHOLE,
    HostileServer,
    Outcome,
    Script,
    history,
    mutated,
    read,
    row,
    rows,
    start_of,
)
from tests.kit.messages import accepted, marker, mutation, rollback, seqno_advanced, stream_end
from tests.kit.recorded import split_frames

BOUND_S = 20.0
"""No read may take longer; most take a fraction of a second, and some the idle time-out of the kit."""

BROKEN = (RemoteProtocolError, WireError)
"""Bytes that must not be: exit status 5."""

AWAY = (ConnectionLost,)
"""A server that is as good as not there: exit status 3."""

Stream = Callable[[Frame], bytes]
Kind = tuple[Callable[[], Script], tuple[type[BaseException], ...] | None]
"""A script, and the classes that the error may have; None if the data must come right, `SAID_TWICE` if a part of it may
come without an error."""

SAID_TWICE: tuple[type[BaseException], ...] = ()
"""The server says, when it is asked a second time, that it has no more for this user. Only it can know, as with
SEQNO_ADVANCED: a user who may not see the system collections gets streams that end below the high seqno."""

KINDS: dict[str, Kind] = {}


def answers(name: str, *errors: type[BaseException], **methods: object) -> None:
    """A server that differs from a sound one in some methods or attributes."""
    KINDS[name] = (type("Broken", (Script,), methods), errors or None)


def sends(name: str, make: Stream, *errors: type[BaseException]) -> None:
    """A server that sends this after it has accepted a stream."""

    def stream(_: Script, request: Frame, attempt: int) -> bytes:
        return accepted(request.opaque) + make(request)

    answers(name, *(errors or BROKEN), stream=stream)


def says(name: str, make: Stream, *errors: type[BaseException]) -> None:
    """A server that gives this answer to stream requests."""
    answers(name, *(errors or BROKEN), stream=lambda _, request, attempt: make(request))


def at_first(name: str, make: Stream) -> None:
    """A server that is broken at the first two stream requests, and sound after that."""

    def stream(_: Script, request: Frame, attempt: int) -> bytes:
        return make(request) if attempt < 2 else accepted(request.opaque) + history(request)

    answers(name, stream=stream)


def whole(request: Frame) -> bytes:
    return marker(request.opaque, start_of(request), ROWS, vbid=request.vbid)


def bare(opcode: int, *, magic: int = Magic.REQUEST, body: int = 0, opaque: int = 0, extras: int = 0) -> bytes:
    """A header, whatever its lengths say."""
    return HEADER.pack(magic, opcode, 0, extras, 0, 0, body, opaque, 0)


def pushed(text: bytes) -> bytes:
    extras, bucket = struct.pack(">qq", 0, 99), b"default"
    body = extras + bucket + text
    return HEADER.pack(Magic.SERVER_REQUEST, 1, len(bucket), len(extras), 0, 0, len(body), 0, 0) + body


def with_datatype(request: Frame, datatype: int, value: bytes) -> bytes:
    frame = Frame(
        Magic.REQUEST,
        Opcode.DCP_MUTATION,
        datatype=datatype,
        vbid=request.vbid,
        opaque=request.opaque,
        extras=struct.pack(">QQIIIHB", 1, 1, 0, 0, 0, 0, 0),
        key=b"\0k1",
        value=value,
    )
    return whole(request) + frame.encode() + rows(request, 2, ROWS)


# Order, bounds, identity.
sends("repeats every row", lambda q: whole(q) + b"".join(2 * row(q.opaque, q.vbid, n) for n in range(1, ROWS + 1)))
sends("repeats a part of the rows", lambda q: whole(q) + rows(q, 1, 60) + rows(q, 40, ROWS))
sends("lets seqnos fall", lambda q: whole(q) + rows(q, 1, 50) + row(q.opaque, q.vbid, 49) + rows(q, 51, ROWS))
sends("sends the rows backwards", lambda q: whole(q) + b"".join(row(q.opaque, q.vbid, n) for n in range(ROWS, 0, -1)))
sends("begins with seqno 0", lambda q: whole(q) + rows(q, 0, ROWS))
sends("sends a row of another vbucket", lambda q: whole(q) + rows(q, 1, 9) + row(q.opaque, 1 - q.vbid, 10))
sends("sends only rows of another vbucket", lambda q: whole(q) + b"".join(row(q.opaque, 700, n) for n in range(1, 200)))
sends("sends rows with a foreign opaque", lambda q: whole(q) + b"".join(row(0x7777, q.vbid, n) for n in range(1, 101)))
sends("sends rows with opaque 0", lambda q: whole(q) + b"".join(row(0, q.vbid, n) for n in range(1, ROWS + 1)))
sends("sends rows with an unknown opcode", lambda q: whole(q) + rows(q, 1, ROWS).replace(b"\x80\x57", b"\x80\xee"))
sends("sends rows as prepares", lambda q: whole(q) + rows(q, 1, ROWS).replace(b"\x80\x57", b"\x80\x55"))
sends("sends rows without a marker", lambda q: rows(q, 1, ROWS))
sends("sends rows above the marker", lambda q: marker(q.opaque, 0, 49, vbid=q.vbid) + rows(q, 1, ROWS))
sends("sends rows below the marker", lambda q: marker(q.opaque, 50, ROWS, vbid=q.vbid) + rows(q, 1, ROWS))
sends("advances the seqno without a marker", lambda q: seqno_advanced(q.opaque, ROWS, vbid=q.vbid))
sends(
    "advances the seqno to where it is", lambda q: whole(q) + rows(q, 1, 9) + seqno_advanced(q.opaque, 9, vbid=q.vbid)
)
# Markers.
sends("sends a marker that goes back", lambda q: whole(q) + rows(q, 1, 50) + marker(q.opaque, 0, 20, vbid=q.vbid))
sends("sends markers that overlap", lambda q: whole(q) + rows(q, 1, 50) + marker(q.opaque, 30, ROWS, vbid=q.vbid))
sends("sends a marker that ends before it starts", lambda q: marker(q.opaque, 9, 3, vbid=q.vbid))
sends("sends a marker of another vbucket", lambda q: marker(q.opaque, 0, ROWS, vbid=1 - q.vbid) + rows(q, 1, ROWS))
sends("cuts its markers short", lambda q: encode_request(Opcode.DCP_SNAPSHOT_MARKER, vbid=q.vbid, opaque=q.opaque))
sends(
    "begins a snapshot without order unasked",
    lambda q: encode_request(Opcode.DCP_OSO_SNAPSHOT, vbid=q.vbid, opaque=q.opaque, extras=struct.pack(">I", 1)),
)
# Ends.
sends(
    "ends with OK inside a snapshot",
    lambda q: whole(q) + rows(q, start_of(q) + 1, 49) + stream_end(q.opaque, vbid=q.vbid),
)
sends(
    "ends with OK below the wanted end, and begins again",
    lambda q: marker(q.opaque, 0, 49, vbid=q.vbid) + rows(q, 1, 49) + stream_end(q.opaque, vbid=q.vbid),
)
sends("ends with OK at once", lambda q: stream_end(q.opaque, vbid=q.vbid))
sends(
    "ends with OK below the wanted end",
    lambda q: (
        (b"" if start_of(q) else marker(q.opaque, 0, 49, vbid=q.vbid) + rows(q, 1, 49))
        + stream_end(q.opaque, vbid=q.vbid)
    ),
)
for name in ("ends with OK at once", "ends with OK below the wanted end"):
    KINDS[name] = (KINDS[name][0], SAID_TWICE)
sends("ends for an empty filter that there is not", lambda q: stream_end(q.opaque, 7, vbid=q.vbid))
sends("ends without a reason", lambda q: encode_request(Opcode.DCP_STREAM_END, vbid=q.vbid, opaque=q.opaque))
sends(
    "goes on after the end",
    lambda q: whole(q) + rows(q, 1, 9) + stream_end(q.opaque, 2, vbid=q.vbid) + rows(q, 10, ROWS),
)
sends("ends every stream at once because of its state", lambda q: stream_end(q.opaque, 2, vbid=q.vbid), *AWAY)
sends("ends every stream at once for an unknown reason", lambda q: stream_end(q.opaque, 99, vbid=q.vbid), *AWAY)
sends("says nothing after it has accepted the stream", lambda q: b"", *AWAY)
sends("says nothing after the marker", whole, *AWAY)
# Answers.
says("sends rows before the answer", lambda q: whole(q) + rows(q, 1, ROWS) + accepted(q.opaque))
says("answers twice", lambda q: 2 * accepted(q.opaque) + history(q))
says("answers another request", lambda q: encode_response(Opcode.NOOP, opaque=q.opaque))
says("answers what nobody asked", lambda q: encode_response(Opcode.DCP_STREAM_REQ, opaque=0x7777))
says("sends an empty failover log", lambda q: encode_response(q.opcode, opaque=q.opaque))
says("sends half a failover log", lambda q: encode_response(q.opcode, opaque=q.opaque, value=bytes(12)))
says("asks for a rollback to nowhere", lambda q: encode_response(q.opcode, status=Status.ROLLBACK, opaque=q.opaque))
says("rolls back a reader that has nothing", lambda q: rollback(q.opaque, 0))
says("refuses with an unknown status", lambda q: encode_response(q.opcode, status=0x7B, opaque=q.opaque), StatusError)
says("puts every stream off", lambda q: encode_response(q.opcode, status=Status.TMPFAIL, opaque=q.opaque), *AWAY)
says(
    "has no vbucket and the same map for ever",
    lambda q: encode_response(q.opcode, status=Status.NOT_MY_VBUCKET, opaque=q.opaque),
    *AWAY,
)
says(
    "has no vbucket and a map that is none",
    lambda q: encode_response(q.opcode, status=Status.NOT_MY_VBUCKET, opaque=q.opaque, value=b"[" * 100_000),
    *AWAY,
)
# Frames.
sends("sends no frames", lambda q: b"?" * 64)
sends("announces a frame of 4 GiB", lambda q: whole(q) + bare(Opcode.DCP_MUTATION, body=0xFFFFFFFF, opaque=q.opaque))
sends("announces parts longer than the frame", lambda q: bare(Opcode.DCP_MUTATION, extras=31, opaque=q.opaque))
sends("announces a frame that never comes", lambda q: whole(q) + bare(Opcode.DCP_MUTATION, body=29 << 20), *AWAY)
sends("sends rows with short extras", lambda q: whole(q) + bare(Opcode.DCP_MUTATION, opaque=q.opaque))
sends(
    "sends a key without a collection",
    lambda q: (
        whole(q) + encode_request(Opcode.DCP_MUTATION, vbid=q.vbid, opaque=q.opaque, extras=struct.pack(">Q23x", 1))
    ),
)
sends(
    "sends a key whose collection never ends",
    lambda q: (
        whole(q)
        + encode_request(
            Opcode.DCP_MUTATION, vbid=q.vbid, opaque=q.opaque, extras=struct.pack(">Q23x", 1), key=b"\xff" * 9
        )
    ),
)
sends("sends a value that is no snappy", lambda q: with_datatype(q, Datatype.SNAPPY, b"\x05\xff\xff\xff"))
sends("sends a value that claims to be 4 GiB", lambda q: with_datatype(q, Datatype.SNAPPY, b"\xff\xff\xff\xff\x0f\x00"))
sends("sends xattrs longer than the value", lambda q: with_datatype(q, Datatype.XATTR, b"\xff\xff\xff\xff{}"))
sends(
    "cuts its system events short",
    lambda q: whole(q) + encode_request(Opcode.DCP_SYSTEM_EVENT, vbid=q.vbid, opaque=q.opaque, extras=b"1"),
)
sends("sends an unknown request of the server", lambda q: bare(0x77, magic=Magic.SERVER_REQUEST))
sends(
    "asks for what a client does not do",
    lambda q: encode_request(Opcode.DCP_SET_VBUCKET_STATE, vbid=q.vbid, extras=b"\1"),
)
sends("refuses acknowledgements", lambda q: encode_response(Opcode.DCP_BUFFER_ACK, status=Status.EINVAL))
# Connections.
answers("talks HTTP", *AWAY, greeting=lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n", sends=lambda _, data: (data, True))
answers("hangs up at once", *AWAY, sends=lambda _, data: (b"", True))
answers("says nothing at all", *AWAY, sends=lambda _, data: (b"", False))
answers("hangs up in the middle of the handshake", *AWAY, sends=lambda _, data: (data[:30], True))
answers(
    "hangs up at every stream request",
    *AWAY,
    sends=lambda _, data: (b"", True) if b"\x81\x53" in data else (data, False),
)
answers("sends garbage right after the handshake", *BROKEN, opened=lambda _: b"?" * 24)
answers("sends rows right after the handshake", *BROKEN, opened=lambda _: mutation(1, 1))
# The handshake.
answers(
    "answers the handshake with other opcodes",
    *AWAY,
    handshake=lambda _, request, answer: encode_response(Opcode.GET, opaque=request.opaque),
)
answers("answers the handshake twice", *BROKEN, *AWAY, handshake=lambda _, request, answer: 2 * answer)
answers("knows no way to log in", AuthenticationFailed, mechanisms="NONSENSE")
answers(
    "asks for a billion rounds of hashing",
    AuthenticationFailed,
    handshake=lambda _, request, answer: (
        encode_response(
            request.opcode,
            status=Status.AUTH_CONTINUE,
            opaque=request.opaque,
            value=b"r=%b,s=c2FsdA==,i=1000000000" % request.value.partition(b"r=")[2],
        )
        if request.opcode == Opcode.SASL_AUTH
        else answer
    ),
)
answers(
    "does not know the password",
    AuthenticationFailed,
    handshake=lambda _, request, answer: (
        encode_response(request.opcode, opaque=request.opaque, value=b"v=bm8=")
        if request.opcode == Opcode.SASL_STEP
        else answer
    ),
)
answers("refuses DCP", StatusError, statuses=lambda _: {Opcode.DCP_OPEN: Status.NOT_SUPPORTED})
answers("refuses flow control", StatusError, statuses=lambda _: {Opcode.DCP_CONTROL: Status.EINVAL})


# Maps, lists of collections, seqnos.
def map_of(**fields: object) -> Callable[[Script, int], bytes]:
    return lambda _, port: json.dumps({**json.loads(config(VBUCKETS, ports=(port,))), **fields}).encode()


DEEP = b'{"a":' * 100_000
MILLIONS = b'{"rev":1,"nodesExt":[{"services":{"kv":1}}],"vBucketServerMap":{"vBucketMap":[%b[0]]}}' % (
    b"[0]," * 2_000_000
)

answers("sends a map that is no JSON", *BROKEN, map=lambda _, port: b"{")
answers("sends a map that is nested too deeply", *BROKEN, map=lambda _, port: DEEP)
answers("sends a map of two million vbuckets", *BROKEN, map=lambda _, port: MILLIONS)
answers("sends a map without vbuckets", *BROKEN, map=map_of(vBucketServerMap={"vBucketMap": []}))
answers("sends a map whose version is infinite", *BROKEN, map=lambda _, port: b'{"rev": 1e999, "nodesExt": []}')
answers("sends a map with a port that is none", *BROKEN, map=map_of(nodesExt=[{"services": {"kv": 99999999}}]))
answers(
    "sends a map with copies at no node", ConfigError, *AWAY, map=map_of(vBucketServerMap={"vBucketMap": [[7], [-1]]})
)
answers(
    "sends a map with a host that is none",
    ConfigError,
    *AWAY,
    map=map_of(nodesExt=[{"hostname": "x" * 300, "services": {"kv": 11210}}]),
)
answers(
    "sends a map of a node that is not there",
    ConfigError,
    *AWAY,
    map=map_of(nodesExt=[{"hostname": "127.0.0.1", "services": {"kv": 1}}]),
)
answers(
    "sends collections that are nested too deeply",
    *BROKEN,
    manifest=lambda _, request: encode_response(request.opcode, opaque=request.opaque, value=DEEP),
)
answers(
    "sends collections with numbers for names",
    *BROKEN,
    manifest=lambda _, request: encode_response(
        request.opcode, opaque=request.opaque, value=b'{"uid": "0", "scopes": [{"name": 5, "uid": "0"}]}'
    ),
)
answers(
    "puts the question for collections off for ever",
    *AWAY,
    manifest=lambda _, request: encode_response(request.opcode, status=Status.TMPFAIL, opaque=request.opaque),
)
answers("never tells its collections", *AWAY, manifest=lambda _, request: b"")
answers(
    "sends a failover log of a million entries",
    *BROKEN,
    stream=lambda _, request, attempt: encode_response(request.opcode, opaque=request.opaque, value=bytes(16_000_000)),
)
answers(
    "grants a million features",
    *BROKEN,
    *AWAY,
    handshake=lambda _, request, answer: (
        encode_response(request.opcode, opaque=request.opaque, value=bytes(2_000_000))
        if request.opcode == Opcode.HELLO
        else answer
    ),
)
answers(
    "sends seqnos of vbuckets that there are not",
    *BROKEN,
    high_seqnos=lambda _, request: encode_response(
        request.opcode, opaque=request.opaque, value=encode_vbucket_seqnos([(0, 100), (1, 100), (900, 5)])
    ),
)
answers(
    "cuts its seqnos short",
    *BROKEN,
    high_seqnos=lambda _, request: encode_response(request.opcode, opaque=request.opaque, value=bytes(13)),
)
answers("never tells its seqnos", ConfigError, *AWAY, high_seqnos=lambda _, request: b"")
# What must not be minded.
answers("is sound")
answers("pushes maps that are none", opened=lambda _: 200 * pushed(b"[" * 5000))
answers("pushes an old map again and again", opened=lambda _: 200 * pushed(config(1, rev=0)))
answers("probes without end", opened=lambda _: 2000 * encode_request(Opcode.DCP_NOOP, opaque=7))
answers(
    "sends late messages of streams that were closed",
    close=lambda _, request: encode_response(request.opcode, opaque=request.opaque),
    stream=lambda _, request, attempt: (
        accepted(request.opaque)
        + marker(request.opaque, start_of(request), 2 * ROWS, vbid=request.vbid)
        + rows(request, start_of(request) + 1, 2 * ROWS)
        + stream_end(request.opaque, 1, vbid=request.vbid)
    ),
)
at_first("sends no frames at first", lambda q: b"?" * 64)
at_first("repeats rows at first", lambda q: accepted(q.opaque) + whole(q) + 2 * rows(q, 1, 9))
at_first("ends with OK too early at first", lambda q: accepted(q.opaque) + whole(q) + stream_end(q.opaque, vbid=q.vbid))
at_first("puts off at first", lambda q: encode_response(q.opcode, status=Status.TMPFAIL, opaque=q.opaque))


class LateBucket(Script):
    """A server that is restarted in the middle of a read, and listens for a while before it has its bucket."""

    status = Status.KEY_ENOENT

    def __init__(self) -> None:
        self.refusals = 0

    def statuses(self) -> dict[int, int]:
        self.refusals -= 1
        return {Opcode.SELECT_BUCKET: self.status} if self.refusals >= 0 else {}

    def stream(self, request: Frame, attempt: int) -> bytes:
        if attempt:
            return accepted(request.opaque) + history(request)
        self.refusals = 5
        return accepted(request.opaque) + whole(request) + rows(request, 1, 40)

    def sends(self, data: bytes) -> tuple[bytes, bool]:
        return data, self.refusals == 5 and b"\x81\x53" in data


class HiddenBucket(LateBucket):
    status = Status.EACCESS


KINDS["is restarted and has no bucket for a while"] = (LateBucket, None)
KINDS["is restarted and hides its bucket for a while"] = (HiddenBucket, None)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken server is asked again soon: what is tried is what is made of its bytes."""
    monkeypatch.setattr(retry, "MAX_PAUSE_S", 0.02)
    monkeypatch.setattr(nodes, "NEXT_SEED_S", 0.02)


def check(outcome: Outcome, errors: tuple[type[BaseException], ...] | None) -> None:
    """Right data, or an error of one of the classes and rows that are a part of the right ones."""
    assert outcome.seconds < BOUND_S
    for vbid in range(VBUCKETS):
        seqnos = [seqno for number, seqno in outcome.rows if number == vbid]
        assert seqnos == list(range(1, len(seqnos) + 1)), "rows that are wrong, doubled or left out"
    assert {vbid for vbid, _ in outcome.rows} <= set(range(VBUCKETS))
    if errors is None:
        assert outcome.error is None, repr(outcome.error)
        assert sorted(outcome.rows) == WHOLE
    elif errors is SAID_TWICE:
        assert outcome.error is None, repr(outcome.error)
        assert len(outcome.rows) in {0, 2 * 49}
    else:
        assert isinstance(outcome.error, errors), repr(outcome.error)
        assert isinstance(outcome.error, DcpstreamError)


def cases() -> Iterator[object]:
    """Every kind with every way to read; of each kind one, in turn, is no slow test."""
    for number, kind in enumerate(KINDS):
        for place, reading in enumerate(READINGS):
            is_quick = (place - number) % len(READINGS) == 0
            yield pytest.param(kind, reading, id=f"{reading}, {kind}", marks=() if is_quick else pytest.mark.slow)


@pytest.mark.parametrize(("kind", "reading"), list(cases()))
def test_a_broken_server(kind: str, reading: str) -> None:
    if reading == "spark task":
        pytest.importorskip("pyspark", reason="the Spark source needs pyspark")
    elif "changes" not in reading:
        pytest.importorskip("pyarrow", reason="Arrow batches need pyarrow")
    make, errors = KINDS[kind]
    with HostileServer(make()) as server:
        outcome = read(reading, server, SHORT_S if errors and AWAY[0] in errors else LONG_S)
        # What is read from a plan needs no seqnos.
        check(outcome, None if (kind, reading) == ("never tells its seqnos", "ranges") else errors)


def test_there_are_enough_kinds() -> None:
    assert len(KINDS) >= 90


def test_a_broken_server_is_asked_a_few_times_and_not_for_ever() -> None:
    make, _ = KINDS["repeats every row"]
    with HostileServer(make()) as server:
        outcome = read("changes", server)
        assert f"broke the protocol on {PROTOCOL_ERRORS_MAX} streams of vbucket" in str(outcome.error)
        assert server.attempts <= VBUCKETS * PROTOCOL_ERRORS_MAX
        assert server.connections == 2, "one of them for the questions"


def test_a_server_whose_connections_are_broken_is_asked_a_few_times_and_not_for_ever() -> None:
    make, _ = KINDS["sends no frames"]
    with HostileServer(make()) as server:
        outcome = read("changes", server)
        assert f"broke the protocol on {PROTOCOL_ERRORS_MAX} connections and is given up" in str(outcome.error)
        assert server.connections == PROTOCOL_ERRORS_MAX + 1, "and one for the questions"


def test_an_endless_stream_ends_as_well(caplog: pytest.LogCaptureFixture) -> None:
    make, _ = KINDS["sends no frames"]
    with (
        HostileServer(make()) as server,
        Client(server.connection_string, username="Administrator", password="password", bucket="default") as client,
    ):
        with pytest.raises(RemoteProtocolError, match="is given up"):
            list(client.changes())
        lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert len(lines) == 1
        assert "attempt 1 failed, trying again in" in lines[0]
        assert "is not a magic" in lines[0]


@each_case("status", [Status.KEY_ENOENT, Status.EACCESS])
def test_a_cluster_waits_for_a_bucket_that_it_has_reached(status: int) -> None:
    script = LateBucket()
    script.status = status  # type: ignore[assignment]
    with HostileServer(script) as server, cluster_of(server) as cluster:
        assert cluster.high_seqnos() == dict.fromkeys(range(VBUCKETS), ROWS)
        script.refusals = 5
        server.cut()
        assert cluster.high_seqnos() == dict.fromkeys(range(VBUCKETS), ROWS)
        assert script.refusals < 0


def test_a_cluster_that_never_finds_its_bucket_again_has_lost_its_connection() -> None:
    """As for a node that is away, so that whoever repeats questions repeats this one."""
    script = LateBucket()
    with HostileServer(script) as server, cluster_of(server, SHORT_S) as cluster:
        assert cluster.map.vbucket_count == VBUCKETS
        cluster.close()
        script.refusals = 1_000_000
        with pytest.raises(ConnectionLost, match=r"bucket 'default' was refused .* there is no such bucket"):
            cluster.manifest()


def test_a_bucket_that_was_never_reached_is_refused_at_once() -> None:
    script = LateBucket()
    script.refusals = 1_000_000
    with HostileServer(script) as server, cluster_of(server) as cluster:
        with pytest.raises(KeyNotFound, match="there is no such bucket"):
            cluster.high_seqnos()
        assert server.connections == 1


def test_a_key_value_client_gets_an_error_if_its_connection_is_lost() -> None:
    script = LateBucket()
    with HostileServer(script) as server, KvClient(server.connection_string, "Administrator", "password") as kv:
        assert kv.map.vbucket_count == VBUCKETS
        kv.close()
        script.refusals = 1_000_000
        with pytest.raises(ConnectionLost, match="there is no such bucket"):
            kv.stats()


def cluster_of(server: HostileServer, timeout_s: float = LONG_S) -> BucketReader:
    return BucketReader(
        server.connection_string,
        username="Administrator",
        password="password",
        bucket="default",
        options=ClientOptions(connect_timeout_s=timeout_s),
    )


def command(server: HostileServer) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "dcpstream.cli", "stream", server.connection_string]
    return subprocess.run(line, capture_output=True, text=True, timeout=patient(60), check=False)


def test_the_command_ends_with_status_5_and_has_reported_its_retries() -> None:
    make, _ = KINDS["ends with OK inside a snapshot"]
    with HostileServer(make()) as server:
        done = command(server)
    assert done.returncode == exits.BAD_DATA
    assert "trying again in" in done.stderr
    assert "ends with OK at seqno 49, in the middle of a snapshot" in done.stderr
    assert "Traceback" not in done.stderr
    seqnos = [int(json.loads(line)["seqno"]) for line in done.stdout.splitlines()]
    assert len(seqnos) <= 2 * 49


@pytest.mark.slow
def test_the_command_prints_documents_that_are_nested_too_deeply() -> None:
    value = b"[" * 100_000 + b"]" * 100_000  # more than any version of Python reads

    def stream(_: Script, request: Frame, attempt: int) -> bytes:
        first = mutation(request.opaque, 1, vbid=request.vbid, value=value)
        return accepted(request.opaque) + whole(request) + first + rows(request, 2, ROWS)

    with HostileServer(type("Deep", (Script,), {"stream": stream})()) as server:
        done = command(server)
    assert done.returncode == exits.OK, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted((line["vbucket"], int(line["seqno"])) for line in lines) == WHOLE
    assert [line["text"] for line in lines if "text" in line and line["seqno"] == "1"] == [value.decode()] * VBUCKETS


def got(opcode: int = Opcode.GET, **fields: object) -> Callable[[Script, Frame], bytes]:
    return lambda _, request: encode_response(opcode, opaque=request.opaque, **fields)  # type: ignore[arg-type]


@each_case(
    ("answer", "errors"),
    [
        (got(Opcode.NOOP), BROKEN),
        (lambda *_: bare(Opcode.GET, magic=Magic.RESPONSE, body=0xFFFFFFF0), BROKEN),
        (lambda *_: bare(Opcode.GET, magic=Magic.RESPONSE, extras=9), BROKEN),
        (lambda *_: b"?" * 24, BROKEN),
        (lambda *_: bare(Opcode.GET), BROKEN),
        (got(status=0x7B), (StatusError,)),
    ],
    ids=["another answer", "4 GiB", "parts", "no frame", "a request", "unknown status"],
)
def test_the_key_value_client(
    answer: Callable[[Script, Frame], bytes], errors: tuple[type[BaseException], ...]
) -> None:
    def handshake(script: Script, request: Frame, right: bytes) -> bytes:
        return answer(script, request) if request.opcode == Opcode.GET else right

    with (
        HostileServer(type("Broken", (Script,), {"handshake": handshake})()) as server,
        KvClient(server.connection_string, "Administrator", "password") as kv,
        pytest.raises(errors),
    ):
        kv.get("k")


@pytest.mark.parametrize("reading", ["changes", "async batches"])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
def test_a_good_conversation_with_changed_bytes(seed: int, reading: str) -> None:
    """See also the property test test_hostile_bytes.py, which does it without sockets and more often."""
    if "batches" in reading:
        pytest.importorskip("pyarrow", reason="Arrow batches need pyarrow")
    dice = random.Random(seed)

    def stream(_: Script, request: Frame, attempt: int) -> bytes:
        sound = accepted(request.opaque) + history(request)
        return mutated(split_frames(sound), dice) if attempt < 2 * VBUCKETS else sound

    with HostileServer(type("Changed", (Script,), {"stream": stream})()) as server:
        outcome = read(reading, server, SHORT_S)
    assert outcome.seconds < BOUND_S
    assert outcome.error is None or isinstance(outcome.error, DcpstreamError), repr(outcome.error)
    for vbid in range(VBUCKETS):
        seqnos = [seqno for number, seqno in outcome.rows if number == vbid]
        assert seqnos == sorted(set(seqnos))
    assert set(outcome.rows) <= set(WHOLE)
