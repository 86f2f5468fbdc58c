"""Sessions, documents, vbuckets and collections: the messages of clients.

Source of all: kv_engine docs/BinaryProtocol.md, docs/Collections.md, docs/sasl.md, daemon/mcbp_validators.cc.
"""

from __future__ import annotations

from collections.abc import Iterable

from dcpstream.wire.codes import Datatype, Opcode
from dcpstream.wire.fields import Record, i64, raw, record, u8, u16, u32, u64
from dcpstream.wire.layout import (
    Group,
    Part,
    Phase,
    Request,
    Response,
    answered_alike,
    message,
    quiet_forms,
)
from dcpstream.wire.status import Status

_BINARY = "kv_engine docs/BinaryProtocol.md"
_COLLECTIONS = "kv_engine docs/Collections.md"
_SASL = "kv_engine docs/sasl.md"
_OPCODES = "kv_engine include/mcbp/protocol/opcode.h"
_OBSERVE_SEQNO = "kv_engine engines/ep/docs/protocol/observe_seqno.md"
_RANGE_SCANS = "kv_engine docs/range_scans/"

# ---------------------------------------------------------------------------------------------------------- session


@message(
    Opcode.HELLO,
    privilege="",
    groups=Group.MAP_ONLY,
    key=Part.OPTIONAL,
    rest=Part.OPTIONAL,
    phase=Phase.CONNECTED,
    source=_BINARY,
)
class Hello(Request):
    """Name the client and ask for features.

    Attributes:
        key: the client's name and version, free text or JSON.
        value: one `FeatureCode` per feature.
    """


@message(Opcode.HELLO, statuses=(Status.SUCCESS,), rest=Part.OPTIONAL, source=_BINARY)
class HelloResponse(Response):
    """The features that are on from now on: one `FeatureCode` each."""


@record
class FeatureCode(Record):
    """A feature of HELLO; see `Feature`."""

    code: int = u16()


def encode_features(codes: Iterable[int]) -> bytes:
    """The value of HELLO and of its answer: one `FeatureCode` for each code, in the given order.

    Raises:
        FieldError: a code does not fit two bytes.
    """
    return b"".join(FeatureCode(code).pack() for code in codes)


@message(Opcode.SASL_LIST_MECHS, privilege="", phase=Phase.CONNECTED, source=_SASL)
class SaslListMechs(Request):
    """Ask for the login mechanisms."""


@message(Opcode.SASL_LIST_MECHS, statuses=(Status.SUCCESS,), rest=Part.OPTIONAL, source=_SASL)
class SaslListMechsResponse(Response):
    """The names of the mechanisms, separated by blanks, strongest first."""


@message(
    Opcode.SASL_AUTH,
    privilege="",
    key=Part.REQUIRED,
    rest=Part.OPTIONAL,
    groups=Group.LOGIN,
    phase=Phase.CONNECTED,
    source=_SASL,
)
class SaslAuth(Request):
    """Begin a login: the mechanism in the key, the first message of the client in the value."""


@message(Opcode.SASL_AUTH, statuses=(Status.SUCCESS, Status.AUTH_CONTINUE), rest=Part.OPTIONAL, source=_SASL)
class SaslAuthResponse(Response):
    """The node's message in the value; with AUTH_CONTINUE the client goes on with `SaslStep`."""


@message(Opcode.SASL_STEP)
class SaslStep(SaslAuth):
    """Go on with a login: the mechanism in the key, the client's next message in the value."""


answered_alike(SaslAuthResponse, Opcode.SASL_STEP)


@message(
    Opcode.SELECT_BUCKET,
    privilege="",
    groups=Group.MAP_ONLY,
    key=Part.OPTIONAL,
    cas=Part.OPTIONAL,
    phase=Phase.LOGGED_IN,
    source=_BINARY,
)
class SelectBucket(Request):
    """Use the bucket that the key names; `@no bucket@` leaves the present one."""


@message(Opcode.LIST_BUCKETS, privilege="", cas=Part.OPTIONAL, phase=Phase.LOGGED_IN, source=_OPCODES)
class ListBuckets(Request):
    """Ask for the buckets that the user may select. No longer documented, but servers answer it."""


@message(Opcode.LIST_BUCKETS, statuses=(Status.SUCCESS,), rest=Part.OPTIONAL, source=_OPCODES)
class ListBucketsResponse(Response):
    """The buckets' names, separated by blanks."""


