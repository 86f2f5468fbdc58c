"""Sub-document commands: lookups and changes of parts of a document, one path or several at once.

Source of all: kv_engine docs/SubDocument.md, daemon/subdocument_validators.cc.
"""

from __future__ import annotations

from dcpstream.wire.codes import Opcode
from dcpstream.wire.fields import Record, record, u8, u16, u32
from dcpstream.wire.layout import Part, Request, Response, answered_alike, message
from dcpstream.wire.messages.kv import SetResponse
from dcpstream.wire.status import Status

_SUBDOC = "kv_engine docs/SubDocument.md"
_FOUND = (Status.SUCCESS, Status.SUBDOC_SUCCESS_DELETED)

# ------------------------------------------------------------------------------------------------- lookups of one path


@message(Opcode.SUBDOC_GET, privilege="Read", document_key=True, rest=Part.OPTIONAL, cas=Part.OPTIONAL, source=_SUBDOC)
class SubdocGet(Request):
    """Read the value at a path.

    Attributes:
        path_length: u16, bytes of the path, which begins the value.
        path_flags: u8, see `PathFlag`.
        doc_flags: u8, see `DocFlag`; 0 if left out.
        value: the path.
    """

    path_length: int = u16()
    path_flags: int = u8()
    doc_flags: int | None = u8(optional=True)


@message(Opcode.SUBDOC_GET, statuses=_FOUND, rest=Part.OPTIONAL, source=_SUBDOC)
class SubdocGetResponse(Response):
    """The value at the path, JSON or bytes; with SUBDOC_SUCCESS_DELETED it is a tombstone's."""


@message(Opcode.SUBDOC_EXISTS)
class SubdocExists(SubdocGet):
    """Ask whether there is a value at a path; see `SubdocGet`."""


@message(Opcode.SUBDOC_GET_COUNT)
class SubdocGetCount(SubdocGet):
    """Count the members of the object or array at a path; see `SubdocGet`."""


@message(Opcode.SUBDOC_GET_COUNT)
class SubdocGetCountResponse(SubdocGetResponse):
    """The number of members, JSON."""


# ------------------------------------------------------------------------------------------------- changes of one path


@message(
    Opcode.SUBDOC_DICT_ADD,
    privilege="Upsert",
    document_key=True,
    rest=Part.OPTIONAL,
    cas=Part.OPTIONAL,
    durable=True,
    keeps_ttl=True,
    source=_SUBDOC,
)
class SubdocDictAdd(Request):
    """Add a member to an object; there must be none of that name.

    Attributes:
        path_length: u16, bytes of the path, which begins the value.
        path_flags: u8, see `PathFlag`.
        expiration: u32, of the document; see `Set`.
        user_flags: u32, flags of the document; since 7.6.
        doc_flags: u8, see `DocFlag`; 0 if left out.
        value: the path, then the JSON or bytes to put there.
    """

    path_length: int = u16()
    path_flags: int = u8()
    expiration: int | None = u32(optional=True)
    user_flags: int | None = u32(optional=True, since="7.6")
    doc_flags: int | None = u8(optional=True)


@message(Opcode.SUBDOC_DICT_UPSERT)
class SubdocDictUpsert(SubdocDictAdd):
    """Set a member of an object, new or not; see `SubdocDictAdd`."""


@message(Opcode.SUBDOC_DELETE)
class SubdocDelete(SubdocDictAdd):
    """Remove the value at a path; the request has no value; see `SubdocDictAdd`."""


@message(Opcode.SUBDOC_REPLACE)
class SubdocReplace(SubdocDictAdd):
    """Replace the value at a path, which must exist; see `SubdocDictAdd`."""


@message(Opcode.SUBDOC_ARRAY_PUSH_LAST)
class SubdocArrayPushLast(SubdocDictAdd):
    """Add elements to the end of an array; see `SubdocDictAdd`."""


@message(Opcode.SUBDOC_ARRAY_PUSH_FIRST)
class SubdocArrayPushFirst(SubdocDictAdd):
    """Add elements to the start of an array; see `SubdocDictAdd`."""


@message(Opcode.SUBDOC_ARRAY_INSERT)
class SubdocArrayInsert(SubdocDictAdd):
    """Insert elements into an array, before the one that the path names; see `SubdocDictAdd`."""


@message(Opcode.SUBDOC_ARRAY_ADD_UNIQUE)
class SubdocArrayAddUnique(SubdocDictAdd):
    """Add a primitive to an array that does not hold it yet; see `SubdocDictAdd`."""


@message(Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR)
class SubdocReplaceBodyWithXattr(SubdocDictAdd):
    """Replace the body by the value of an extended attribute; see `SubdocDictAdd`."""


