"""Answers of plain commands and their quiet forms, and counters."""

from __future__ import annotations

import struct

import pytest

from dcpstream.wire import Feature, Opcode, Status
from dcpstream_node.testing.simulation import USUAL_FEATURES, WITHOUT_COLLECTIONS, Peer, SimulatedNode
from tests.kit.rules import of_release, rule
from tests.kit.streams import stored_mutation

KEY = b"\0k"
STORE = bytes(8)
U64 = 1 << 64
WITHOUT_TOKENS = tuple(feature for feature in USUAL_FEATURES if feature != Feature.MUTATION_SEQNO)


@pytest.fixture
def node() -> SimulatedNode:
    node = SimulatedNode()
    node.set_doc(1, "k", b"7", flags=5, expiration=1000)
    return node


@rule("KV-ANSWER-01")
def test_the_key_in_answers(node: SimulatedNode, peer: Peer) -> None:
    for who, key in ((peer, KEY), (node.connect(features=WITHOUT_COLLECTIONS), b"k")):
        for opcode in (Opcode.GETK, Opcode.GETKQ):
            assert who.call(opcode, vbid=1, key=key).key == key
        missed = who.call(Opcode.GETK, vbid=1, key=key + b"x")
        assert (missed.status, missed.key, missed.value) == (Status.KEY_ENOENT, b"", b"")
        assert who.send(Opcode.GETKQ, vbid=1, key=key + b"x") == []


@rule("KV-ANSWER-02")
def test_touch_and_gat(peer: Peer) -> None:
    touched = peer.call(Opcode.TOUCH, vbid=1, key=KEY, extras=b"\0\0\1\0")
    read = peer.call(Opcode.GET, vbid=1, key=KEY)
    assert (touched.status, touched.extras, touched.key, touched.value) == (0, b"", b"", b"")
    assert touched.cas == read.cas
    for opcode in (Opcode.GAT, Opcode.GATQ):
        got = peer.call(opcode, vbid=1, key=KEY, extras=b"\0\0\1\0")
        assert (got.value, got.extras, got.key, got.cas) == (b"7", struct.pack(">I", 5), b"", read.cas)
    changed = peer.call(Opcode.GAT, vbid=1, key=KEY, extras=b"\0\0\2\0")
    assert changed.cas == peer.call(Opcode.GET, vbid=1, key=KEY).cas != read.cas


@rule("KV-ANSWER-03")
@pytest.mark.parametrize("opcode", [Opcode.APPENDQ, Opcode.PREPENDQ])
def test_quiet_joining_answers_with_a_token(node: SimulatedNode, peer: Peer, opcode: Opcode) -> None:
    answer = peer.call(opcode, vbid=1, key=KEY, value=b"1")
    assert (answer.status, len(answer.extras)) == (0, 16)
    assert answer.cas == peer.call(Opcode.GET, vbid=1, key=KEY).cas
    silent = node.connect(features=WITHOUT_TOKENS)
    assert silent.send(opcode, vbid=1, key=KEY, value=b"1") == []
    assert silent.call(opcode, vbid=1, key=b"\0none", value=b"1").status == Status.NOT_STORED
    for quiet, extras in ((Opcode.SETQ, STORE), (Opcode.REPLACEQ, STORE), (Opcode.DELETEQ, b""), (Opcode.ADDQ, STORE)):
        assert peer.send(quiet, vbid=1, key=KEY, extras=extras) == []


def count(peer: Peer, opcode: Opcode, delta: int, initial: int = 0, expiration: int = 0, key: bytes = KEY) -> object:
    """The new number, or the status that refused it."""
    extras = struct.pack(">QQI", delta, initial, expiration)
    answer = peer.call(opcode, vbid=1, key=key, extras=extras)
    if answer.status:
        return Status(answer.status)
    assert answer.datatype == 0
    return int.from_bytes(answer.value, "big")


@rule("KV-COUNT-01")
def test_extremes_of_counters(peer: Peer) -> None:
    assert count(peer, Opcode.INCREMENT, U64 - 1) == 6
    assert count(peer, Opcode.DECREMENT, 7) == 0
    assert count(peer, Opcode.DECREMENT, U64 - 1) == 0
    assert count(peer, Opcode.INCREMENT, U64 - 1) == U64 - 1
    assert count(peer, Opcode.INCREMENT, 1) == 0
    assert peer.call(Opcode.GET, vbid=1, key=KEY).value == b"0"


@rule("KV-COUNT-02")
@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"0", 0),
        (b"007", 7),
        (b"+7", 7),
        (b"\t\n 7", 7),
        (b"7 apples", 7),
        (b"7\nx", 7),
        (b"18446744073709551615", U64 - 1),
        (b"18446744073709551616", None),
        (b"-5", None),
        (b"- 5", None),
        (b"7x", None),
        (b"7.0", None),
        (b'"7"', None),
        (b"", None),
        (b"\0", None),
    ],
)
def test_which_texts_are_numbers(node: SimulatedNode, peer: Peer, text: bytes, number: int | None) -> None:
    node.set_doc(1, "k", text)
    assert count(peer, Opcode.INCREMENT, 0) == (Status.DELTA_BADVAL if number is None else number)


@rule("KV-COUNT-02")
@pytest.mark.parametrize(
    ("text", "number"), [(b"-0", 0), (b"-18446744073709551615", 1), (b" ", 0), (b" x", 0), (b"7\0x", 7)]
)
@of_release("7.2", "8.0")
def test_texts_that_are_numbers_until_72(
    peer: Peer, node: SimulatedNode, text: bytes, number: int, release: str
) -> None:
    node.set_doc(1, "k", text)
    assert count(peer, Opcode.INCREMENT, 0) == (number if release == "7.2" else Status.DELTA_BADVAL)


@rule("KV-COUNT-03")
def test_counters_that_are_made(node: SimulatedNode, peer: Peer) -> None:
    assert count(peer, Opcode.INCREMENT, 1, 5, 0xFFFFFFFF, key=b"\0new") == Status.KEY_ENOENT
    assert count(peer, Opcode.DECREMENT, 1, U64 - 1, 100, key=b"\0new") == U64 - 1
    made = stored_mutation(node, b"\0new")
    assert (made.flags, made.datatype, bool(made.expiration)) == (0, 1, True)
    assert peer.call(Opcode.GET, vbid=1, key=b"\0new").value == b"18446744073709551615"