@message(Opcode.GET_CLUSTER_CONFIG, privilege="", groups=Group.MAP_ONLY, phase=Phase.LOGGED_IN, source=_BINARY)
class GetClusterConfig(Request):
    """Ask for the cluster map: the selected bucket's, or the node's."""


@message(Opcode.GET_CLUSTER_CONFIG, since="7.6")
class GetClusterConfigNewer(GetClusterConfig):
    """Ask for the cluster map if it is newer than the given version.

    Attributes:
        epoch, revision: i64, the version of the client's map.
    """

    epoch: int = i64()
    revision: int = i64()


@message(Opcode.GET_CLUSTER_CONFIG, statuses=(Status.SUCCESS,), rest=Part.OPTIONAL, source=_BINARY)
class GetClusterConfigResponse(Response):
    """The cluster map, JSON; empty if the client's map is the newest."""


CLUSTERMAP_CHANGE = 0x01
"""Opcode of a node's own request (`Magic.SERVER_REQUEST`): the cluster map has changed. The key is the bucket's name,
the extras are a `ClustermapVersion`, and the value is the map, or empty. Never answered."""


@record
class ClustermapVersion(Record):
    """The version of a cluster map."""

    epoch: int = i64()
    revision: int = i64()


@message(
    Opcode.GET_ERROR_MAP,
    privilege="",
    groups=Group.MAP_ONLY | Group.QUESTION,
    phase=Phase.CONNECTED,
    source="kv_engine docs/ErrorMap.md",
)
class GetErrorMap(Request):
    """Ask for the error map.

    Attributes:
        version: u16, the newest version of the map that the client understands.
    """

    version: int = u16(value=True)


@message(Opcode.GET_ERROR_MAP, statuses=(Status.SUCCESS,), rest=Part.REQUIRED, source="kv_engine docs/ErrorMap.md")
class GetErrorMapResponse(Response):
    """The error map, JSON."""


@message(Opcode.NOOP, privilege="", phase=Phase.LOGGED_IN, source=_BINARY)
class Noop(Request):
    """Do nothing: shows that the node answers."""


@message(Opcode.VERSION, privilege="", phase=Phase.LOGGED_IN, source=_BINARY)
class Version(Request):
    """Ask for the server's release."""


@message(Opcode.VERSION, statuses=(Status.SUCCESS,), rest=Part.REQUIRED, source=_BINARY)
class VersionResponse(Response):
    """The release, text."""


@message(Opcode.VERBOSITY, privilege="Administrator", phase=Phase.LOGGED_IN, source=_BINARY)
class Verbosity(Request):
    """Set how much the server logs.

    Attributes:
        level: u32.
    """

    level: int = u32()


@message(Opcode.QUIT, privilege="", phase=Phase.LOGGED_IN, source=_BINARY)
class Quit(Request):
    """Close the connection after the answer."""


@message(
    Opcode.STAT,
    privilege="",
    groups=Group.WHOLE_BUCKET,
    key=Part.OPTIONAL,
    rest=Part.OPTIONAL,
    datatypes=Datatype.JSON,
    source=_BINARY,
)
class Stat(Request):
    """Ask for a group of statistics, named in the key; some groups take options as JSON in the value."""


@message(Opcode.STAT, statuses=(Status.SUCCESS,), key=Part.OPTIONAL, rest=Part.OPTIONAL, source=_BINARY)
class StatResponse(Response):
    """One item: its name in the key, its text in the value. A response with neither ends the group."""


# -------------------------------------------------------------------------------------------------- reading documents


@message(Opcode.GET, privilege="Read", groups=Group.READ, document_key=True, source=_BINARY)
class Get(Request):
    """Read a document."""


@message(Opcode.GET, statuses=(Status.SUCCESS,), key=Part.OPTIONAL, rest=Part.OPTIONAL, source=_BINARY)
class GetResponse(Response):
    """A document.

    Attributes:
        flags: u32, as the writer gave them.
        key: repeated only in answers to GETK, GETKQ and GET_RANDOM_KEY, and before 8.0 to GET_REPLICA.
    """

    flags: int = u32()


@message(Opcode.GETK)
class GetK(Get):
    """`Get` whose answer repeats the key."""