answered_alike(
    SetResponse,
    *(Opcode.SUBDOC_DICT_ADD, Opcode.SUBDOC_DICT_UPSERT, Opcode.SUBDOC_DELETE, Opcode.SUBDOC_REPLACE),
    *(Opcode.SUBDOC_ARRAY_PUSH_LAST, Opcode.SUBDOC_ARRAY_PUSH_FIRST, Opcode.SUBDOC_ARRAY_INSERT),
    *(Opcode.SUBDOC_ARRAY_ADD_UNIQUE, Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR),
)


@message(Opcode.SUBDOC_COUNTER, privilege="Read Upsert")
class SubdocCounter(SubdocDictAdd):
    """Add the signed number in the value to the number at a path; see `SubdocDictAdd`."""


@message(Opcode.SUBDOC_COUNTER, statuses=_FOUND, rest=Part.OPTIONAL, source=_SUBDOC)
class SubdocCounterResponse(Response):
    """The new number, JSON, without a place in history."""


@message(Opcode.SUBDOC_COUNTER, rest=Part.OPTIONAL)
class SubdocCounterTokenResponse(SetResponse):
    """The new number, JSON, with the write's place in history; see `SetResponse`."""


# ------------------------------------------------------------------------------------------------------ several paths


@message(
    Opcode.SUBDOC_MULTI_LOOKUP,
    privilege="Read",
    document_key=True,
    rest=Part.OPTIONAL,
    cas=Part.OPTIONAL,
    source=_SUBDOC,
)
class SubdocMultiLookup(Request):
    """Make up to 16 lookups: a `LookupSpec` and its path each.

    Attributes:
        doc_flags: u8, see `DocFlag`; 0 if left out.
    """

    doc_flags: int | None = u8(optional=True)


@record
class LookupSpec(Record):
    """The head of one lookup; the path follows.

    Attributes:
        opcode: u8, SUBDOC_GET, SUBDOC_EXISTS, SUBDOC_GET_COUNT, or GET for the whole body.
        path_flags: u8, see `PathFlag`.
        path_length: u16.
    """

    opcode: int = u8()
    path_flags: int = u8()
    path_length: int = u16()


@message(
    Opcode.SUBDOC_MULTI_LOOKUP,
    statuses=(*_FOUND, Status.SUBDOC_MULTI_FAILURE, Status.SUBDOC_MULTI_FAILURE_DELETED),
    rest=Part.OPTIONAL,
    source=_SUBDOC,
)
class SubdocMultiLookupResponse(Response):
    """The results, in the order of the lookups: a `LookupResult` and what was found each."""


@record
class LookupResult(Record):
    """The head of one lookup's result; what was found follows.

    Attributes:
        status: u16.
        length: u32, bytes that follow.
    """

    status: int = u16()
    length: int = u32()


@message(
    Opcode.SUBDOC_MULTI_MUTATION,
    privilege="Upsert",
    document_key=True,
    rest=Part.OPTIONAL,
    cas=Part.OPTIONAL,
    durable=True,
    keeps_ttl=True,
    source=_SUBDOC,
)
class SubdocMultiMutation(Request):
    """Make up to 16 changes, all or none: a `MutationSpec`, its path and its value each.

    Attributes:
        expiration: u32, of the document; see `Set`.
        user_flags: u32, flags of the document; since 7.6.
        doc_flags: u8, see `DocFlag`; 0 if left out.
    """

    expiration: int | None = u32(optional=True)
    user_flags: int | None = u32(optional=True, since="7.6")
    doc_flags: int | None = u8(optional=True)


@record
class MutationSpec(Record):
    """The head of one change; path and value follow.

    Attributes:
        opcode: u8, one of the single changes, or SET or DELETE for the whole document.
        path_flags: u8, see `PathFlag`.
        path_length: u16.
        value_length: u32.
    """

    opcode: int = u8()
    path_flags: int = u8()
    path_length: int = u16()
    value_length: int = u32()


@message(Opcode.SUBDOC_MULTI_MUTATION, statuses=_FOUND, rest=Part.OPTIONAL, source=_SUBDOC)
class SubdocMultiMutationResponse(Response):
    """The results of those changes that have one, without a place in history: a `MutationResult` and its value each."""


@message(Opcode.SUBDOC_MULTI_MUTATION, rest=Part.OPTIONAL)
class SubdocMultiMutationTokenResponse(SetResponse):
    """The results, as in `SubdocMultiMutationResponse`, with the write's place in history; see `SetResponse`."""


@record
class MutationResult(Record):
    """The head of one change's result; its value follows.

    Attributes:
        index: u8, which change.
        status: u16.
        length: u32, bytes that follow.
    """

    index: int = u8()
    status: int = u16()
    length: int = u32()


@message(Opcode.SUBDOC_MULTI_MUTATION, statuses=(Status.SUBDOC_MULTI_FAILURE,), source=_SUBDOC)
class SubdocMultiMutationFailure(Response):
    """No change was made, as one of them failed.

    Attributes:
        index: u8, which change.
        status_of_change: u16, why.
    """

    index: int = u8(value=True)
    status_of_change: int = u16(value=True)
