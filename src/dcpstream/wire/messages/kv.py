"""Session, document and vbucket messages that a node and its clients exchange outside DCP.

Source of all: kv_engine docs/BinaryProtocol.md, docs/Collections.md, docs/sasl.md, daemon/mcbp_validators.cc.
"""

from __future__ import annotations

from dcpstream.wire.codes import Opcode
from dcpstream.wire.layout import Part, Request, Response, message, u8, u16, u32, u64
from dcpstream.wire.status import Status

_BINARY = "kv_engine docs/BinaryProtocol.md"
_COLLECTIONS = "kv_engine docs/Collections.md"
_SASL = "kv_engine docs/sasl.md"


@message(Opcode.HELLO, key=Part.OPTIONAL, rest=Part.OPTIONAL, source=_BINARY)
class Hello(Request):
    """Who the client is (key) and which features it wants (value: u16 codes)."""


@message(Opcode.SASL_LIST_MECHS, source=_SASL)
class SaslListMechs(Request):
    """Which mechanisms are there? The answer's value names them, separated by blanks."""


@message(Opcode.SASL_AUTH, key=Part.REQUIRED, rest=Part.OPTIONAL, source=_SASL)
class SaslAuth(Request):
    """Begin authentication: mechanism in the key, initial response in the value."""


@message(Opcode.SASL_STEP, key=Part.REQUIRED, rest=Part.OPTIONAL, source=_SASL)
class SaslStep(Request):
    """Go on with authentication: mechanism in the key, response in the value."""


@message(Opcode.SELECT_BUCKET, key=Part.REQUIRED, source=_BINARY)
class SelectBucket(Request):
    """Use the bucket named in the key."""


@message(Opcode.GET_CLUSTER_CONFIG, source=_BINARY)
class GetClusterConfig(Request):
    """Ask for the cluster map."""


@message(Opcode.GET_CLUSTER_CONFIG, since="7.6", source=_BINARY)
class GetClusterConfigNewer(Request):
    """Ask for the cluster map if it is newer than (`epoch` u64, `rev` u64)."""

    epoch: int = u64()
    rev: int = u64()


@message(Opcode.GET_ERROR_MAP, source="kv_engine docs/ErrorMap.md")
class GetErrorMap(Request):
    """Ask for the error map of at most `version` (u16)."""

    version: int = u16(value=True)


@message(Opcode.NOOP, source=_BINARY)
class Noop(Request):
    """Is the node alive?"""


@message(Opcode.VERSION, source=_BINARY)
class Version(Request):
    """Which version does the node claim to be?"""


@message(Opcode.STAT, key=Part.OPTIONAL, rest=Part.OPTIONAL, source=_BINARY)
class Stat(Request):
    """Ask for a group of statistics; answered by one response an item and an empty one."""


@message(Opcode.GET, key=Part.REQUIRED, source=_BINARY)
class Get(Request):
    """Read a document."""


@message(Opcode.GET, statuses=(Status.SUCCESS,), key=Part.OPTIONAL, rest=Part.OPTIONAL, source=_BINARY)
class GetResponse(Response):
    """A document; `flags` (u32) are the writer's."""

    flags: int = u32()


@message(Opcode.SET, key=Part.REQUIRED, rest=Part.OPTIONAL, source=_BINARY)
class Set(Request):
    """Write a document. `flags`: u32, stored as given; `expiration`: u32, up to 30 days relative, else absolute."""

    flags: int = u32(default=0)
    expiration: int = u32(default=0)


@message(Opcode.ADD, key=Part.REQUIRED, rest=Part.OPTIONAL, source=_BINARY)
class Add(Request):
    """Write a document that must not exist."""

    flags: int = u32(default=0)
    expiration: int = u32(default=0)


@message(Opcode.REPLACE, key=Part.REQUIRED, rest=Part.OPTIONAL, source=_BINARY)
class Replace(Request):
    """Write a document that must exist."""

    flags: int = u32(default=0)
    expiration: int = u32(default=0)


@message(Opcode.DELETE, key=Part.REQUIRED, source=_BINARY)
class Delete(Request):
    """Delete a document."""


@message(Opcode.SET, statuses=(Status.SUCCESS,), source=_BINARY)
class SetResponse(Response):
    """The write's place in history: branch `vbuuid` (u64) and `seqno` (u64)."""

    vbuuid: int = u64()
    seqno: int = u64()


@message(Opcode.DELETE, statuses=(Status.SUCCESS,), source=_BINARY)
class DeleteResponse(Response):
    """The deletion's place in history: branch `vbuuid` (u64) and `seqno` (u64)."""

    vbuuid: int = u64()
    seqno: int = u64()


@message(Opcode.SET_VBUCKET, rest=Part.OPTIONAL, source=_BINARY)
class SetVbucket(Request):
    """Create a vbucket or change its state (u8). The value may be JSON with the replication topology."""

    state: int = u8()