@message(Opcode.GETK, key=Part.REQUIRED)
class GetKResponse(GetResponse):
    """A document with its key; see `GetResponse`."""


@message(Opcode.GET_REPLICA, groups=Group.PLAIN_MISS | Group.OF_ENGINE_80)
class GetReplica(Get):
    """Read a document from a replica vbucket."""


@message(Opcode.GET_EX, since="8.0")
class GetEx(Get):
    """Read a document with its extended attributes, as it is stored."""


@message(Opcode.GET_EX, since="8.0")
class GetExResponse(GetResponse):
    """A document; attributes stand in front of its body if the datatype says so."""


@message(Opcode.GET_EX_REPLICA, groups=Group.PLAIN_MISS)
class GetExReplica(GetEx):
    """Read a document with its extended attributes from a replica vbucket."""


@message(Opcode.TOUCH, privilege="Upsert", groups=Group.NONE, durable=True)
class Touch(Get):
    """Give a document a new expiration.

    Attributes:
        expiration: u32, seconds from now up to 30 days, else seconds since 1970; 0 for never.
    """

    expiration: int = u32()


@message(Opcode.GAT, privilege="Read Upsert", groups=Group.READ)
class Gat(Touch):
    """Give a document a new expiration and read it; see `Touch`."""


@message(Opcode.GET_LOCKED, groups=Group.READ | Group.PLAIN_MISS | Group.PLAIN_PLACE | Group.ACTS)
class GetLocked(Get):
    """Read a document and lock it: until the lock ends, only writes with the lock's CAS succeed.

    Attributes:
        seconds: u32, how long to lock; the bucket's default if left out, 0 or too long.
    """

    seconds: int | None = u32(optional=True)


@message(Opcode.UNLOCK, groups=Group.PLAIN_MISS | Group.PLAIN_PLACE | Group.ACTS, cas=Part.REQUIRED)
class Unlock(Get):
    """Give back a lock, named by its CAS."""


@message(Opcode.GET_META, groups=Group.NONE)
class GetMeta(Get):
    """Read a document's metadata, or that of its tombstone.

    Attributes:
        version: u8, 2 for an answer with the datatype; 0 or 1 like none.
    """

    version: int | None = u8(optional=True)


@message(Opcode.GET_META, statuses=(Status.SUCCESS,), source=_BINARY)
class GetMetaResponse(Response):
    """A document's metadata.

    Attributes:
        deleted: u32, 1 for a tombstone.
        flags: u32.
        expiration: u32, of a tombstone the time of the deletion; seconds since 1970.
        rev_seqno: u64, the revision.
        datatype_stored: u8, only in answers to version 2.
    """

    deleted: int = u32()
    flags: int = u32()
    expiration: int = u32()
    rev_seqno: int = u64()
    datatype_stored: int | None = u8(optional=True)


@message(
    Opcode.GET_RANDOM_KEY,
    privilege="Read",
    anywhere=True,
    groups=Group.WHOLE_BUCKET | Group.OF_ENGINE_80,
    source=_BINARY,
)
class GetRandomKey(Request):
    """Read some document; only on connections without collections."""


@message(Opcode.GET_RANDOM_KEY, since="7.0", source=_COLLECTIONS)
class GetRandomKeyOfCollection(GetRandomKey):
    """Read some document of a collection.

    Attributes:
        collection_id: u32.
    """

    collection_id: int = u32()


@message(Opcode.GET_RANDOM_KEY, since="8.0")
class GetRandomKeyWithXattrs(GetRandomKeyOfCollection):
    """Read some document of a collection, perhaps with its extended attributes.

    Attributes:
        include_xattrs: u8, 1 to get them.
    """

    include_xattrs: int = u8()


quiet_forms(
    "without an answer for a document that does not exist",
    {Get: Opcode.GETQ, GetK: Opcode.GETKQ, Gat: Opcode.GATQ, GetMeta: Opcode.GETQ_META},
)
answered_alike(
    GetResponse,
    *(Opcode.GETQ, Opcode.GET_REPLICA, Opcode.GAT, Opcode.GATQ, Opcode.GET_LOCKED),
)
answered_alike(GetKResponse, Opcode.GETKQ)
answered_alike(GetExResponse, Opcode.GET_EX_REPLICA)
answered_alike(GetMetaResponse, Opcode.GETQ_META)


