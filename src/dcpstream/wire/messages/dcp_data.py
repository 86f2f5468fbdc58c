"""DCP messages that carry changes.

Source of all: kv_engine docs/dcp/documentation/commands/, include/mcbp/codec/dcp_*.h.
"""

from __future__ import annotations

from dcpstream.wire.codes import Opcode
from dcpstream.wire.layout import Part, Request, message, u8, u16, u32, u64

DATA_EXTRAS_BYTES: dict[int, tuple[int, ...]] = {
    int(Opcode.DCP_MUTATION): (31,),
    int(Opcode.DCP_DELETION): (18, 21),
    int(Opcode.DCP_EXPIRATION): (20,),
}
"""By opcode: the lengths that the extras of a document's change can have. Of a deletion's two the longer one, of the
second version, has a delete time."""

_DOCS = "kv_engine docs/dcp/documentation/commands/"


@message(
    Opcode.DCP_MUTATION,
    key=Part.REQUIRED,
    rest=Part.OPTIONAL,
    flow_controlled=True,
    since="3.0",
    source=_DOCS + "mutation.md",
)
class Mutation(Request):
    """A document was written.

    Attributes:
        by_seqno: u64, its place in the vbucket's history.
        rev_seqno: u64, how often the document was changed.
        flags: u32, the writer's.
        expiration: u32, seconds since 1970, 0 for never.
        lock_time: u32, 0.
        nmeta: u16, 0.
        nru: u8, how recently or often it was used.
        key: with collection prefix on a connection with collections.
        value: the document, xattr section first if the datatype says so.
    """

    by_seqno: int = u64()
    rev_seqno: int = u64()
    flags: int = u32(default=0)
    expiration: int = u32(default=0)
    lock_time: int = u32(default=0)
    nmeta: int = u16(default=0)
    nru: int = u8(default=0)


@message(
    Opcode.DCP_DELETION,
    key=Part.REQUIRED,
    rest=Part.OPTIONAL,
    flow_controlled=True,
    since="3.0",
    source=_DOCS + "deletion.md",
)
class Deletion(Request):
    """A document was deleted (version 1). `nmeta` is a u16, 0."""

    by_seqno: int = u64()
    rev_seqno: int = u64()
    nmeta: int = u16(default=0)


@message(
    Opcode.DCP_DELETION,
    key=Part.REQUIRED,
    rest=Part.OPTIONAL,
    flow_controlled=True,
    since="5.5",
    source=_DOCS + "deletion.md",
)
class DeletionV2(Request):
    """A document was deleted, at `delete_time` (u32, seconds since 1970)."""

    by_seqno: int = u64()
    rev_seqno: int = u64()
    delete_time: int = u32()
    unused: int = u8(default=0)


@message(
    Opcode.DCP_EXPIRATION,
    key=Part.REQUIRED,
    rest=Part.OPTIONAL,
    flow_controlled=True,
    since="6.5",
    source=_DOCS + "expiration.md",
)
class Expiration(Request):
    """A document's time was over, at `delete_time` (u32, seconds since 1970)."""

    by_seqno: int = u64()
    rev_seqno: int = u64()
    delete_time: int = u32()


@message(
    Opcode.DCP_SYSTEM_EVENT,
    key=Part.OPTIONAL,
    rest=Part.OPTIONAL,
    flow_controlled=True,
    since="7.0",
    source=_DOCS + "system_event.md",
)
class SystemEvent(Request):
    """Scopes or collections changed.

    Attributes:
        by_seqno: u64.
        event: u32, see `SystemEventId`.
        version: u8, layout of the value.
        key: the name, where there is one; never with a collection prefix.
        value: ids, as `version` says.
    """

    by_seqno: int = u64()
    event: int = u32()
    version: int = u8(default=0)


@message(
    Opcode.DCP_PREPARE,
    key=Part.REQUIRED,
    rest=Part.OPTIONAL,
    flow_controlled=True,
    since="6.5",
    source=_DOCS + "prepare.md",
)
class Prepare(Request):
    """A durable write that is not decided yet.

    Attributes:
        deleted: u8, 1 if it is a deletion.
        level: u8, 1 majority, 2 majority and persist on the active, 3 persist to majority.
    """

    by_seqno: int = u64()
    rev_seqno: int = u64()
    flags: int = u32(default=0)
    expiration: int = u32(default=0)
    lock_time: int = u32(default=0)
    nru: int = u8(default=0)
    deleted: int = u8(default=0)
    level: int = u8()


@message(Opcode.DCP_SEQNO_ACKNOWLEDGED, since="6.5", source=_DOCS + "seqno-acknowledged.md")
class SeqnoAcknowledged(Request):
    """The replica has prepared everything up to `prepared_seqno` (u64)."""

    prepared_seqno: int = u64()


@message(Opcode.DCP_COMMIT, key=Part.REQUIRED, flow_controlled=True, since="6.5", source=_DOCS + "commit.md")
class Commit(Request):
    """The prepare at `prepared_seqno` (u64) is decided; `commit_seqno` (u64) is the change's own seqno."""

    prepared_seqno: int = u64()
    commit_seqno: int = u64()


@message(Opcode.DCP_ABORT, key=Part.REQUIRED, flow_controlled=True, since="6.5", source=_DOCS + "abort.md")
class Abort(Request):
    """The prepare at `prepared_seqno` (u64) is void; `abort_seqno` (u64) is the change's own seqno."""

    prepared_seqno: int = u64()
    abort_seqno: int = u64()