@message(Opcode.GET_VBUCKET, source=_BINARY)
class GetVbucket(Request):
    """Which state is the vbucket in?"""


@message(Opcode.GET_VBUCKET, statuses=(Status.SUCCESS,), source=_BINARY)
class GetVbucketResponse(Response):
    """The vbucket's state (u32)."""

    state: int = u32(value=True)


@message(Opcode.DEL_VBUCKET, rest=Part.OPTIONAL, source=_BINARY)
class DelVbucket(Request):
    """Remove a vbucket."""


@message(Opcode.GET_ALL_VB_SEQNOS, source=_BINARY)
class GetAllVbSeqnos(Request):
    """High seqnos of all living vbuckets."""


@message(Opcode.GET_ALL_VB_SEQNOS, source=_BINARY)
class GetAllVbSeqnosOfState(Request):
    """High seqnos of the vbuckets in `state` (u32; 0 = all but dead)."""

    state: int = u32()


@message(Opcode.GET_ALL_VB_SEQNOS, since="7.0", source=_COLLECTIONS)
class GetAllVbSeqnosOfCollection(Request):
    """High seqnos of a collection (u32) in the vbuckets in `state` (u32)."""

    state: int = u32()
    collection_id: int = u32()


@message(Opcode.OBSERVE_SEQNO, source="kv_engine engines/ep/docs/protocol/observe_seqno.md")
class ObserveSeqno(Request):
    """What of branch `vbuuid` (u64) is in memory and on disk?"""

    vbuuid: int = u64(value=True)


@message(
    Opcode.OBSERVE_SEQNO,
    statuses=(Status.SUCCESS,),
    source="kv_engine engines/ep/docs/protocol/observe_seqno.md",
)
class ObserveSeqnoResponse(Response):
    """The branch is the newest: `persisted_seqno` and `current_seqno` (u64)."""

    format: int = u8(default=0, fixed=0, value=True)
    observed_vbid: int = u16(value=True)
    vbuuid: int = u64(value=True)
    persisted_seqno: int = u64(value=True)
    current_seqno: int = u64(value=True)


@message(
    Opcode.OBSERVE_SEQNO,
    statuses=(Status.SUCCESS,),
    source="kv_engine engines/ep/docs/protocol/observe_seqno.md",
)
class ObserveSeqnoFailoverResponse(Response):
    """There is a newer branch; `last_seqno` (u64) is where the asked one (`old_vbuuid`) ended."""

    format: int = u8(default=1, fixed=1, value=True)
    observed_vbid: int = u16(value=True)
    vbuuid: int = u64(value=True)
    persisted_seqno: int = u64(value=True)
    current_seqno: int = u64(value=True)
    old_vbuuid: int = u64(value=True)
    last_seqno: int = u64(value=True)


@message(Opcode.GET_FAILOVER_LOG, source="kv_engine include/mcbp/protocol/opcode.h")
class GetFailoverLogPlain(Request):
    """A vbucket's branches, asked on a connection that is not a DCP connection."""


@message(Opcode.SEQNO_PERSISTENCE, source=_BINARY)
class SeqnoPersistence(Request):
    """Answer once `seqno` (u64) is on disk."""

    seqno: int = u64()


@message(Opcode.GET_META, key=Part.REQUIRED, source=_BINARY)
class GetMeta(Request):
    """A document's metadata, deleted or not."""


@message(Opcode.GET_META, key=Part.REQUIRED, source=_BINARY)
class GetMetaVersioned(Request):
    """The same in a chosen `version` (u8, 2 adds the datatype)."""

    version: int = u8()


@message(Opcode.GET_COLLECTIONS_MANIFEST, source=_COLLECTIONS)
class GetCollectionsManifest(Request):
    """The list of scopes and collections, as JSON."""


@message(Opcode.GET_COLLECTION_ID, key=Part.OPTIONAL, rest=Part.OPTIONAL, source=_COLLECTIONS)
class GetCollectionId(Request):
    """The id of `scope.collection`, given in the key or in the value."""


@message(Opcode.GET_COLLECTION_ID, statuses=(Status.SUCCESS,), source=_COLLECTIONS)
class GetCollectionIdResponse(Response):
    """`manifest_uid` (u64) and `collection_id` (u32)."""

    manifest_uid: int = u64()
    collection_id: int = u32()


@message(Opcode.GET_SCOPE_ID, key=Part.OPTIONAL, rest=Part.OPTIONAL, source=_COLLECTIONS)
class GetScopeId(Request):
    """The id of a scope, given in the key or in the value."""


@message(Opcode.GET_SCOPE_ID, statuses=(Status.SUCCESS,), source=_COLLECTIONS)
class GetScopeIdResponse(Response):
    """`manifest_uid` (u64) and `scope_id` (u32)."""

    manifest_uid: int = u64()
    scope_id: int = u32()