@message(Opcode.GET_RANDOM_KEY)
class GetRandomKeyResponse(GetResponse):
    """A document with its key; see `GetResponse`."""


@message(Opcode.GET_KEYS, privilege="Read", groups=Group.PLAIN_PLACE, document_key=True, source=_BINARY)
class GetKeys(Request):
    """Ask for the keys of a vbucket in the collection of the given key, ascending, from that key on.

    Attributes:
        count: u32, how many at most; 1000 if left out.
    """

    count: int | None = u32(optional=True)


@message(Opcode.GET_KEYS, statuses=(Status.SUCCESS,), rest=Part.OPTIONAL, source=_BINARY)
class GetKeysResponse(Response):
    """Keys, a `KeyLength` before each."""


@record
class KeyLength(Record):
    """Bytes of the key that follows."""

    length: int = u16()


# -------------------------------------------------------------------------------------------------- writing documents


@message(
    Opcode.SET,
    privilege="Upsert",
    groups=Group.STORE,
    document_key=True,
    rest=Part.OPTIONAL,
    cas=Part.OPTIONAL,
    datatypes=Datatype.JSON | Datatype.SNAPPY,
    durable=True,
    keeps_ttl=True,
    source=_BINARY,
)
class Set(Request):
    """Write a document; with a CAS only over the version that has it.

    Attributes:
        flags: u32, stored as given.
        expiration: u32, seconds from now up to 30 days, else seconds since 1970; 0 for never.
    """

    flags: int = u32(default=0)
    expiration: int = u32(default=0)


@message(Opcode.SET, statuses=(Status.SUCCESS,), source=_BINARY)
class SetResponse(Response):
    """The write's place in history, if MUTATION_SEQNO was negotiated; else the extras are empty.

    Attributes:
        vbuuid: u64, the branch of the vbucket's history.
        seqno: u64.
    """

    vbuuid: int = u64()
    seqno: int = u64()


@message(Opcode.ADD, privilege="Insert|Upsert", cas=Part.NONE, keeps_ttl=False)
class Add(Set):
    """Write a document that must not exist; see `Set`."""


@message(Opcode.REPLACE)
class Replace(Set):
    """Write a document that must exist; see `Set`."""


@message(Opcode.DELETE, privilege="Delete", document_key=True, cas=Part.OPTIONAL, durable=True, source=_BINARY)
class Delete(Request):
    """Delete a document; with a CAS only the version that has it."""


@message(
    Opcode.APPEND,
    privilege="Upsert",
    document_key=True,
    rest=Part.OPTIONAL,
    cas=Part.OPTIONAL,
    datatypes=Datatype.JSON | Datatype.SNAPPY,
    durable=True,
    keeps_ttl=True,
    source=_BINARY,
)
class Append(Request):
    """Add bytes to the end of a document that must exist."""


@message(Opcode.PREPEND)
class Prepend(Append):
    """Add bytes to the start of a document that must exist."""


@message(Opcode.INCREMENT, privilege="Read Upsert", document_key=True, durable=True, keeps_ttl=True, source=_BINARY)
class Increment(Request):
    """Add to a document that is a number in decimal text; numbers wrap at 2**64.

    Attributes:
        delta: u64.
        initial: u64, the number that a new document begins with.
        expiration: u32, of a new document; 0xFFFFFFFF to create none.
    """

    delta: int = u64()
    initial: int = u64()
    expiration: int = u32()


@message(Opcode.INCREMENT, statuses=(Status.SUCCESS,), source=_BINARY)
class IncrementResponse(Response):
    """The new number, without a place in history.

    Attributes:
        number: u64.
    """

    number: int = u64(value=True)


@message(Opcode.INCREMENT)
class IncrementTokenResponse(IncrementResponse):
    """The new number with the write's place in history, if MUTATION_SEQNO was negotiated.

    Attributes:
        vbuuid: u64, the branch of the vbucket's history.
        seqno: u64.
        number: u64.
    """

    vbuuid: int = u64()
    seqno: int = u64()


@message(Opcode.DECREMENT)
class Decrement(Increment):
    """Subtract from a document that is a number in decimal text; numbers stop at 0. See `Increment`."""


