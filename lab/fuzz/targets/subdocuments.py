"""Sub-document requests on any document: each path gives a result or a status, and the document stays well formed.

Input: the opcode's number, flags of the document and of the path, the document's datatype and length, and the document.
Behind it come the path's length, the path and the value, or the specs of a request with several paths.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from dcpstream.model.json_text import is_json
from dcpstream.wire import Datatype, Opcode
from dcpstream.wire.values import decode_xattrs, encode_xattrs
from dcpstream_node.engine.subdocument import (
    COMMANDS,
    Document,
    Origin,
    RefusedError,
    execute,
    has_valid_xattrs,
    read_request,
    template,
)

MAX_BYTES = 800
_HEAD = 5
_OPCODES = tuple(sorted(int(opcode) for opcode in COMMANDS))
_MULTI = (int(Opcode.SUBDOC_MULTI_LOOKUP), int(Opcode.SUBDOC_MULTI_MUTATION))


def seeds() -> Iterator[bytes]:
    documents = (b'{"a":{"b":[1,2,{"c":"x"}]},"n":5,"`q`":null}', b"[1,[2,3],{}]", b"raw", b"")
    paths = (b"a.b[0]", b"n", b"[-1]", b"a.x.y", b"`a.b`", b"_s.a", b"$document.CAS", b"")
    values = (b"1", b'"x"', b'{"k":[1]}', b'"${Mutation.CAS}"')
    for number, opcode in enumerate(_OPCODES):
        for at, document in enumerate(documents):
            path, value = paths[(number + at) % len(paths)], values[at % len(values)]
            flags = 4 if path[:1] in (b"_", b"$") else at & 1
            head = bytes((number, at & 1, flags, int(is_json(document)), len(document)))
            if opcode in _MULTI:
                specs = b"\xc5\0" + len(path).to_bytes(2, "big") + path
                if opcode == _MULTI[1]:
                    specs = b"\xc8\0" + len(path).to_bytes(2, "big") + len(value).to_bytes(4, "big") + path + value
                yield head + document + specs * 2
            else:
                yield head + document + bytes((len(path),)) + path + value
    with_xattrs = encode_xattrs({"_s": b'{"a":1}', "x": b"2"}, b'{"a":1}')
    for number in range(len(_OPCODES)):
        yield bytes((number, 4, 4, 5, len(with_xattrs))) + with_xattrs + b"\x04_s.a7"


def check(data: bytes) -> None:
    if len(data) < _HEAD:
        return
    opcode = _OPCODES[data[0] % len(_OPCODES)]
    document, datatype = stored(data[3] & 5, data[_HEAD : _HEAD + data[4]])
    rest = data[_HEAD + data[4] :]
    extras = bytes((data[1],)) if data[1] else b""
    if opcode not in _MULTI:
        extras = bytes((0, rest[0] if rest else 0, data[2])) + extras
        rest = rest[1:]
    try:
        request = read_request(opcode, extras, rest, cas=0, has_xattrs=True)
    except RefusedError:
        return
    made = Document.of(document, datatype) if document or not request.is_mutation else template(request)
    origin = Origin(cas=5, vbuuid=6, seqno=7, datatype=datatype, names=("x",), body=made.body, now_s=8)
    outcome = execute(request, made, origin, may_use_system=bool(data[0] & 0x80))
    assert len(outcome.results) <= len(request.specs)
    for status, result in outcome.results:
        if (
            not status
            and result
            and not request.specs[0].has_bytes
            and not request.is_multi
            and opcode != Opcode.SUBDOC_GET
        ):
            json.loads(result)
    if request.is_mutation and outcome.failure is None:
        is_well_formed(outcome.value(9, 10), made.datatype)


def stored(datatype: int, value: bytes) -> tuple[bytes, int]:
    """A document as the node may have stored it: its datatype says what it is."""
    if datatype & Datatype.XATTR and not has_valid_xattrs(value):
        datatype &= ~int(Datatype.XATTR)
    body = decode_xattrs(value)[1] if datatype & Datatype.XATTR else value
    datatype = datatype & int(Datatype.XATTR) | (int(Datatype.JSON) if is_json(body) else 0)
    return value, datatype


def is_well_formed(value: bytes, datatype: int) -> None:
    body = value
    if datatype & Datatype.XATTR:
        xattrs, body = decode_xattrs(value)
        assert xattrs
        assert all(is_json(text) for text in xattrs.values())
    assert bool(datatype & Datatype.JSON) is is_json(body)
