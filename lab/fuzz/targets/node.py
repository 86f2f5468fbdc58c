"""A node's engine: any bytes on its connections give answers or a clean close, and others are served afterwards.

Input: the kind of the first connection, the size of the pieces in which its bytes come, and frames. In place of a frame
may stand two bytes, an event: time passes, writes reach the disk, another connection speaks, one stops to read.
"""

from __future__ import annotations

from collections.abc import Iterator

from dcpstream.dcp.producer.connection import ProducerConnection
from dcpstream.model import VbucketState
from dcpstream.wire import Feature, Frame, Opcode, Status, encode_request, encode_response
from dcpstream.wire.frames import HEADER_BYTES
from dcpstream_node.engine.session.step import Wants
from dcpstream_node.testing.simulation import USUAL_FEATURES, Peer, ScriptedProducer, SimulatedNode
from lab.fuzz import seeds as shared
from lab.fuzz.mutation import MAGICS, split
from tests.kit.engine import is_declared
from tests.kit.messages import deletion, marker, mutation, seqno_advanced, stream_end, system_event

FRAMES_AT = 2
MAX_BYTES = 1600
PEERS_MAX = 4
ANSWER_BYTES_MAX = 1 << 20
"""An answer is never longer here: the bucket is almost empty."""
REST_S = 400.0
"""Longer than every time-out of a node."""
KEY, VALUE = b"\0after the fuzz", b'{"still":"here"}'
ADMIN, READER, WRITER, NOBODY, PRODUCER, CONSUMER, PLAIN, STRANGER = range(8)
KINDS = 8
PASS_TIME, FLUSH, SWITCH, STOP_READING, RECONNECT = range(5)
EVENTS = 5