@message(
    Opcode.SET_WITH_META,
    privilege="MetaWrite",
    document_key=True,
    rest=Part.OPTIONAL,
    cas=Part.OPTIONAL,
    datatypes=Datatype.JSON | Datatype.SNAPPY | Datatype.XATTR,
    source=_BINARY,
)
class SetWithMeta(Request):
    """Write a version of a document as another cluster has it; it stays if it wins over the present version.

    Attributes:
        flags: u32.
        time: u32, the expiration, of a deletion its time; seconds since 1970.
        rev_seqno: u64, the version's revision.
        cas_of_version: u64, the version's CAS.
        options: u32, see `MetaOption`.
        extension_bytes: u16, length of further metadata at the end of the value: a version byte 1 and `MetaField`s.
    """

    flags: int = u32()
    time: int = u32()
    rev_seqno: int = u64()
    cas_of_version: int = u64()
    options: int | None = u32(optional=True)
    extension_bytes: int | None = u16(optional=True)


@record
class MetaField(Record):
    """The head of a field of further metadata: its type, and the length of what follows."""

    kind: int = u8()
    length: int = u16()


@message(Opcode.ADD_WITH_META)
class AddWithMeta(SetWithMeta):
    """`SetWithMeta` of a document that must not exist."""


@message(Opcode.DELETE_WITH_META)
class DeleteWithMeta(SetWithMeta):
    """Write a deletion as another cluster has it; the value may hold extended attributes. See `SetWithMeta`."""


@message(
    Opcode.MUTATE_WITH_META,
    privilege="MetaWrite",
    document_key=True,
    rest=Part.OPTIONAL,
    cas=Part.OPTIONAL,
    datatypes=Datatype.JSON | Datatype.SNAPPY | Datatype.XATTR,
    since="8.5",
    source="kv_engine docs/mutate-with-meta.md",
)
class MutateWithMeta(Request):
    """Write a version of a document or a deletion, as another cluster has it, with its own CAS and seqno inside it.

    The value is the document, and behind it JSON with `command` (add, set or delete), `cas`, `rev_seqno`, `flags`,
    `expiration`, `options` (as of `SetWithMeta`), `cas_offsets` and `seqno_offsets`.

    Attributes:
        meta_bytes: u32, length of the JSON.
    """

    meta_bytes: int = u32()


@message(
    Opcode.RETURN_META, privilege="MetaWrite", document_key=True, rest=Part.OPTIONAL, cas=Part.OPTIONAL, source=_BINARY
)
class ReturnMeta(Request):
    """Write or delete a document and ask for its new metadata.

    Attributes:
        mode: u32, 1 to set, 2 to add, 3 to delete.
        flags: u32.
        expiration: u32; see `Set`.
    """

    mode: int = u32()
    flags: int = u32()
    expiration: int = u32()


@message(Opcode.RETURN_META, statuses=(Status.SUCCESS,), source=_BINARY)
class ReturnMetaResponse(Response):
    """The document's metadata; its CAS is in the header.

    Attributes:
        flags: u32.
        expiration: u32, seconds since 1970.
        rev_seqno: u64, the revision.
    """

    flags: int = u32()
    expiration: int = u32()
    rev_seqno: int = u64()


quiet_forms(
    "answered only if it fails",
    {
        Set: Opcode.SETQ,
        Add: Opcode.ADDQ,
        Replace: Opcode.REPLACEQ,
        Delete: Opcode.DELETEQ,
        Increment: Opcode.INCREMENTQ,
        Decrement: Opcode.DECREMENTQ,
        SetWithMeta: Opcode.SETQ_WITH_META,
        AddWithMeta: Opcode.ADDQ_WITH_META,
        DeleteWithMeta: Opcode.DELETEQ_WITH_META,
        Quit: Opcode.QUITQ,
    },
)
quiet_forms(
    "whose success is answered only if MUTATION_SEQNO was negotiated",
    {Append: Opcode.APPENDQ, Prepend: Opcode.PREPENDQ},
)
answered_alike(
    SetResponse,
    *(Opcode.ADD, Opcode.REPLACE, Opcode.DELETE, Opcode.APPEND, Opcode.APPENDQ, Opcode.PREPEND, Opcode.PREPENDQ),
    *(Opcode.SET_WITH_META, Opcode.ADD_WITH_META, Opcode.DELETE_WITH_META, Opcode.MUTATE_WITH_META),
)
answered_alike(IncrementResponse, Opcode.DECREMENT)
answered_alike(IncrementTokenResponse, Opcode.DECREMENT)


