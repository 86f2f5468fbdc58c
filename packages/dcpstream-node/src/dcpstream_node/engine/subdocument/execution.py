"""Execution of one sub-document request on one document.

The document is a copy of the stored one in pieces. A mutation joins the pieces again only if every operation succeeded.
All that the operations need to know of store and connection comes in an `Origin`.

Source: kv_engine daemon/subdocument_context.cc.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, assert_never

from dcpstream.model.json_text import is_json
from dcpstream.wire import Datatype, Opcode, Status
from dcpstream.wire.values import decode_xattrs, encode_xattrs, is_system_xattr
from dcpstream_node.engine.subdocument import edits
from dcpstream_node.engine.subdocument.attributes import (
    MUTATION_CAS,
    MUTATION_CRC32C,
    MUTATION_SEQNO,
    Macros,
    Origin,
    as_object,
    decode_binary,
    encode_binary,
    expand_document,
    from_object,
    is_virtual,
    name_of,
    virtual_object,
)
from dcpstream_node.engine.subdocument.paths import PathError, parse_path
from dcpstream_node.engine.subdocument.scanner import Text
from dcpstream_node.engine.subdocument.specs import DocFlag, PathFlag, Request, Scope, Spec

_MUTATION_MACROS: Final = frozenset((MUTATION_CAS, MUTATION_SEQNO, MUTATION_CRC32C))


@dataclass(slots=True)
class Document:
    """A document in pieces.

    Attributes:
        xattrs: name → JSON text.
        body: without attributes, inflated.
        is_json: whether the body is known to be JSON.
    """

    xattrs: dict[str, bytes] = field(default_factory=dict)
    body: bytes = b""
    is_json: bool = False

    @classmethod
    def of(cls, value: bytes, datatype: int) -> Document:
        """The pieces of an inflated value."""
        xattrs, body = decode_xattrs(value) if datatype & Datatype.XATTR else ({}, value)
        return cls(xattrs, body, bool(datatype & Datatype.JSON))

    @property
    def value(self) -> bytes:
        """Attributes and body as they are stored."""
        return (encode_xattrs(self.xattrs) if self.xattrs else b"") + self.body

    @property
    def datatype(self) -> int:
        """The datatype of `value`."""
        return int((Datatype.XATTR if self.xattrs else 0) | (Datatype.JSON if self.is_json else 0))


def template(request: Request) -> Document:
    """The initial document of a request that creates one: an empty object or array, whichever its first path needs.

    A document that is created as a tombstone, or whole, begins without a body.
    """
    if not request.flags & DocFlag.CREATE_AS_DELETED:
        for spec in request.specs:
            if spec.kind.scope is Scope.PART:
                first = spec.path.lstrip()[:1]
                is_array = first == b"[" or (not first and spec.kind.makes_array)
                if first or is_array:
                    return Document(body=b"[]" if is_array else b"{}", is_json=True)
                break
    return Document()


@dataclass(slots=True)
class Outcome:
    """The outcome of a request.

    Attributes:
        results: (status, value) of each operation that was carried out.
        document: the changed document, if every operation of a mutation succeeded.
        deletes: whether the document is to be deleted; `document` then has the attributes that the tombstone keeps.
        macros: the placeholders in the attributes, if there are any.
    """

    results: list[tuple[int, bytes]]
    document: Document
    deletes: bool = False
    macros: Macros | None = None

    @property
    def failure(self) -> tuple[int, int] | None:
        """(index, status) of the first operation that failed."""
        return next(((index, status) for index, (status, _) in enumerate(self.results) if status), None)

    def value(self, cas: int, seqno: int) -> bytes:
        """The value to store under this CAS and seqno."""
        document = self.document
        if self.macros is not None and self.macros.used:
            fill, body = self.macros.fill, document.body
            document.xattrs = {
                name: fill(text, cas=cas, seqno=seqno, body=body) for name, text in document.xattrs.items()
            }
        return document.value


def execute(request: Request, document: Document, origin: Origin, *, may_use_system: bool) -> Outcome:
    """Carry out a request on a document; a mutation changes the document.

    Args:
        may_use_system: whether the user may read (for a mutation: write) system attributes.
    """
    return _Execution(request, document, origin, may_use_system).run()


class _Execution:
    """A request under way: attributes and body are decoded once."""

    def __init__(self, request: Request, document: Document, origin: Origin, may_use_system: bool) -> None:
        self._request = request
        self._document = document
        self._origin = origin
        self._may_use_system = may_use_system
        self._macros: Macros | None = None
        self._xattrs: str | None = None
        self._body: str | None = None
        self._deletes = False

    def run(self) -> Outcome:
        results: list[tuple[int, bytes]] = []
        is_refused = self._is_refused()
        for spec in self._request.specs:
            try:
                if is_refused and spec.is_xattr:
                    raise PathError(Status.EACCESS)
                results.append((0, self._change(spec) if spec.kind.is_mutation else self._look_up(spec)))
            except PathError as error:
                results.append((error.status, b""))
                if self._request.is_mutation:
                    break
        try:
            self._put_together(results)
        except PathError as error:
            results[-1] = error.status, b""
        if isinstance(self._body, Text):
            self._body.forget()
        return Outcome(results, self._document, self._deletes, self._macros)

    def _is_refused(self) -> bool:
        """Whether the request names a system attribute without the right to it; then no attribute is touched."""
        return not self._may_use_system and any(
            spec.is_xattr and is_system_xattr(name_of(spec.path) or "") for spec in self._request.specs
        )

    # ------------------------------------------------------------------------------------------------------- texts

    def _body_text(self) -> str:
        if not self._document.is_json:
            raise PathError(Status.SUBDOC_DOC_NOTJSON)
        if self._body is None:
            try:
                text = self._document.body.decode()
            except UnicodeDecodeError:
                raise PathError(Status.SUBDOC_DOC_NOTJSON) from None
            is_for_reading = not self._request.is_mutation
            self._body = Text(text, is_for_reading=is_for_reading) if len(self._request.specs) > 1 else text
        return self._body

    def _xattr_text(self) -> str:
        if self._xattrs is None:
            self._xattrs = as_object(self._document.xattrs)
        return self._xattrs

    def _set_body(self, body: bytes, *, is_known_json: bool = False) -> None:
        self._document.body, self._body = body, None
        self._document.is_json = is_known_json or is_json(body)

    def _put_together(self, results: list[tuple[int, bytes]]) -> None:
        """Join the pieces of the document that a mutation stores."""
        document = self._document
        if not self._request.is_mutation or results[-1][0]:
            return
        if self._xattrs is not None:
            document.xattrs = from_object(self._xattrs)
        if self._body is not None:
            document.body = self._body.encode()
        if self._deletes:
            document.xattrs = {name: text for name, text in document.xattrs.items() if is_system_xattr(name)}

    # ------------------------------------------------------------------------------------------------------ lookups

    def _look_up(self, spec: Spec) -> bytes:
        if spec.kind.scope is Scope.WHOLE:
            if not self._document.body:
                raise PathError(Status.SUBDOC_PATH_ENOENT)
            return self._document.body
        path = parse_path(spec.path)
        if spec.is_xattr and is_virtual(spec.path):
            text = virtual_object(self._origin, spec.path)
        else:
            text = self._xattr_text() if spec.is_xattr else self._body_text()
        if spec.opcode == Opcode.SUBDOC_GET_COUNT:
            return edits.count(text, path).encode()
        found = edits.look_up(text, path)
        if spec.opcode == Opcode.SUBDOC_EXISTS:
            return b""
        return _binary(found) if spec.has_bytes else found.encode()

    # ------------------------------------------------------------------------------------------------------ changes

    def _change(self, spec: Spec) -> bytes:
        match spec.kind.scope:
            case Scope.WHOLE:
                self._deletes = spec.opcode == Opcode.DELETE
                self._set_body(spec.value)
                return b""
            case Scope.BODY_FROM_XATTR:
                found = edits.look_up(self._xattr_text(), parse_path(spec.path))
                self._set_body(_binary(found) if spec.has_bytes else found.encode(), is_known_json=not spec.has_bytes)
                return b""
            case Scope.PART:
                return self._change_part(spec)
            case _:
                assert_never(spec.kind.scope)

    def _change_part(self, spec: Spec) -> bytes:
        text = self._xattr_text() if spec.is_xattr else self._body_text()
        value = self._value(spec)
        implied = self._request.flags & (DocFlag.MKDOC | DocFlag.ADD)
        creates_parents = bool(spec.flags & PathFlag.CREATE_PARENTS or implied)
        changed = edits.change(spec.opcode, text, parse_path(spec.path), value, creates_parents=creates_parents)
        if spec.is_xattr:
            self._xattrs = changed.text
        elif isinstance(text, Text):
            self._body = Text(changed.text)
            # The new part was checked, so the text is not too deep.
            self._body.is_shallow = text.is_shallow
        else:
            self._body = changed.text
        return changed.result.encode()

    def _value(self, spec: Spec) -> str:
        """The JSON text of the new value."""
        if spec.has_bytes:
            return encode_binary(spec.value)
        if spec.flags & PathFlag.EXPAND_MACROS:
            if spec.value not in _MUTATION_MACROS:
                return expand_document(self._origin, spec.value)
            if self._macros is None:
                taken = [other.value for other in self._request.specs]
                self._macros = Macros([*taken, *self._document.xattrs.values()])
            return self._macros.placeholder(spec.value)
        try:
            return spec.value.decode()
        except UnicodeDecodeError:
            raise PathError(Status.SUBDOC_VALUE_CANTINSERT) from None


def _binary(text: str) -> bytes:
    """The binary value that a string in an attribute stands for."""
    value = decode_binary(text)
    if value is None:
        raise PathError(Status.SUBDOC_FIELD_NOT_BINARY_VALUE)
    return value