def seeds() -> Iterator[bytes]:
    sent = [frame for direction, frame in shared.recorded_frames() if direction == "c2s"]
    for at in range(0, len(sent), 4):
        yield bytes((at // 4 % KINDS, 0)) + b"".join(sent[at : at + 4])[: MAX_BYTES - 2]
    made = [frame for frame in shared.made_frames() if frame[0] == 0x80]
    for at in range(0, len(made), 4):
        yield bytes((ADMIN, at % 3 * 7)) + b"".join(made[at : at + 4])
        yield bytes((PRODUCER, 0)) + b"".join(made[at : at + 4])
    opaque = replicated(SimulatedNode()).opaque
    yield bytes((CONSUMER, 0)) + b"".join(
        (
            marker(opaque, 0, 3, vbid=1), mutation(opaque, 1, vbid=1), deletion(opaque, 2, vbid=1),
            system_event(opaque, 3, "fruit", 9, vbid=1), seqno_advanced(opaque, 4, vbid=1), b"\x01\x00",
            stream_end(opaque, vbid=1),
        )
    )  # fmt: skip
    store = encode_request(Opcode.SET, key=b"\0k", extras=bytes(8), value=b'{"a":1}', datatype=1)
    durable = encode_request(Opcode.SET, key=b"\0d", extras=bytes(8), value=b"1", framing=b"\x11\x03")
    stream = encode_request(Opcode.DCP_STREAM_REQ, opaque=7, extras=bytes(16) + b"\xff" * 8 + bytes(24))
    scan = encode_request(Opcode.RANGE_SCAN_CREATE, value=b'{"range":{"start":"AA==","end":"/w=="}}', datatype=1)
    yield bytes((PRODUCER, 0)) + store + stream + b"\x02\x01" + store + b"\x02\x00" + b"\x01\x00" + b"\x00\xc8"
    yield bytes((ADMIN, 0)) + durable + b"\x02\x01" + store + b"\x01\x00" + scan + b"\x03\x00" + b"\x04\x00" + store
    # STREAM_REQ, BUFFER_ACK, CLOSE_STREAM and a NOOP's answer
    ack = encode_request(Opcode.DCP_BUFFER_ACK, extras=b"\0\0\1\0")
    close = encode_request(Opcode.DCP_CLOSE_STREAM)
    yield bytes((PRODUCER, 5)) + stream + ack + close + b"\x00\xc8" + encode_response(Opcode.DCP_NOOP, opaque=1)


def check(data: bytes) -> None:
    if len(data) < FRAMES_AT:
        return
    node = SimulatedNode(release="7.6" if data[0] & 0x10 else "7.2")
    peers = [connected(node, data[0] % KINDS, is_first=True)]
    current = 0
    for piece in split(data[FRAMES_AT:]):
        if piece[0] in MAGICS or piece[0] >= EVENTS or len(piece) < 2:
            deliver(peers[current], piece, data[1])
            continue
        match piece[0]:
            case 0:
                # What is due to a peer that does not read stays due: time would pass for ever.
                if all(peer.is_reading for peer in peers):
                    node.advance(piece[1] / 2)
            case 1:
                node.flush()
            case 2:
                current = piece[1] % PEERS_MAX
                while len(peers) <= current:
                    peers.append(connected(node, (data[0] + len(peers)) % KINDS))
            case 3:
                peers[current].is_reading = not peers[current].is_reading
            case _:
                peers[current].disconnect()
                peers[current] = connected(node, piece[1] % KINDS)
    for peer in peers:
        peer.is_reading = True
    node.flush()
    node.advance(REST_S)
    for peer in peers:
        for frame in peer.received:
            assert is_declared(frame), frame
        peer.disconnect()
    node.advance(REST_S)
    others = {node.admin.session} if node._admin is not None else set()
    assert node.engine.sessions == others
    assert not any(bucket.dcp_sessions for bucket in node.engine.buckets.values())
    still_serves(node)


def connected(node: SimulatedNode, kind: int, *, is_first: bool = False) -> Peer:
    """A connection of a kind, as far as the node still lets it in."""
    if kind == PRODUCER:
        peer = entered(node, "admin", USUAL_FEATURES)
        peer.send(Opcode.DCP_OPEN, key=b"reader%d" % len(node.peers), extras=b"\0\0\0\0\0\0\0\1")
        peer.send(Opcode.DCP_CONTROL, key=b"enable_noop", value=b"true")
        peer.send(Opcode.DCP_CONTROL, key=b"connection_buffer_size", value=b"4096")
        return peer
    if kind == CONSUMER and is_first:
        return replicated(node).peer
    users = {READER: "reader", WRITER: "writer", NOBODY: None, STRANGER: None}
    if kind == STRANGER:
        return Peer(node)
    # With TRACING a session takes no native path.
    features = (Feature.XERROR, Feature.JSON, Feature.TRACING) if kind == PLAIN else USUAL_FEATURES
    return entered(node, users.get(kind, "admin"), features)


def entered(node: SimulatedNode, user: str | None, features: tuple[int, ...]) -> Peer:
    peer = Peer(node)
    peer.send(Opcode.HELLO, key=b"fuzz", value=b"".join(code.to_bytes(2, "big") for code in features))
    if user is not None:
        peer.send(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0%b\0secret" % user.encode())
        peer.send(Opcode.SELECT_BUCKET, key=b"default")
    return peer


def replicated(node: SimulatedNode) -> ScriptedProducer:
    """A producer whose history the node copies into vbucket 1."""
    node.set_vbucket(1, VbucketState.REPLICA)
    source = ScriptedProducer(node)
    source.accept(1)
    return source


def deliver(peer: Peer, data: bytes, size: int) -> None:
    """Send bytes, in pieces of this size unless it is 0; the session must not keep what it could read."""
    for at in range(0, len(data), size or len(data)):
        peer.deliver(data[at : at + (size or len(data))])
        session = peer.session
        assert session.output.nbytes <= peer.node.engine.output_limit + ANSWER_BYTES_MAX
        if not peer.closed and session.send(None).wants is Wants.INPUT:
            assert len(peer._unread) < max(peer._needed, HEADER_BYTES), "the session reads no further"


def still_serves(node: SimulatedNode) -> None:
    """A write, its read, and a stream of it on new connections; what an administrator has switched off excepted."""
    peer = entered(node, "admin", USUAL_FEATURES)
    assert peer.call(Opcode.NOOP).status == Status.SUCCESS
    bucket = node.engine.buckets.get("default")
    if bucket is None or not bucket.takes_traffic or 0 not in bucket.manifest.collection_names():
        return
    log = bucket.vbucket(3)
    if log is None or log.state != VbucketState.ACTIVE:
        return
    wrote = peer.call(Opcode.SET, vbid=3, key=KEY, extras=bytes(8), value=VALUE, datatype=1)
    assert wrote.status == Status.SUCCESS, wrote
    read = peer.call(Opcode.GET, vbid=3, key=KEY)
    assert (read.status, read.value) == (Status.SUCCESS, VALUE)
    reader = connected(node, PRODUCER)
    assert isinstance(reader.session.dcp, ProducerConnection)
    frames: list[Frame] = []
    frames += reader.stream(3)
    while reader.has_news or frames:
        if any(frame.opcode == Opcode.DCP_MUTATION and frame.key == KEY for frame in frames):
            return
        frames = reader.buffer_ack(sum(frame.size for frame in frames))
    raise AssertionError("the stream lacks the write")
