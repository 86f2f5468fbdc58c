"""A good conversation with some bytes changed: whatever a node sends, a reader ends with an error of ours or with rows.

Seqnos rise without a repetition, and nothing but our own exceptions comes out. Which rows are right cannot be told: a
change in a key or a value is not seen, as frames have no checksum.
"""

from __future__ import annotations

import json
import random
import struct

import pytest

from dcpstream.client.machine.nodes.cluster_map import manifest_of, parse_config
from dcpstream.client.machine.values import VbucketRange
from dcpstream.errors import DcpstreamError
from dcpstream.model import NodeAddress, StreamOffset
from dcpstream.wire import Datatype, Frame, Magic, Opcode, encode_request
from dcpstream.wire.values import encode_xattrs, snappy_compress
from tests.kit.cases import each_case
from tests.kit.client_machines import World
from tests.kit.fake_node import config
from tests.kit.hostile import mutated
from tests.kit.messages import accepted, deletion, marker, mutation, seqno_advanced, stream_end, system_event

END = 60
FAST, SLOW = 60, 3_000


def conversation(request: Frame) -> list[bytes]:
    """The frames of a sound stream with all kinds of messages, from wherever it is asked for."""
    start = struct.unpack_from(">Q", request.extras, 8)[0]
    opaque = request.opaque
    frames = [accepted(opaque)]
    for first, last in ((1, 20), (21, 40), (41, END)):
        if last <= start:
            continue
        frames.append(marker(opaque, max(first - 1, start), last))
        frames += [message(opaque, seqno) for seqno in range(max(first, start + 1), last + 1)]
        frames.append(encode_request(Opcode.DCP_NOOP, opaque=9))
    return frames if start < END else [*frames, stream_end(opaque)]


def message(opaque: int, seqno: int) -> bytes:
    """A message of a kind that goes by its seqno."""
    match seqno % 10:
        case 3:
            return deletion(opaque, seqno)
        case 5:
            return system_event(opaque, seqno, f"c{seqno}", seqno)
        case 7:
            return seqno_advanced(opaque, seqno)
        case 8:
            value = snappy_compress(encode_xattrs({"_sync": b"1", "x": b'{"a":2}'}, b"body" * 20))
            extras = struct.pack(">QQIIIHB", seqno, 1, 0, 0, 0, 0, 0)
            datatype = Datatype.SNAPPY | Datatype.XATTR
            frame = Frame(
                Magic.REQUEST,
                Opcode.DCP_MUTATION,
                datatype=datatype,
                opaque=opaque,
                extras=extras,
                key=b"\0k",
                value=value,
            )
            return frame.encode()
        case _:
            return mutation(opaque, seqno, value=b"x" * (seqno * 7))


def run(seed: int, *, arrow: bool) -> DcpstreamError | None:
    """One reader against one conversation; what it ended with."""
    dice = random.Random(seed)
    hits = dice.choice((1, 1, 3, 1000))
    world = World(
        [VbucketRange(0, StreamOffset.ZERO, END)],
        lambda frame, attempt: mutated(conversation(frame), dice) if attempt < hits else b"".join(conversation(frame)),
        arrow=arrow,
    )
    error = None
    try:
        world.run(limit_s=300.0)
    except DcpstreamError as caught:
        error = caught
    seqnos = world.seqnos()
    assert seqnos == sorted(set(seqnos)), f"seed {seed}"
    assert all(0 < seqno <= END for seqno in seqnos), f"seed {seed}"
    if error is None and hits == 1:
        assert world.offsets[0].seqno == END, f"seed {seed}"
    return error


def sweep(first: int, count: int, *, arrow: bool) -> None:
    ends = {True: 0, False: 0}
    for seed in range(first, first + count):
        try:
            ends[run(seed, arrow=arrow) is None] += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
    assert ends[True] > count / 10
    assert ends[False] > count / 40


@each_case("arrow", [False, True], ids=["changes", "arrow"])
def test_changed_bytes(arrow: bool) -> None:
    if arrow:
        pytest.importorskip("pyarrow", reason="Arrow columns need pyarrow")
    sweep(0, FAST, arrow=arrow)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("arrow", [False, True], ids=["changes", "arrow"])
def test_many_changed_bytes(arrow: bool) -> None:
    if arrow:
        pytest.importorskip("pyarrow", reason="Arrow columns need pyarrow")
    sweep(FAST, SLOW, arrow=arrow)


def changed(value: object, dice: random.Random) -> object:
    """A JSON value with something in it replaced by something else."""
    odd = (None, -1, 10**30, 1e999, "", "\ud800", "9" * 400, [], {}, [[]], True, "x" * 300, {"a": {}}, 0xFFFF + 1)
    if dice.random() < 0.15:
        return dice.choice(odd)
    if isinstance(value, dict):
        result = {key: changed(item, dice) for key, item in value.items() if dice.random() < 0.95}
        return result | ({dice.choice(("x", "nodes", "rev")): dice.choice(odd)} if dice.random() < 0.1 else {})
    if isinstance(value, list):
        return [changed(item, dice) for item in value]
    return value


MAP = {
    **json.loads(config(2, ports=(11210, 11211))),
    "revEpoch": 1,
    "uuid": "u",
    "clusterUUID": "c",
    "nodesExt": [
        {
            "hostname": "a",
            "services": {"kv": 1, "kvSSL": 2, "mgmt": 3},
            "alternateAddresses": {"external": {"hostname": "b", "ports": {"kv": 5, "kvSSL": 6}}},
        }
    ],
}
MANIFEST = {
    "uid": "5",
    "scopes": [{"name": "s", "uid": "8", "collections": [{"name": "c", "uid": "9", "maxTTL": 5, "history": True}]}],
}


@each_case("network", ["auto", "default", "external"])
def test_changed_maps_and_lists_of_collections(network: str) -> None:
    for seed in range(1000):
        dice = random.Random(seed)
        for read, value in ((parse, MAP), (manifest_of, MANIFEST)):
            text = json.dumps(changed(value, dice)).encode()
            try:
                read(text, network) if read is parse else manifest_of(text)
            except DcpstreamError:
                pass
            except Exception as error:
                raise AssertionError(f"seed {seed}: {text!r}: {error!r}") from error


def parse(text: bytes, network: str) -> object:
    found = parse_config(text, NodeAddress("h", 11210), network, is_secure=len(text) % 2 == 0)
    return [found.copies(vbid) for vbid in range(found.vbucket_count)], found.vbuckets_by_node(), found.version > (0, 0)
