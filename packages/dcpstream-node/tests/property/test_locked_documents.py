"""Random requests for a few documents, some of them locked, against a model that is too simple to be wrong."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from dcpstream.wire import Opcode, Status
from dcpstream_node.engine.bucket.locks import HIDDEN_CAS
from tests.kit.engine import Talker, engine_of, pass_time

KEYS = ("a", "b")
LOCK_S = 10
STORE = bytes(8)
WRITES = {
    Opcode.SET: (STORE, b"1"),
    Opcode.ADD: (STORE, b"1"),
    Opcode.REPLACE: (STORE, b"1"),
    Opcode.DELETE: (b"", b""),
    Opcode.APPEND: (b"", b"1"),
    Opcode.INCREMENT: (struct.pack(">QQI", 1, 1, 0), b""),
    Opcode.TOUCH: (struct.pack(">I", 1 << 31), b""),
}
WITHOUT_CAS = frozenset((Opcode.ADD, Opcode.INCREMENT, Opcode.TOUCH))
CHOICES = ("none", "stored", "lock", "wrong")


@dataclass
class Document:
    """The state of the model: the CAS that GET shows while nobody has a lock, and the lock."""

    cas: int = 0
    lock: int = 0
    until: float = 0.0

    def is_locked(self, now: float) -> bool:
        return bool(self.lock) and now < self.until


def cas_of(document: Document | None, choice: str) -> int:
    if document is None or choice == "none":
        return 0 if choice != "wrong" else 77
    return {"stored": document.cas, "lock": document.lock, "wrong": 77}[choice]


def expected(opcode: int, document: Document | None, cas: int, now: float) -> int:
    """The status of a write."""
    if document is None:
        if opcode in (Opcode.SET, Opcode.ADD, Opcode.INCREMENT):
            return Status.KEY_ENOENT if cas else Status.SUCCESS
        return Status.NOT_STORED if opcode == Opcode.APPEND else Status.KEY_ENOENT
    if opcode == Opcode.ADD:
        return Status.KEY_EEXISTS
    if document.is_locked(now):
        is_owner = opcode not in WITHOUT_CAS and cas == document.lock
        return Status.SUCCESS if is_owner else Status.LOCKED
    return Status.KEY_EEXISTS if cas and cas != document.cas else Status.SUCCESS


STEPS = st.one_of(
    st.tuples(st.sampled_from(sorted(WRITES)), st.sampled_from(KEYS), st.sampled_from(CHOICES)),
    st.tuples(st.sampled_from([Opcode.GET_LOCKED, Opcode.GET]), st.sampled_from(KEYS), st.just("none")),
    st.tuples(st.just(Opcode.UNLOCK), st.sampled_from(KEYS), st.sampled_from(["lock", "wrong"])),
    st.tuples(st.just(Opcode.NOOP), st.sampled_from(["3", "11"]), st.just("none")),
)


@given(st.lists(STEPS, max_size=25))
def test_locks_are_those_of_the_model(steps):
    client = Talker(engine_of(vbuckets=1))
    engine = client.engine
    documents: dict[str, Document] = {}
    for opcode, name, choice in steps:
        if opcode == Opcode.NOOP:
            pass_time(engine, int(name))
            continue
        document, now, key = documents.get(name), engine.now, client.key(name)
        if opcode == Opcode.GET:
            answer = client.get(name)
            assert answer.status == (Status.KEY_ENOENT if document is None else 0)
            if document is not None:
                assert answer.cas == (HIDDEN_CAS if document.is_locked(now) else document.cas)
        elif opcode == Opcode.GET_LOCKED:
            answer = client.call(opcode, key=key, extras=struct.pack(">I", LOCK_S))
            if document is None:
                assert answer.status == Status.KEY_ENOENT
            elif document.is_locked(now):
                assert answer.status == Status.LOCKED
            else:
                assert answer.status == 0
                document.lock, document.until = answer.cas, now + LOCK_S
        elif opcode == Opcode.UNLOCK:
            cas = cas_of(document, choice) or 78
            status = client.call(opcode, key=key, cas=cas).status
            if document is None:
                assert status == Status.KEY_ENOENT
            elif not document.is_locked(now):
                assert status == Status.NOT_LOCKED
            else:
                assert status == (0 if cas == document.lock else Status.LOCKED)
                if not status:
                    document.lock = 0
        else:
            extras, value = WRITES[opcode]
            cas = 0 if opcode in WITHOUT_CAS else cas_of(document, choice)
            answer = client.call(opcode, key=key, extras=extras, value=value, cas=cas)
            assert answer.status == expected(opcode, document, cas, now), (Opcode(opcode).name, choice)
            if not answer.status:
                if opcode == Opcode.DELETE:
                    del documents[name]
                else:
                    documents[name] = Document(answer.cas)
