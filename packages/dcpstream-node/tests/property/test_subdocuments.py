"""Whatever sub-document requests come: each is answered once, and what is stored stays well formed."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import pytest

from dcpstream.model.json_text import is_json
from dcpstream.wire import Datatype, Opcode, Status
from dcpstream.wire.values import decode_xattrs
from dcpstream_node.engine.bucket import documents
from dcpstream_node.engine.subdocument.attributes import name_of
from tests.kit.engine import Talker, engine_of

REQUESTS = 1500
DIFFERENT_STATUSES = 15
"""So many at least are seen in a run, otherwise the requests are too much alike."""
LOOKUPS = (Opcode.SUBDOC_GET, Opcode.SUBDOC_EXISTS, Opcode.SUBDOC_GET_COUNT)
CHANGES = tuple(range(Opcode.SUBDOC_DICT_ADD, Opcode.SUBDOC_COUNTER + 1))
WHOLE = (Opcode.GET, Opcode.SET, Opcode.DELETE)
PATHS = (b"a", b"a.b", b"a[0]", b"[0]", b"", b"_s.a", b"t", b"t.x[0]", b"$document", b"$document.CAS", b"$XTOC",
         b"`x.y`", b"\xff", b"a..b", b"$vbucket.HLC.now", b"a.b.c.d", b"[-1]", b"a[-1].c")  # fmt: skip
VALUES = (b"1", b'"s"', b"{}", b"[1,2]", b"1,2", b"-5", b"0", b"nope", b'"${Mutation.CAS}"', b'"${$document}"', b"\xff",
          b'"${$document.no}"', b'"${Mutation.value_crc32c}"', b'"cb-content-base64-encoded:AP8="', b"")  # fmt: skip
BODIES = (b'{"a":{"b":1}}', b"[1,[2]]", b"raw", b'{"a":[1,{"c":2}]}', b"", b'{ "a" : [ ] }')
DOC_FLAGS = (0, 0, 1, 1, 2, 4, 4, 8, 9, 0x0C, 0x0E, 0x14, 0x20, 0xFF)
PATH_FLAGS = (0, 1, 0x10, 0x11, 0x20, 0x02)


def one_path(chance: random.Random) -> tuple[int, bytes, bytes]:
    """(opcode, extras, value) of a request with a single path."""
    opcode = chance.choice((*LOOKUPS, *CHANGES, Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR))
    path, value = chance.choice(PATHS), chance.choice(VALUES) if opcode in CHANGES or chance.random() < 0.1 else b""
    length = len(path) if chance.random() < 0.98 else chance.randrange(2000)
    flags = chance.choice(PATH_FLAGS) | chance.choice((0, 4)) if chance.random() < 0.5 else chance.choice((0, 4))
    doc_flags = bytes([chance.choice(DOC_FLAGS)])
    more = chance.choice((b"", doc_flags, doc_flags, b"\0\0\0\1", b"\0\0\1\0" + doc_flags, bytes(8) + doc_flags))
    return opcode, struct.pack(">HB", length, flags) + more, path + value


def many_paths(chance: random.Random) -> tuple[int, bytes, bytes]:
    """(opcode, extras, value) of a request with several paths."""
    is_mutation = chance.random() < 0.6
    specs = b""
    for flag in sorted(chance.choices((0, 4), k=chance.randrange(1, 5)), reverse=chance.random() < 0.95):
        known = (*CHANGES, Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR) if is_mutation else LOOKUPS
        opcode = chance.choice((*known, chance.choice(WHOLE))) if chance.random() < 0.95 else chance.randrange(256)
        path = b"" if opcode in WHOLE else chance.choice(PATHS)
        flags = 0 if opcode in WHOLE else flag | (chance.choice(PATH_FLAGS) if chance.random() < 0.3 else 0)
        value = chance.choice(VALUES) if opcode in CHANGES or opcode == Opcode.SET else b""
        if is_mutation:
            specs += struct.pack(">BBHI", opcode, flags, len(path), len(value)) + path + value
        else:
            specs += struct.pack(">BBH", opcode, flags, len(path)) + path
    if chance.random() < 0.03:
        specs = specs[: chance.randrange(len(specs))]
    doc_flags = bytes([chance.choice(DOC_FLAGS)])
    if not is_mutation:
        return Opcode.SUBDOC_MULTI_LOOKUP, chance.choice((b"", b"\4", doc_flags)), specs
    extras = chance.choice((b"", doc_flags, doc_flags, b"\0\0\0\1" + doc_flags, bytes(8)))
    return Opcode.SUBDOC_MULTI_MUTATION, extras, specs


def is_well_formed(item: Any) -> bool:
    """Whether a stored document's value is what its datatype says."""
    value = documents.plain_value(item.value, item.datatype)
    xattrs: dict[str, bytes] = {}
    if item.datatype & Datatype.XATTR:
        xattrs, value = decode_xattrs(value)
        assert xattrs, "an empty section is none"
    assert all(name_of(name.encode()) == name and is_json(text) for name, text in xattrs.items()), xattrs
    assert bool(item.datatype & Datatype.JSON) is is_json(value), value
    return not (item.is_deleted and value)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_requests_are_answered_and_documents_stay_well_formed(seed):
    chance = random.Random(seed)
    client = Talker(engine_of())
    log = client.engine.buckets["default"].vbuckets[0].log
    statuses: set[int] = set()
    for _ in range(REQUESTS):
        if chance.random() < 0.15:
            body = chance.choice((*BODIES, None))
            client.delete("k") if body is None else client.set("k", body)
            continue
        opcode, extras, value = (one_path if chance.random() < 0.4 else many_paths)(chance)
        before = log.high_seqno
        answer = client.call(opcode, key=b"\0k", extras=extras, value=value, cas=chance.choice((0, 0, 0, 0, 5)))
        statuses.add(answer.status)
        item = log.get(b"\0k")
        is_done = answer.status in (Status.SUCCESS, Status.SUBDOC_SUCCESS_DELETED)
        changes = opcode not in (*LOOKUPS, Opcode.SUBDOC_MULTI_LOOKUP)
        assert log.high_seqno - before == (is_done and changes)
        assert item is None or is_well_formed(item)
        if answer.datatype & Datatype.JSON:
            json.loads(answer.value)
    assert len(statuses) > DIFFERENT_STATUSES