# ---------------------------------------------------------------------------------------------------------- vbuckets


@message(Opcode.GET_ALL_VB_SEQNOS, privilege="", groups=Group.WHOLE_BUCKET, source=_BINARY)
class GetAllVbSeqnos(Request):
    """Ask for the high seqnos of the node's vbuckets.

    Attributes:
        state: u32, only vbuckets in this state; all but dead ones if 0 or left out.
        collection_id: u32, seqnos of this collection alone; since 7.0.
    """

    state: int | None = u32(optional=True)
    collection_id: int | None = u32(optional=True, since="7.0")


@message(Opcode.GET_ALL_VB_SEQNOS, statuses=(Status.SUCCESS,), rest=Part.OPTIONAL, source=_BINARY)
class GetAllVbSeqnosResponse(Response):
    """One `VbucketSeqno` for each vbucket."""


@message(Opcode.OBSERVE_SEQNO, privilege="Read", anywhere=True, cas=Part.OPTIONAL, source=_OBSERVE_SEQNO)
class ObserveSeqno(Request):
    """Ask how much of a branch is in memory and on disk.

    Attributes:
        vbuuid: u64, the branch.
    """

    vbuuid: int = u64(value=True)


@message(Opcode.OBSERVE_SEQNO, statuses=(Status.SUCCESS,), source=_OBSERVE_SEQNO)
class ObserveSeqnoResponse(Response):
    """The branch is the newest one.

    Attributes:
        format: u8, 0.
        observed_vbid: u16.
        vbuuid: u64, the newest branch.
        persisted_seqno, current_seqno: u64.
    """

    format: int = u8(fixed=0, value=True)
    observed_vbid: int = u16(value=True)
    vbuuid: int = u64(value=True)
    persisted_seqno: int = u64(value=True)
    current_seqno: int = u64(value=True)


@message(Opcode.OBSERVE_SEQNO)
class ObserveSeqnoFailoverResponse(ObserveSeqnoResponse):
    """A newer branch has replaced the one that was asked about.

    Attributes:
        format: u8, 1.
        persisted_seqno, current_seqno: u64, of the newest branch.
        old_vbuuid: u64, the branch that was asked about.
        last_seqno: u64, where that branch ended.
    """

    format: int = u8(fixed=1, value=True)
    old_vbuuid: int = u64(value=True)
    last_seqno: int = u64(value=True)


@message(Opcode.OBSERVE, groups=Group.OF_ENGINE, privilege="", rest=Part.REQUIRED, source=_BINARY)
class Observe(Request):
    """Ask whether documents exist and are persisted: an `ObservedKey` and the key for each."""


@message(Opcode.OBSERVE, statuses=(Status.SUCCESS,), rest=Part.REQUIRED, source=_BINARY)
class ObserveResponse(Response):
    """An `ObservedKey`, the key and an `ObservedState` for each document."""


@record
class ObservedKey(Record):
    """A document of OBSERVE; its key follows."""

    vbid: int = u16()
    key_length: int = u16()


@record
class ObservedState(Record):
    """The state of a document: 0x00 found, 0x01 persisted, 0x80 not found, 0x81 deleted but not persisted."""

    state: int = u8()
    cas: int = u64()


@message(Opcode.GET_FAILOVER_LOG, privilege="Read", cas=Part.OPTIONAL, source=_OPCODES)
class GetFailoverLogPlain(Request):
    """Ask for the branches of a vbucket on a connection that is not a DCP connection."""


@message(Opcode.GET_FAILOVER_LOG, statuses=(Status.SUCCESS,), rest=Part.REQUIRED, source=_OPCODES)
class GetFailoverLogPlainResponse(Response):
    """The branches of a vbucket, newest first: a vbuuid (u64) and a seqno (u64) each."""


@message(Opcode.SEQNO_PERSISTENCE, groups=Group.OF_ENGINE_80, privilege="NodeSupervisor", source=_BINARY)
class SeqnoPersistence(Request):
    """Ask for an answer once a seqno is on disk.

    Attributes:
        seqno: u64.
    """

    seqno: int = u64()


# -------------------------------------------------------------------------------------------------------- collections


@message(Opcode.GET_COLLECTIONS_MANIFEST, privilege="", source=_COLLECTIONS)
class GetCollectionsManifest(Request):
    """Ask for the scopes and collections."""


