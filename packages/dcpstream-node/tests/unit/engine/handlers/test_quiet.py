"""The quiet form of every command: silent where its loud form says what everybody expects, and in order."""

from __future__ import annotations

import struct
from typing import NamedTuple

import pytest

from dcpstream.wire import Feature, Opcode, Status, encode_request
from dcpstream.wire.messages import QUIET_FORMS
from dcpstream.wire.messages.admin import OBSOLETE
from dcpstream_node.testing.simulation import USUAL_FEATURES
from tests.kit.engine import Talker, engine_of

KINDS = {
    "all": USUAL_FEATURES,
    "no collections": tuple(code for code in USUAL_FEATURES if code != Feature.COLLECTIONS),
    "old": (),
}
STORE = bytes(8)
COUNT = struct.pack(">QQI", 1, 1, 0)
NO_COUNT = struct.pack(">QQI", 1, 1, 0xFFFFFFFF)
META = struct.pack(">IIQQ", 0, 0, 9, 1 << 60)
OLD_META = struct.pack(">IIQQ", 0, 0, 0, 1)


class Form(NamedTuple):
    """A quiet opcode and its loud one; requests (key, extras, value, CAS) that succeed and that are refused.

    Of reading commands the miss is silent and the hit answered; of the others success is silent.
    """

    loud: int
    good: tuple[str, bytes, bytes, int]
    bad: tuple[str, bytes, bytes, int]
    status: int
    is_reading: bool = False


FORMS = {
    Opcode.GETQ: Form(Opcode.GET, ("number", b"", b"", 0), ("none", b"", b"", 0), Status.KEY_ENOENT, True),
    Opcode.GETKQ: Form(Opcode.GETK, ("number", b"", b"", 0), ("none", b"", b"", 0), Status.KEY_ENOENT, True),
    Opcode.GATQ: Form(Opcode.GAT, ("number", bytes(4), b"", 0), ("none", bytes(4), b"", 0), Status.KEY_ENOENT, True),
    Opcode.GETQ_META: Form(Opcode.GET_META, ("number", b"", b"", 0), ("none", b"", b"", 0), Status.KEY_ENOENT, True),
    Opcode.SETQ: Form(Opcode.SET, ("number", STORE, b"1", 0), ("number", STORE, b"1", 5), Status.KEY_EEXISTS),
    Opcode.ADDQ: Form(Opcode.ADD, ("none", STORE, b"1", 0), ("number", STORE, b"1", 0), Status.KEY_EEXISTS),
    Opcode.REPLACEQ: Form(Opcode.REPLACE, ("number", STORE, b"1", 0), ("none", STORE, b"1", 0), Status.KEY_ENOENT),
    Opcode.DELETEQ: Form(Opcode.DELETE, ("number", b"", b"", 0), ("none", b"", b"", 0), Status.KEY_ENOENT),
    Opcode.INCREMENTQ: Form(Opcode.INCREMENT, ("number", COUNT, b"", 0), ("none", NO_COUNT, b"", 0), Status.KEY_ENOENT),
    Opcode.DECREMENTQ: Form(Opcode.DECREMENT, ("number", COUNT, b"", 0), ("text", COUNT, b"", 0), Status.DELTA_BADVAL),
    Opcode.APPENDQ: Form(Opcode.APPEND, ("number", b"", b"1", 0), ("none", b"", b"1", 0), Status.NOT_STORED),
    Opcode.PREPENDQ: Form(Opcode.PREPEND, ("number", b"", b"1", 0), ("number", b"", b"1", 5), Status.KEY_EEXISTS),
    Opcode.SETQ_WITH_META: Form(
        Opcode.SET_WITH_META, ("number", META, b"1", 0), ("number", OLD_META, b"1", 0), Status.KEY_EEXISTS
    ),
    Opcode.ADDQ_WITH_META: Form(
        Opcode.ADD_WITH_META, ("none", META, b"1", 0), ("number", META, b"1", 0), Status.KEY_EEXISTS
    ),
    Opcode.DELETEQ_WITH_META: Form(
        Opcode.DELETE_WITH_META, ("number", META, b"", 0), ("number", OLD_META, b"", 0), Status.KEY_EEXISTS
    ),
}