@message(Opcode.GET_COLLECTIONS_MANIFEST, statuses=(Status.SUCCESS,), rest=Part.REQUIRED, source=_COLLECTIONS)
class GetCollectionsManifestResponse(Response):
    """The manifest, JSON."""


@message(Opcode.SET_COLLECTIONS, privilege="NodeSupervisor", rest=Part.REQUIRED, source=_COLLECTIONS)
class SetCollections(Request):
    """Replace the manifest of scopes and collections; the value is JSON."""


@message(Opcode.GET_COLLECTION_ID, privilege="", key=Part.OPTIONAL, rest=Part.OPTIONAL, source=_COLLECTIONS)
class GetCollectionId(Request):
    """Ask for the id of `scope.collection`, which is in the key or in the value."""


@message(Opcode.GET_COLLECTION_ID, statuses=(Status.SUCCESS,), source=_COLLECTIONS)
class GetCollectionIdResponse(Response):
    """A collection's id.

    Attributes:
        manifest_uid: u64, the manifest that it is from.
        collection_id: u32.
    """

    manifest_uid: int = u64()
    collection_id: int = u32()


@message(Opcode.GET_SCOPE_ID)
class GetScopeId(GetCollectionId):
    """Ask for the id of a scope, whose name is in the key or in the value; what follows a dot is ignored."""


@message(Opcode.GET_SCOPE_ID, statuses=(Status.SUCCESS,), source=_COLLECTIONS)
class GetScopeIdResponse(Response):
    """A scope's id.

    Attributes:
        manifest_uid: u64, the manifest that it is from.
        scope_id: u32.
    """

    manifest_uid: int = u64()
    scope_id: int = u32()


# -------------------------------------------------------------------------------------------------------- range scans


@message(
    Opcode.RANGE_SCAN_CREATE,
    privilege="RangeScan",
    anywhere=True,
    rest=Part.REQUIRED,
    datatypes=Datatype.JSON,
    since="7.6",
    source=_RANGE_SCANS,
)
class RangeScanCreate(Request):
    """Begin a scan of a vbucket's keys; the value describes range or sample, JSON."""


@message(Opcode.RANGE_SCAN_CREATE, statuses=(Status.SUCCESS,), since="7.6", source=_RANGE_SCANS)
class RangeScanCreateResponse(Response):
    """The scan was made.

    Attributes:
        scan_id: 16 bytes, names the scan.
    """

    scan_id: bytes = raw(16, value=True)


@message(Opcode.RANGE_SCAN_CONTINUE, privilege="RangeScan", anywhere=True, since="7.6", source=_RANGE_SCANS)
class RangeScanContinue(Request):
    """Ask for the next keys or documents of a scan.

    Attributes:
        scan_id: 16 bytes.
        item_limit: u32, how many at most; 0 for no limit.
        time_limit_ms: u32, for how long; 0 for no limit.
        byte_limit: u32, how many bytes at most; 0 for no limit.
    """

    scan_id: bytes = raw(16)
    item_limit: int = u32()
    time_limit_ms: int = u32()
    byte_limit: int = u32()


@message(
    Opcode.RANGE_SCAN_CONTINUE,
    statuses=(Status.SUCCESS, Status.RANGE_SCAN_MORE, Status.RANGE_SCAN_COMPLETE),
    rest=Part.OPTIONAL,
    since="7.6",
    source=_RANGE_SCANS,
)
class RangeScanContinueResponse(Response):
    """Keys or documents of a scan.

    A key is its length (LEB128) and its bytes; a document is a `ScannedDocument`, then key and value in that form.
    With SUCCESS more responses follow; RANGE_SCAN_MORE ends the answer, RANGE_SCAN_COMPLETE the scan.

    Attributes:
        content: u32, 0 keys, 1 documents.
    """

    content: int = u32()


@record
class ScannedDocument(Record):
    """The metadata of a scanned document."""

    flags: int = u32()
    expiration: int = u32()
    seqno: int = u64()
    cas: int = u64()
    datatype: int = u8()


@message(Opcode.RANGE_SCAN_CANCEL, privilege="RangeScan", anywhere=True, since="7.6", source=_RANGE_SCANS)
class RangeScanCancel(Request):
    """End a scan.

    Attributes:
        scan_id: 16 bytes.
    """

    scan_id: bytes = raw(16)