def request(client: Talker, opcode: int, what: tuple[str, bytes, bytes, int], opaque: int, vbid: int = 0) -> bytes:
    key, extras, value, cas = what
    return encode_request(opcode, key=client.key(key), extras=extras, value=value, cas=cas, opaque=opaque, vbid=vbid)


@pytest.fixture(params=list(KINDS.values()), ids=list(KINDS))
def clients(request):
    """Two nodes that hold the same."""
    both = [Talker(engine_of(), features=request.param) for _ in range(2)]
    for client in both:
        client.set("number", b"7", flags=3)
        client.set("text", b"abc")
    return both


@pytest.mark.parametrize("opcode", FORMS, ids=lambda opcode: opcode.name)
def test_a_quiet_form(clients, opcode):
    form = FORMS[opcode]
    loud, quiet = clients
    noop = encode_request(Opcode.NOOP, opaque=100)
    (said,) = loud.send(request(loud, form.loud, form.good, 1))
    assert said.status == 0
    answers = quiet.send(request(quiet, opcode, form.good, 1) + noop)
    has_token = opcode in (Opcode.APPENDQ, Opcode.PREPENDQ) and Feature.MUTATION_SEQNO in quiet.features
    assert [frame.opaque for frame in answers] == ([1, 100] if form.is_reading or has_token else [100])
    if form.is_reading:
        assert (answers[0].value, answers[0].key, answers[0].cas) == (said.value, said.key, said.cas)
        assert (answers[0].opcode, answers[0].extras) == (opcode, said.extras)
    # What it did is the same.
    logs = [client.engine.buckets["default"].vbuckets[0].log for client in clients]
    key = b"\0" + form.good[0].encode()
    assert logs[0].get(key) == logs[1].get(key)
    assert logs[0].high_seqno == logs[1].high_seqno


@pytest.mark.parametrize("opcode", FORMS, ids=lambda opcode: opcode.name)
def test_what_a_quiet_form_says_of_a_failure(clients, opcode):
    form = FORMS[opcode]
    loud, quiet = clients
    noop = encode_request(Opcode.NOOP, opaque=100)
    (said,) = loud.send(request(loud, form.loud, form.bad, 1))
    assert said.status == form.status
    answers = quiet.send(request(quiet, opcode, form.bad, 1) + noop)
    if form.is_reading:
        assert [frame.opaque for frame in answers] == [100]
    else:
        assert [(frame.opaque, frame.status) for frame in answers] == [(1, form.status), (100, 0)]
        assert (answers[0].opcode, answers[0].value) == (opcode, said.value)
    # What is wrong with the place is answered by all of them.
    elsewhere = quiet.send(request(quiet, opcode, form.good, 2, vbid=9))
    assert [(frame.opaque, frame.status) for frame in elsewhere] == [(2, Status.NOT_MY_VBUCKET)]


def test_every_quiet_form_is_looked_at():
    answered = set(Talker(engine_of()).session.dispatch.commands.opcodes()) - set(OBSOLETE)
    names = {opcode for opcode in answered if "Q" in name_of(opcode)}
    assert names - {Opcode.QUITQ, Opcode.FLUSHQ} == set(FORMS)
    assert set(QUIET_FORMS) == names


def name_of(opcode: int) -> str:
    """The name without the words that have a Q of their own."""
    name = Opcode(opcode).name
    return name.replace("SEQNO", "").replace("UNIQUE", "").replace("QUIT", "").replace("REQ", "")


def test_flush_is_refused_quietly_or_not(clients):
    for opcode in (Opcode.FLUSH, Opcode.FLUSHQ):
        assert clients[0].call(opcode).status == Status.NOT_SUPPORTED
