"""Features of 7.6 and 8.0: flags, purge seqno, system collections, config-only buckets, consumers."""

import json
import struct

from dcpstream_node.judge.packets import MAX_SEQNO, Op, Status, packet
from dcpstream_node.judge.scenarios.kit import (
    BASE,
    COLLECTIONS,
    DEAD,
    REPLICA,
    Peer,
    activate,
    delete_doc,
    doc_key,
    failover_log,
    login_user,
    mutation_extras,
    permitted,
    persist,
    scenario,
    set_doc,
    set_docs,
    set_vb,
    u32,
    vb_stat,
)

RELEASE = "8.0"
TAKEOVER, DISK_ONLY, TO_LATEST, ACTIVE_ONLY, STRICT = 1, 2, 4, 16, 32
FROM_LATEST, IGNORE_PURGED = 0x40, 0x80
MARKER_22 = ("max_marker_version", "2.2")
FLATBUFFERS = ("flatbuffers_system_events", "true")
DROP_PRIVILEGE, GET_COLLECTION_ID, GET_SCOPE_ID = 0xFB, 0xBB, 0xBC
SET_CLUSTER_CONFIG, GET_CLUSTER_CONFIG = 0xB4, 0xB5
PAUSE_BUCKET, RESUME_BUCKET = 0x8A, 0x8B
OTHER_UUID = 0x1234


def stream_once(run, name, vb, open_flags=1, features=COLLECTIONS, ctl=(), idle=0.4, **fields):
    """A connection, one stream, what comes of it."""
    run.stream_once(name, vb, open_flags, features, ctl=ctl, idle=idle, **fields)


# s61: stream flags


@scenario(first_vb=300, release=RELEASE)
def s61_from_latest(run):
    """FROM_LATEST, IGNORE_PURGED, unknown flags; the flags of ADD_STREAM."""
    admin = run.admin()
    vb = run.fresh_vb(admin)
    set_docs(admin, vb, 5)
    persist(admin, vb)
    uuid = failover_log(admin, vb)[0][0]
    from_latest(run, vb, uuid)
    live_from_latest(run, admin, vb)
    run.note("FROM_LATEST after a failover at seqno 6")
    persist(admin, vb)
    set_vb(admin, vb, REPLICA)
    activate(admin, vb)
    set_doc(admin, "after", b"v", vb)
    persist(admin, vb)
    cases = (("old uuid", {"uuid": uuid}), ("uuid 0", {}), ("uuid 0, strict", {"flags": FROM_LATEST | STRICT}))
    for note, fields in cases:
        stream_once(run, "fl-fo", vb, note=note, **{"flags": FROM_LATEST} | fields)
    from_latest_elsewhere(run, admin)
    other_stream_flags(run, vb, failover_log(admin, vb)[0][0])
    add_stream_flags(run, admin)


def from_latest(run, vb, uuid):
    """The start is the high seqno, 5, whatever the request says."""
    right = {"uuid": uuid}
    top = FROM_LATEST
    for note, fields in (
        ("uuid 0, start 0", {}),
        ("right uuid", right),
        ("wrong uuid", {"uuid": OTHER_UUID}),
        ("wrong uuid, strict", {"uuid": OTHER_UUID, "flags": top | STRICT}),
        ("start 3 is ignored", {"start": 3} | right),
        ("start 3 without uuid", {"start": 3}),
        ("start 9 beyond the high seqno", {"start": 9, "ss": 9, "se": 9} | right),
        ("an impossible snapshot is ignored", {"start": 3, "ss": 4, "se": 2}),
        ("start above end is ignored", {"start": 9, "end": 7}),
        ("end 3 below the high seqno", {"end": 3}),
        ("end 5 = high seqno", {"end": 5}),
        ("end 0", {"end": 0}),
        ("to latest", {"flags": top | TO_LATEST}),
        ("disk only", {"flags": top | DISK_ONLY}),
        ("active only", {"flags": top | ACTIVE_ONLY}),
        ("ignore purged", {"flags": top | IGNORE_PURGED}),
        ("to latest, disk only, strict", {"flags": top | 4 | 2 | STRICT}),
        ("filter of the default collection", {"val": b'{"collections":["0"]}'}),
        ("filter, to latest", {"val": b'{"scope":"0"}', "flags": top | TO_LATEST}),
        ("purge seqno in the value", {"val": b'{"purge_seqno":"0"}'}),
    ):
        fields = {"flags": top} | fields
        stream_once(run, "fl", vb, note=f"FROM_LATEST, {note}", **fields)


def live_from_latest(run, admin, vb):
    """The messages after the start."""
    run.note("FROM_LATEST, then one more document; seqnos 1..5 do not come")
    conn = run.dcp("fl-live", 1, COLLECTIONS)
    conn.read_stream(vb, 0.4, flags=FROM_LATEST)
    set_doc(admin, "new", b"v", vb)
    conn.recv_all(0.5)
    conn.stream_request(vb, flags=FROM_LATEST, note="a second stream")
    conn.close_stream(vb)
    conn.read_stream(vb, 0.3, flags=FROM_LATEST, note="after CLOSE_STREAM")
    conn.close()
    run.note("without collections, end one above the high seqno, then reach it")
    run.stream_once("fl-end", vb, 1, BASE, idle=0.3, flags=FROM_LATEST, end=6)


def from_latest_elsewhere(run, admin):
    """Replica, empty, dead, missing vbuckets; takeover."""
    vb = run.fresh_vb(admin)
    stream_once(run, "fl-empty", vb, note="empty vbucket", flags=FROM_LATEST)
    fields = {"flags": FROM_LATEST | TO_LATEST}
    stream_once(run, "fl-empty", vb, note="empty, to latest", **fields)
    fields = {"flags": FROM_LATEST | STRICT, "uuid": OTHER_UUID}
    stream_once(run, "fl-empty", vb, note="empty, strict, wrong uuid", **fields)
    set_docs(admin, vb, 2)
    persist(admin, vb)
    set_vb(admin, vb, REPLICA)
    stream_once(run, "fl-rep", vb, note="replica", flags=FROM_LATEST)
    fields = {"flags": FROM_LATEST | ACTIVE_ONLY}
    stream_once(run, "fl-rep", vb, note="replica, active only", **fields)
    set_vb(admin, vb, DEAD)
    stream_once(run, "fl-dead", vb, note="dead", flags=FROM_LATEST)
    stream_once(run, "fl-none", 1024, note="vbucket 1024", flags=FROM_LATEST)
    vb = run.fresh_vb(admin)
    set_docs(admin, vb, 2)
    run.note("takeover from latest: the two documents do not come")
    run.stream_once("fl-take", vb, 1, COLLECTIONS, idle=0.6, flags=FROM_LATEST | TAKEOVER)
    activate(admin, vb)


def other_stream_flags(run, vb, uuid):
    """IGNORE_PURGED without a purge; what no server knows."""
    right = {"uuid": uuid}
    for note, fields in (
        ("start 0", {}),
        ("start 3, right uuid", {"start": 3} | right),
        ("start 3, wrong uuid", {"start": 3, "uuid": OTHER_UUID}),
        ("start 30", {"start": 30} | right),
        ("disk only, start 3", {"start": 3, "flags": 0x82} | right),
    ):
        fields = {"flags": IGNORE_PURGED, "end": 7} | fields
        stream_once(run, "ip", vb, note=f"IGNORE_PURGED, {note}", **fields)
    for flags in (0x100, 0x140, 0x200, 0x400, 8, 0x48, 0x80000000, MAX_SEQNO >> 32):
        stream_once(run, "uf", vb, note=f"flags 0x{flags:x}", flags=flags)


def add_stream_flags(run, admin):
    """Each flag in ADD_STREAM, on a consumer of its own."""
    run.note("ADD_STREAM: which flags come back in STREAM_REQ")
    for flags in (0x40, 0x80, 0xC0, 0x41, 0x04, 0x10, 0x20, 0x02, 8, 0x100, 0x200):
        vb = run.fresh_vb(admin, REPLICA)
        peer = Peer(run, "as")
        peer.add(vb, flags, note=f"ADD_STREAM flags 0x{flags:x}")
        peer.pump(0.2, 1)
        peer.close()


# s63: the purge seqno in a request


@scenario(first_vb=340, release=RELEASE)
def s63_purge_seqno(run):
    """`purge_seqno` in the request's value, before and after real purges."""
    admin = run.admin()
    vb = run.fresh_vb(admin)
    set_docs(admin, vb, 6)
    for index in range(4):
        delete_doc(admin, f"k{index}", vb)
    set_doc(admin, "last", b"v", vb)
    persist(admin, vb)
    right = {"uuid": failover_log(admin, vb)[0][0]}
    run.note("seqnos 1..11, tombstones 7..10, nothing purged: purge seqno 0")
    for value in (None, "0", "7"):
        purge_once(run, vb, value, {"start": 3} | right)
    malformed_purge_seqnos(run, vb, right)
    purge(run, admin, vb)
    run.note("purged up to 10")
    for note, fields in purge_cases(right):
        run.note(note)
        for value in (None, "10", "9", "11", "0"):
            purge_once(run, vb, value, fields)
    purge_marker(run, vb)
    purge_with_filters(run, admin, vb, right)
    run.note("a second purge: what was equal is not any more")
    delete_doc(admin, "k4", vb)
    set_doc(admin, "last", b"w", vb)
    persist(admin, vb)
    purge(run, admin, vb)
    purge_marker(run, vb)
    for value in ("13", "14", "15", "16"):
        purge_once(run, vb, value, {"start": 5} | right)
    run.note("a replica answers the same")
    set_vb(admin, vb, REPLICA)
    for value in ("13", "15", "16"):
        purge_once(run, vb, value, {"start": 5} | right)
    activate(admin, vb)
    Manifest(admin).set(default_scope())


def purge_once(run, vb, value, fields):
    """One request with a purge seqno, or none."""
    val = b"" if value is None else json.dumps({"purge_seqno": value}).encode()
    note = f"purge_seqno {value}, start {fields.get('start', 0)}"
    stream_once(run, "ps", vb, val=val, note=note, idle=0.3, **fields)


def purge_cases(right):
    """Requests after the purge up to 10."""
    return (
        ("start 0", {"start": 0} | right),
        ("start 3", {"start": 3} | right),
        ("start 9", {"start": 9} | right),
        ("start 10", {"start": 10} | right),
        ("start 3 in [2,8]", {"start": 3, "ss": 2, "se": 8} | right),
        ("start 3, IGNORE_PURGED", {"start": 3, "flags": IGNORE_PURGED} | right),
        ("start 3, disk only", {"start": 3, "flags": DISK_ONLY} | right),
        ("start 3, wrong uuid", {"start": 3, "uuid": OTHER_UUID}),
        ("start 12 > high", {"start": 12} | right),
    )


def malformed_purge_seqnos(run, vb, right):
    """Values that are no decimal text."""
    run.note("purge_seqno: text of digits, or EINVAL")
    for value in (
        b'{"purge_seqno":7}',
        b'{"purge_seqno":""}',
        b'{"purge_seqno":"abc"}',
        b'{"purge_seqno":"7x"}',
        b'{"purge_seqno":" 7"}',
        b'{"purge_seqno":"-1"}',
        b'{"purge_seqno":"+7"}',
        b'{"purge_seqno":"0x7"}',
        b'{"purge_seqno":"18446744073709551615"}',
        b'{"purge_seqno":"18446744073709551616"}',
        b'{"purge_seqno":null}',
        b'{"purge_seqno":["7"]}',
        b'{"purge_seqno":"7","uid":"0"}',
        b'{"purge_seqno":"7","collections":["0"]}',
        b'{"purge_seqno":"7","scope":"0"}',
        b'{"purge_seqno":"7","sid":1}',
        b'{"purge_seqno":"7","other":1}',
        b'{"PURGE_SEQNO":"7"}',
    ):
        fields = {"start": 10, "end": 11} | right
        stream_once(run, "psm", vb, val=value, note=value.decode(), **fields)
    fields = {"start": 10} | right
    run.note("without collections a value is refused")
    stream_once(run, "psb", vb, 1, BASE, val=b'{"purge_seqno":"0"}', **fields)


def purge(run, admin, vb):
    """COMPACT_DB with drop_deletes."""
    extras = struct.pack(">QQBBHI", 0x7FFFFFFF, 0x7FFFFFFF, 1, 0, 0, 0)
    admin.optional(Op.COMPACT_DB, ext=extras, vb=vb, timeout=20)
    run.sleep(0.6)
    vb_stat(admin, "vbucket-details", vb, "purge_seqno")


def purge_marker(run, vb):
    """The marker of a disk snapshot has the purge seqno."""
    fields = {"ctl": [MARKER_22], "flags": DISK_ONLY}
    stream_once(run, "pm", vb, note="marker 2.2 from disk", **fields)


def purge_with_filters(run, admin, vb, right):
    """A filter whose collections end below the purge seqno needs no rollback."""
    run.note("filters: a collection without documents beyond the start")
    manifest = Manifest(admin, 0x6300)
    manifest.set(default_scope(collection("purged", 0x20)))
    delete_doc(admin, "k5", vb)
    set_doc(admin, "last", b"x", vb)
    persist(admin, vb)
    purge(run, admin, vb)
    for name, start in (("20", 3), ("20", 12), ("0", 3), ("0", 12)):
        for purge_seqno in (None, "13"):
            value = {"collections": [name]}
            if purge_seqno:
                value["purge_seqno"] = purge_seqno
            value = json.dumps(value).encode()
            fields = {"start": start, "val": value} | right
            stream_once(run, "pf", vb, note=f"start {start} {value}", **fields)


# collections


def collection(name, uid, **more):
    """A collection of a manifest."""
    return {"name": name, "uid": f"{uid:x}"} | more


def scope(name, uid, *collections, **more):
    """A scope of a manifest."""
    return {"name": name, "uid": f"{uid:x}", "collections": list(collections)} | more


def default_scope(*collections):
    """The default scope with its collection and more."""
    return scope("_default", 0, collection("_default", 0), *collections)


class Manifest:
    """The bucket's manifest; each change counts its uid up, from `base` at least."""

    def __init__(self, admin, base=0):
        self.admin = admin
        with admin.marked(optional=True, poll="manifest"):
            answer = admin.cmd(Op.COLLECTIONS_GET_MANIFEST)
        self.uid = max(base, int(json.loads(answer.value)["uid"], 16))

    def set(self, *scopes, note="", **more):
        """Install scopes; the uid counts only if it was accepted."""
        value = json.dumps({"uid": f"{self.uid + 1:x}", "scopes": scopes} | more)
        op = Op.COLLECTIONS_SET_MANIFEST
        answer = permitted(self.admin, self.admin.cmd(op, val=value, note=note), "COLLECTIONS_SET_MANIFEST")
        if answer and not answer.status:
            self.uid += 1
        return answer


# s65: system collections

SYSTEM, MOBILE, QUERY, USER, OTHER = 8, 8, 9, 0x30, 0x31


def system_scope(**query):
    """The scope that every bucket of 7.6 and later has."""
    return scope("_system", SYSTEM, collection("_mobile", MOBILE), collection("_query", QUERY, **query))


@scenario(first_vb=380, release=RELEASE)
def s65_system_collections(run):
    """The scope _system: who sees it; events; changed and dropped collections."""
    admin = run.admin()
    manifest = Manifest(admin, 0x6500)
    odd_manifests(run, manifest)
    vb = run.fresh_vb(admin)
    watchers = open_watchers(run, vb)
    set_doc(admin, "first", b"v", vb)
    watch(watchers)
    run.note("the system scope and two user collections")
    users = (collection("user1", USER), collection("user2", OTHER))
    manifest.set(default_scope(*users), system_scope())
    watch(watchers)
    for coll in (0, USER, MOBILE, QUERY, OTHER, QUERY):
        set_doc(admin, f"d{coll:x}", b"v", vb, coll=coll)
    watch(watchers)
    persist(admin, vb)
    ids_and_documents(run, vb)
    system_streams(run, vb)
    modify(run, admin, vb, manifest, watchers)
    drop(run, admin, vb, manifest, watchers)


def odd_manifests(run, manifest):
    """Names and members that are refused."""
    run.note("manifests that are refused, or not")
    for note, scopes in (
        ("scope _other", [default_scope(), scope("_other", 0x12)]),
        ("scope %x", [default_scope(), scope("%x", 0x12)]),
        ("collection _c in the default scope", [default_scope(collection("_c", 0x39))]),
        ("flush_uid 1", [default_scope(collection("c", 0x38, flush_uid=1))]),
        ("flush_uid 'zz'", [default_scope(collection("c", 0x37, flush_uid="zz"))]),
        ("flush_uid 'ffff' above the uid", [default_scope(collection("c", 0x36, flush_uid="ffff"))]),
        ("metered 'x'", [default_scope(collection("c", 0x35, metered="x"))]),
        ("history 1", [default_scope(collection("c", 0x34, history=1))]),
        ("maxTTL -1", [default_scope(collection("c", 0x33, maxTTL=-1))]),
        ("maxTTL 2^32", [default_scope(collection("c", 0x32, maxTTL=1 << 32))]),
        ("no default scope", [scope("s", 0x12)]),
        ("collection id 1", [default_scope(collection("c", 1))]),
        ("nothing but the default scope", [default_scope()]),
    ):
        manifest.set(*scopes, note=note)


def dcp_without(run, name, privilege="SystemCollectionLookup", ctl=(), features=COLLECTIONS):
    """A DCP connection that gave up a privilege."""
    conn = run.dcp(name, 1, features, ctl=ctl)
    conn.cmd(DROP_PRIVILEGE, key=privilege, note="DROP_PRIVILEGE")
    return conn


def open_watchers(run, vb):
    """Streams of everything: old events and flatbuffers, all rights and fewer."""
    watchers = [
        run.dcp("all", 1, COLLECTIONS),
        run.dcp("allfb", 1, COLLECTIONS, ctl=[FLATBUFFERS]),
        dcp_without(run, "few"),
        dcp_without(run, "fewfb", ctl=[FLATBUFFERS]),
        run.dcp("legacy", 1, BASE),
    ]
    for conn in watchers:
        conn.read_stream(vb, 0.3)
    return watchers


def watch(watchers, idle=0.5):
    """Read what the open streams bring."""
    for conn in watchers:
        conn.recv_all(idle)


def plain_without(run, *privileges):
    """A client's connection that gave up privileges."""
    conn = run.session("client", COLLECTIONS)
    for privilege in privileges:
        conn.cmd(DROP_PRIVILEGE, key=privilege, note="DROP_PRIVILEGE")
    return conn


LOOKUP, MUTATION = "SystemCollectionLookup", "SystemCollectionMutation"


def ids_and_documents(run, vb):
    """GET_COLLECTION_ID, GET_SCOPE_ID, the manifest, documents."""
    for privileges in ((), (LOOKUP,), (MUTATION,), (LOOKUP, MUTATION), ("Read",)):
        run.note(f"a client without {privileges or 'nothing'}")
        conn = plain_without(run, *privileges)
        for path in ("_system._query", "_system._mobile", "_system.none", "_default.user1"):
            conn.cmd(GET_COLLECTION_ID, val=path, note=path)
        for path in ("_system", "_default", "none", "_system._query"):
            conn.cmd(GET_SCOPE_ID, val=path, note=path)
        conn.cmd(Op.COLLECTIONS_GET_MANIFEST)
        for coll in (QUERY, USER):
            key = doc_key(f"d{coll:x}", coll)
            conn.cmd(Op.GET, key=key, vb=vb)
            conn.cmd(Op.GET_META, key=key, vb=vb)
            extras = struct.pack(">II", 0, 0)
            key = doc_key("no", coll)
            conn.cmd(Op.SET, key=key, ext=extras, val=b"{}", vb=vb, cas=5)
            conn.cmd(Op.DELETE, key=key, vb=vb)
            extras = struct.pack(">II", 1, coll)
            conn.cmd(Op.GET_ALL_VB_SEQNOS, ext=extras, note="of one collection")
        conn.cmd(Op.GET_ALL_VB_SEQNOS, ext=u32(1))
        conn.close()
    conn = run.session("client", COLLECTIONS)
    for key in ("Read", "Read", "NoSuchPrivilege", "read", ""):
        conn.cmd(DROP_PRIVILEGE, key=key, note=f"DROP_PRIVILEGE {key}")
    conn.cmd(DROP_PRIVILEGE, key="Read", val="x", note="with a value")
    conn.close()


def system_streams(run, vb):
    """Filters, bounded streams, to latest; with and without the privilege."""
    values = (
        b"",
        b'{"uid":"0"}',
        b'{"collections":["9"]}',
        b'{"collections":["30"]}',
        b'{"collections":["30","9"]}',
        b'{"scope":"8"}',
        b'{"scope":"0"}',
    )
    for privilege in ("", LOOKUP, "DcpStream"):
        run.note(f"streams without {privilege or 'nothing'}")
        for value in values:
            for flags, end in ((0, 10), (TO_LATEST, MAX_SEQNO), (DISK_ONLY, MAX_SEQNO)):
                if flags and privilege == "DcpStream":
                    continue
                conn = run.dcp("sy", 1, COLLECTIONS)
                if privilege:
                    conn.cmd(DROP_PRIVILEGE, key=privilege)
                fields = {"val": value, "flags": flags, "end": end}
                conn.read_stream(vb, 0.25, note=value.decode(), **fields)
                conn.close()


def modify(run, admin, vb, manifest, watchers):
    """MaxTTL, history and metered of collections that are there."""
    other = collection("user2", OTHER)
    for note, user, query in (
        ("maxTTL 100", {"maxTTL": 100}, {}),
        ("metered", {"maxTTL": 100, "metered": True}, {}),
        ("history", {"maxTTL": 100, "metered": True, "history": True}, {}),
        ("all gone again", {}, {}),
        ("a system collection", {}, {"maxTTL": 50, "history": True}),
    ):
        run.note(note)
        changed = collection("user1", USER, **user)
        manifest.set(default_scope(changed, other), system_scope(**query), note=note)
        watch(watchers, 0.4)
    key = doc_key("ttl", QUERY)
    admin.cmd(Op.SET, key=key, ext=bytes(8), val=b"{}", vb=vb, note="gets the maxTTL")
    admin.cmd(Op.GET_META, key=key, ext=b"\2", vb=vb)
    watch(watchers, 0.3)
    users = (collection("user1", USER), other)
    for note, scopes in (
        ("renamed", [default_scope(collection("renamed", USER), other), system_scope()]),
        ("in another scope", [default_scope(other), scope("s", 0x15, users[0]), system_scope()]),
        ("the system scope renamed", [default_scope(*users), scope("_sys", SYSTEM)]),
        ("the same again", [default_scope(*users), system_scope(maxTTL=50, history=True)]),
    ):
        manifest.set(*scopes, note=note)


def drop(run, admin, vb, manifest, watchers):
    """User and system collections go."""
    for note, scopes in (
        ("drop user1", [default_scope(collection("user2", OTHER)), system_scope()]),
        ("drop _query", [default_scope(), scope("_system", SYSTEM, collection("_mobile", MOBILE))]),
        ("drop _system", [default_scope()]),
    ):
        run.note(note)
        manifest.set(*scopes, note=note)
        watch(watchers, 0.4)
    for conn in watchers:
        conn.close()
    persist(admin, vb)
    stream_once(run, "gone", vb, note="from disk", flags=DISK_ONLY)
    for privilege in (LOOKUP, "Read"):
        conn = dcp_without(run, "gonefb", privilege, [FLATBUFFERS])
        conn.read_stream(vb, 0.4, flags=DISK_ONLY, note="from disk")
        conn.close()


# s67: buckets that are only a configuration, paused and missing ones

CONFIG_BUCKET, SMALL_BUCKET = "c67", "b67"
SMALL_CONFIG = b"ep.so\0dbname=db/b67;max_size=104857600;max_vbuckets=64"


def cluster_config(rev, epoch, name=""):
    """A cluster map that says little."""
    document = {"rev": rev, "revEpoch": epoch, "nodesExt": [{"services": {"kv": 1}}]}
    if name:
        document["name"] = name
    return json.dumps(document).encode()


def set_config(conn, bucket, rev, epoch=1, note="", **fields):
    """SET_CLUSTER_CONFIG; extras: epoch and revision."""
    fields.setdefault("ext", struct.pack(">qq", epoch, rev))
    fields.setdefault("val", cluster_config(rev, epoch, bucket))
    note = note or f"SET_CLUSTER_CONFIG {bucket!r} epoch {epoch} rev {rev}"
    answer = conn.cmd(SET_CLUSTER_CONFIG, key=bucket, note=note, timeout=20, **fields)
    return permitted(conn, answer, "SET_CLUSTER_CONFIG")


def node_session(run, label, features=COLLECTIONS, user=None):
    """A connection logged in without a bucket."""
    conn = run.connect(label)
    conn.hello(features)
    if user:
        login_user(conn, user)
    else:
        run.login(conn)
    return conn


@scenario(first_vb=420, release=RELEASE)
def s67_config_only(run):
    """Config-only buckets; missing and paused ones; configs with versions."""
    run.note("the bucket c67 does not exist")
    conn = node_session(run, "first")
    conn.select(CONFIG_BUCKET)
    for fields in ({"ext": b""}, {"ext": bytes(16)}, {"val": b""}, {"ext": struct.pack(">qq", 1, 0)}):
        set_config(conn, CONFIG_BUCKET, 1, note=f"odd {fields}", **fields)
    set_config(conn, CONFIG_BUCKET, 5)
    conn.cmd(Op.LIST_BUCKETS)
    conn.select(CONFIG_BUCKET)
    run.note("with XERROR")
    in_config_only(conn)
    conn.close()
    run.note("without XERROR")
    conn = node_session(run, "noxerror", [6, 8, 0xA, 0xB, 0x12])
    conn.select(CONFIG_BUCKET)
    in_config_only(conn)
    conn.close()
    run.note("users with fewer rights")
    for user in ("readonly", "nodcp"):
        conn = node_session(run, user, user=user)
        conn.select(CONFIG_BUCKET)
        conn.cmd(GET_CLUSTER_CONFIG)
        conn.cmd(Op.GET, key=doc_key("k"))
        set_config(conn, CONFIG_BUCKET, 6)
        conn.close()
    config_versions(run)
    config_pushes(run)
    upgraded(run)
    paused(run)


def in_config_only(conn):
    """The answers of a config-only bucket."""
    conn.cmd(GET_CLUSTER_CONFIG)
    extras = struct.pack(">II", 0, 1)
    for op, fields in (
        (Op.GET, {"key": doc_key("k")}),
        (Op.SET, {"key": doc_key("k"), "ext": bytes(8), "val": b"v"}),
        (Op.NOOP, {}),
        (Op.VERSION, {}),
        (Op.STAT, {}),
        (Op.STAT, {"key": "dcp"}),
        (Op.DCP_OPEN, {"key": "x", "ext": extras}),
        (Op.DCP_OPEN, {"note": "malformed"}),
        (Op.DCP_STREAM_REQ, {"ext": bytes(48)}),
        (Op.DCP_CONTROL, {"key": "enable_noop", "val": "true"}),
        (Op.GET_FAILOVER_LOG, {}),
        (Op.GET_ALL_VB_SEQNOS, {}),
        (Op.COLLECTIONS_GET_MANIFEST, {}),
        (GET_COLLECTION_ID, {"val": "_default._default"}),
        (Op.LIST_BUCKETS, {}),
        (Op.SASL_LIST_MECHS, {}),
        (0xEE, {"note": "an unknown opcode"}),
        (Op.SELECT_BUCKET, {"key": "none"}),
        (Op.SELECT_BUCKET, {"key": CONFIG_BUCKET}),
        (Op.SELECT_BUCKET, {"key": "@no bucket@"}),
        (Op.NOOP, {"note": "after @no bucket@"}),
        (Op.GET, {"key": doc_key("k"), "note": "after @no bucket@"}),
    ):
        conn.cmd(op, timeout=2, **fields)
        if conn.closed:
            return


def config_versions(run):
    """GET_CLUSTER_CONFIG with a version the client knows; older and newer ones set."""
    run.note("GET_CLUSTER_CONFIG with epoch and revision")
    conn = node_session(run, "version")
    conn.select(CONFIG_BUCKET)
    for epoch, rev in ((1, 4), (1, 5), (1, 6), (0, 9), (2, 1), (1, 0), (-1, 5), (0, 0)):
        extras = struct.pack(">qq", epoch, rev)
        conn.cmd(GET_CLUSTER_CONFIG, ext=extras, note=f"known: epoch {epoch} rev {rev}")
    for fields in ({"ext": b"\0" * 8}, {"key": "k"}, {"val": "v"}, {"ext": b"\0" * 20}):
        conn.cmd(GET_CLUSTER_CONFIG, note=f"odd {fields}", **fields)
    admin = node_session(run, "setter")
    for epoch, rev in ((1, 4), (1, 5), (1, 6), (0, 9), (2, 1), (1, 7), (2, 1), (-1, 8), (2, 2)):
        set_config(admin, CONFIG_BUCKET, rev, epoch)
        conn.cmd(GET_CLUSTER_CONFIG)
    conn.close()
    admin.close()


def config_pushes(run):
    """The notifications of a new configuration, and their receivers."""
    run.note("pushes: full (0x0d), brief (0x1f), both; duplex (0x0c)")
    watchers = []
    for extra in ([0xC, 0xD], [0xC, 0x1F], [0xC, 0xD, 0x1F], [0xD], [0x1F], [0xC]):
        name = "push" + "".join(f"{item:x}" for item in extra)
        conn = node_session(run, name, COLLECTIONS + extra)
        conn.select(CONFIG_BUCKET)
        watchers.append(conn)
    admin = node_session(run, "setter")
    for epoch, rev in ((2, 3), (2, 3), (2, 2), (2, 4)):
        set_config(admin, CONFIG_BUCKET, rev, epoch)
        for conn in watchers:
            conn.recv_all(0.15, 1)
    known = struct.pack(">qq", 2, 9)
    for conn in watchers:
        conn.cmd(GET_CLUSTER_CONFIG, ext=known, note="knows a newer one: 2, 9")
    for rev in (8, 10):
        set_config(admin, CONFIG_BUCKET, rev, 2)
        for conn in watchers:
            conn.recv_all(0.15, 1)
    for conn in watchers:
        conn.close()
    admin.close()


def upgraded(run):
    """A real bucket takes the place of the config-only one; both are deleted."""
    run.note("CREATE_BUCKET over a config-only bucket while it is selected")
    conn = node_session(run, "selected")
    conn.select(CONFIG_BUCKET)
    admin = node_session(run, "creator")
    config = SMALL_CONFIG.replace(b"b67", b"c67")
    admin.cmd(Op.CREATE_BUCKET, key=CONFIG_BUCKET, val=config, timeout=30)
    conn.cmd(Op.NOOP, timeout=2, note="still config-only here, or closed")
    conn.recv(0.5)
    conn.close()
    conn = node_session(run, "again")
    conn.select(CONFIG_BUCKET)
    conn.cmd(GET_CLUSTER_CONFIG, note="the configuration stays")
    conn.cmd(Op.GET, key=doc_key("k"), note="no vbucket there")
    conn.close()
    delete_bucket(admin, CONFIG_BUCKET, {"type": "ClusterConfigOnly"})
    delete_bucket(admin, CONFIG_BUCKET, {"type": "nonsense"})
    delete_bucket(admin, CONFIG_BUCKET, {"force": "yes"})
    delete_bucket(admin, CONFIG_BUCKET, {"type": "Couchbase", "force": True})
    delete_bucket(admin, CONFIG_BUCKET, {})
    set_config(admin, CONFIG_BUCKET, 1)
    watcher = node_session(run, "deleted")
    watcher.select(CONFIG_BUCKET)
    delete_bucket(admin, CONFIG_BUCKET, {"type": "ClusterConfigOnly"})
    watcher.recv(0.5)
    watcher.close()
    admin.close()


def delete_bucket(admin, name, options):
    """DELETE_BUCKET with a JSON value."""
    fields = {"key": name, "val": json.dumps(options), "timeout": 30}
    admin.cmd(Op.DELETE_BUCKET, note=f"DELETE_BUCKET {options}", **fields)


def paused(run):
    """PAUSE_BUCKET, what a paused bucket answers, RESUME_BUCKET."""
    admin = node_session(run, "pauser")
    for op in (PAUSE_BUCKET, RESUME_BUCKET):
        admin.cmd(op, key="none", note="no such bucket")
        admin.cmd(op, note="without a name")
    set_config(admin, CONFIG_BUCKET, 1)
    admin.cmd(PAUSE_BUCKET, key=CONFIG_BUCKET, note="a config-only bucket")
    admin.cmd(RESUME_BUCKET, key=CONFIG_BUCKET)
    delete_bucket(admin, CONFIG_BUCKET, {"type": "ClusterConfigOnly"})
    created = admin.cmd(Op.CREATE_BUCKET, key=SMALL_BUCKET, val=SMALL_CONFIG, timeout=30)
    permitted(admin, created, "CREATE_BUCKET")
    writer = run.admin(bucket=SMALL_BUCKET, label="writer")
    with writer.marked(poll="activate"):
        for _ in range(50):
            if not activate(writer, 0).status:
                break
            run.sleep(0.1)
    with writer.marked(optional=True, poll="traffic"):
        for _ in range(30):
            answer = writer.cmd(Op.ENABLE_TRAFFIC)
            if answer is None or answer.status != Status.ETMPFAIL:
                break
            run.sleep(0.1)
    set_docs(writer, 0, 2)
    persist(writer, 0)
    producer = run.session("producer", COLLECTIONS, bucket=SMALL_BUCKET)
    producer.dcp_open("p67", 1)
    producer.control("enable_noop", "true")
    producer.read_stream(0, 0.4)
    idle = run.session("idle", COLLECTIONS, bucket=SMALL_BUCKET)
    fewer = node_session(run, "nodcp", user="nodcp")
    fewer.cmd(PAUSE_BUCKET, key=SMALL_BUCKET, note="not allowed")
    fewer.close()
    admin.cmd(RESUME_BUCKET, key=SMALL_BUCKET, note="not paused")
    admin.cmd(PAUSE_BUCKET, key=SMALL_BUCKET, timeout=30)
    admin.cmd(PAUSE_BUCKET, key=SMALL_BUCKET, note="paused already")
    for conn in (producer, idle, writer):
        conn.recv(0.6)
    conn = node_session(run, "late")
    conn.select(SMALL_BUCKET)
    conn.cmd(Op.GET, key=doc_key("k0"), timeout=1)
    conn.close()
    conn = node_session(run, "nox", [6, 8, 0xA, 0xB, 0x12])
    conn.select(SMALL_BUCKET)
    conn.cmd(Op.GET, key=doc_key("k0"), timeout=1)
    conn.close()
    admin.cmd(Op.LIST_BUCKETS)
    admin.cmd(RESUME_BUCKET, key=SMALL_BUCKET, timeout=30)
    admin.cmd(RESUME_BUCKET, key=SMALL_BUCKET, note="resumed already")
    conn = run.session("after", COLLECTIONS, bucket=SMALL_BUCKET)
    conn.cmd(Op.GET, key=doc_key("k0"))
    conn.close()
    for conn in (producer, idle, writer):
        conn.close()
    delete_bucket(admin, SMALL_BUCKET, {"force": True})
    admin.close()


# s69: filtered streams, out-of-order snapshots, stream ids

FRUIT, VEG, NUTS, GARDEN = 0x50, 0x51, 0x52, 0x19
OSO = "enable_out_of_order_snapshots"
ONLY_FRUIT = b'{"collections":["50"]}'
FRUIT_AND_VEG = b'{"collections":["50","51"]}'
GARDEN_SCOPE = b'{"scope":"19"}'
STREAM_ID = ("enable_stream_id", "true")
DCP_PARAM = 4


def set_param(admin, kind, key, value):
    """SET_PARAM of the engine."""
    fields = {"ext": struct.pack(">I", kind), "key": key, "val": value}
    admin.optional(Op.SET_PARAM, **fields)


@scenario(first_vb=460, release=RELEASE)
def s69_filtered(run):
    """The messages of filtered streams about seqnos that they leave out."""
    admin = run.admin()
    manifest = Manifest(admin, 0x6900)
    fruit, veg = collection("fruit", FRUIT), collection("veg", VEG)
    garden = scope("garden", GARDEN, collection("nuts", NUTS))
    vb = run.fresh_vb(admin)
    manifest.set(default_scope(fruit, veg), garden)
    for index, coll in enumerate((FRUIT, 0, VEG, FRUIT, NUTS, 0, VEG, FRUIT, VEG, 0)):
        set_doc(admin, f"d{index}", b"v", vb, coll=coll)
    persist(admin, vb)
    filtered_once(run, vb)
    live_filters(run, admin, vb)
    scopes_change(run, admin, vb, manifest, (fruit, veg))
    persist(admin, vb)
    out_of_order(run, admin, vb)
    stream_ids(run, admin, vb)
    manifest.set(default_scope())


def filtered_once(run, vb):
    """Seqnos 1..4 are system events, 5..14 documents."""
    run.note("from memory, from disk, to latest, with an end; by filter")
    for value in (ONLY_FRUIT, FRUIT_AND_VEG, GARDEN_SCOPE, b'{"collections":["0"]}'):
        for name, flags, end in (
            ("memory, endless", 0, MAX_SEQNO),
            ("disk", DISK_ONLY, MAX_SEQNO),
            ("to latest", TO_LATEST, MAX_SEQNO),
            ("end 6, a seqno left out", 0, 6),
            ("end 13", 0, 13),
        ):
            note = f"{name} {value.decode()}"
            fields = {"val": value, "flags": flags, "end": end, "note": note}
            stream_once(run, "fi", vb, idle=0.25, **fields)
    run.note("a filter with marker 2.2, sync writes, no collections")
    fields = {"val": ONLY_FRUIT, "flags": DISK_ONLY, "idle": 0.3}
    stream_once(run, "fi22", vb, ctl=[MARKER_22], **fields)
    fields["flags"] = 0
    stream_once(run, "fi22", vb, ctl=[MARKER_22], **fields)
    stream_once(run, "fisw", vb, ctl=[("enable_sync_writes", "true")], **fields)
    stream_once(run, "fileg", vb, features=BASE, flags=DISK_ONLY)


def live_filters(run, admin, vb):
    """Changes while filtered streams are open."""
    run.note("live: others only; ours last; ours, then others")
    watchers = []
    for index, value in enumerate((ONLY_FRUIT, GARDEN_SCOPE, b'{"collections":["50","52"]}')):
        conn = run.dcp(f"li{index}", 1, COLLECTIONS)
        conn.stream_request(vb, val=value, flags=FROM_LATEST)
        watchers.append(conn)
    for index, colls in enumerate(((0, VEG), (0, FRUIT), (FRUIT, 0), (NUTS,), (FRUIT, NUTS, 0))):
        for number, coll in enumerate(colls):
            set_doc(admin, f"l{index}{number}", b"v", vb, coll=coll)
            watch(watchers, 0.25)
    for conn in watchers:
        conn.close()


def scopes_change(run, admin, vb, manifest, both):
    """A scope gets and loses collections while it is streamed; filters run empty."""
    run.note("collections come and go")
    watchers = []
    for name, value, ctl in (
        ("sc", GARDEN_SCOPE, []),
        ("scfb", GARDEN_SCOPE, [FLATBUFFERS]),
        ("sc52", b'{"collections":["52"]}', []),
        ("sc2", b'{"collections":["52","50"]}', []),
    ):
        conn = run.dcp(name, 1, COLLECTIONS, ctl=ctl)
        conn.stream_request(vb, val=value, flags=FROM_LATEST)
        watchers.append(conn)
    nuts, roots = collection("nuts", NUTS), collection("roots", 0x53)
    for note, scopes in (
        ("roots comes", [default_scope(*both), scope("garden", GARDEN, nuts, roots)]),
        ("nuts goes", [default_scope(*both), scope("garden", GARDEN, roots)]),
        ("garden goes", [default_scope(*both)]),
    ):
        manifest.set(*scopes, note=note)
        watch(watchers, 0.3)
        if note == "roots comes":
            set_doc(admin, "r1", b"v", vb, coll=0x53)
            watch(watchers, 0.3)
    for conn in watchers:
        conn.close()
    stream_once(run, "sg", vb, val=GARDEN_SCOPE, note="the scope is gone")


def out_of_order(run, admin, vb):
    """Requests that get an out-of-order snapshot, and others."""
    for mode in ("auto", "enabled", "disabled"):
        set_param(admin, DCP_PARAM, "dcp_oso_backfill", mode)
        run.note(f"dcp_oso_backfill {mode}")
        for value in ("true", "true_with_seqno_advanced"):
            fields = {"val": ONLY_FRUIT, "flags": DISK_ONLY, "ctl": [(OSO, value)]}
            stream_once(run, "oso", vb, note=value, **fields)
    set_param(admin, DCP_PARAM, "dcp_oso_backfill", "enabled")
    on = [(OSO, "true")]
    advanced = [(OSO, "true_with_seqno_advanced")]
    uuid = failover_log(admin, vb)[0][0]
    cases = (
        ("two collections, limit 1", {"val": FRUIT_AND_VEG, "ctl": on}),
        ("a scope of one collection", {"val": b'{"scope":"0"}', "ctl": on}),
        ("no filter", {"ctl": on}),
        ("start 5", {"val": ONLY_FRUIT, "ctl": on, "start": 5, "uuid": uuid}),
        ("end 7", {"val": ONLY_FRUIT, "ctl": on, "end": 7, "flags": 0}),
        ("to latest", {"val": ONLY_FRUIT, "ctl": on, "flags": 4 | 2}),
        ("flatbuffers, marker 2.2", {"val": ONLY_FRUIT, "ctl": [*on, FLATBUFFERS, MARKER_22]}),
        ("flatbuffers, advanced", {"val": ONLY_FRUIT, "ctl": [*advanced, FLATBUFFERS]}),
        ("no value", {"val": ONLY_FRUIT, "ctl": on, "open_flags": 1 | 8}),
    )
    for note, fields in cases:
        stream_once(run, "oso2", vb, note=note, **{"flags": DISK_ONLY} | fields)
    set_param(admin, DCP_PARAM, "dcp_oso_max_collections_per_backfill", "2")
    for value in (FRUIT_AND_VEG, b'{"collections":["50","51","0"]}'):
        fields = {"val": value, "ctl": advanced, "flags": DISK_ONLY}
        stream_once(run, "oso3", vb, note=f"limit 2: {value.decode()}", **fields)
    set_param(admin, DCP_PARAM, "dcp_oso_max_collections_per_backfill", "1")
    set_param(admin, DCP_PARAM, "dcp_oso_backfill", "auto")


def stream_ids(run, admin, vb):
    """Several streams of a vbucket on one connection."""
    conn = run.dcp("sid", 1, COLLECTIONS, ctl=[STREAM_ID])
    for value in (
        b"",
        b'{"sid":0}',
        b'{"sid":-1}',
        b'{"sid":"1"}',
        b'{"sid":65536}',
        b'{"sid":65537,"uid":"0"}',
        b'{"sid":1.5}',
    ):
        conn.read_stream(vb, 0.2, val=value, end=5, note=value.decode())
    conn.close()
    conn = run.dcp("sid2", 1, COLLECTIONS, ctl=[STREAM_ID, MARKER_22])
    for sid, more in ((1, '"collections":["50"]'), (65535, '"scope":"0"'), (3, '"purge_seqno":"0"')):
        value = f'{{"sid":{sid},{more}}}'
        conn.read_stream(vb, 0.3, val=value, flags=DISK_ONLY, note=value)
    for sid in (1, 2):
        value = f'{{"sid":{sid},"collections":["50"]}}'
        conn.stream_request(vb, val=value, flags=FROM_LATEST, note=value)
    conn.stream_request(vb, val='{"sid":2,"uid":"0"}', note="sid 2 again")
    set_doc(admin, "s1", b"v", vb, coll=FRUIT)
    set_doc(admin, "s2", b"v", vb)
    conn.recv_all(0.4)
    for sid in (2, 2, 9):
        conn.close_stream(vb, fr=b"\x22" + struct.pack(">H", sid), note=f"sid {sid}")
    conn.close_stream(vb, note="without an id")
    conn.recv_all(0.2)
    conn.close()


# s71: the consumer of 8.0


@scenario(first_vb=500, release=RELEASE)
def s71_consumer(run):
    """Controls of a consumer, marker 2.2, frames it does not expect, takeover."""
    admin = run.admin()
    run.note("controls in order, by the way the connection was opened")
    name = json.dumps({"consumer_name": "replica1"})
    for note, fields in (
        ("collections", {}),
        ("without collections", {"features": BASE}),
        ("consumer name", {"val": name, "dt": 1}),
        ("consumer name, datatype 0", {"val": name}),
        ("consumer name, all flags", {"val": name, "dt": 1, "openflags": 0x124}),
        ("value without the name", {"val": "{}", "dt": 1}),
        ("value of another kind", {"val": '{"consumer_name":1}', "dt": 1}),
        ("value that is no JSON", {"val": "x", "dt": 1}),
        ("empty name", {"val": '{"consumer_name":""}', "dt": 1}),
    ):
        run.note(note)
        vb = run.fresh_vb(admin, REPLICA)
        peer = Peer(run, "cc", **{"features": COLLECTIONS} | fields)
        peer.add(vb)
        peer.pump(0.2, 1)
        peer.close()
    refused_controls(run, admin, name)
    markers(run, admin)
    odd_frames(run, admin)
    take_over(run, admin, name)


def refused_controls(run, admin, name):
    """One control refused; does the stream come all the same?"""
    run.note("the peer refuses one control")
    for key in (
        *("enable_noop", "set_priority", "supports_cursor_dropping_vulcan"),
        *("supports_hifi_MFU", "enable_expiry_opcode", "enable_sync_writes"),
        *("consumer_name", "include_deleted_user_xattrs", "v7_dcp_status_codes"),
        *("flatbuffers_system_events", "change_streams", "max_marker_version"),
        *("connection_buffer_size",),
    ):
        for status in (Status.EINVAL, Status.NOT_SUPPORTED):
            if key != "max_marker_version" and status != Status.EINVAL:
                continue
            vb = run.fresh_vb(admin, REPLICA)
            run.note(f"{key} refused with {status.name}")
            fields = {"features": COLLECTIONS, "val": name, "dt": 1}
            peer = Peer(run, "cr", overrides={key: status}, **fields)
            peer.add(vb)
            peer.pump(0.3, 1)
            peer.close()


def marker_22(start, end, flags, visible, completed, purged, prepared):
    """The value of a marker 2.2."""
    return struct.pack(">QQIQQQQ", start, end, flags, visible, completed, purged, prepared)


def new_consumer(run, admin, name="cm", **fields):
    """A replica vbucket and a peer that streams into it."""
    vb = run.fresh_vb(admin, REPLICA)
    consumer_name = json.dumps({"consumer_name": "replica1"})
    fields = {"features": COLLECTIONS, "val": consumer_name, "dt": 1} | fields
    peer = Peer(run, name, **fields)
    peer.add(vb)
    return peer, vb


def markers(run, admin):
    """Markers 2.0 and 2.2, sound and not."""
    op = Op.DCP_SNAPSHOT_MARKER
    memory = marker_22(0, 2, 1, 2, 0, 0, 0)
    disk = marker_22(0, 2, 6, 2, 0, 1, 0)
    for note, ext, val in (
        ("2.2 from memory", b"\x02", memory),
        ("2.2 from disk, purge seqno 1", b"\x02", disk),
        ("2.2 from disk, history", b"\x02", marker_22(0, 2, 0x36, 2, 0, 1, 0)),
        ("2.2, acknowledge", b"\x02", marker_22(0, 2, 0xE, 2, 0, 1, 0)),
        ("2.2, prepared 2 completed 1", b"\x02", marker_22(0, 2, 6, 2, 1, 1, 2)),
        ("2.2, unknown flag 0x40", b"\x02", marker_22(0, 2, 0x42, 2, 0, 0, 0)),
        ("2.2 with 51 bytes", b"\x02", disk[:-1]),
        ("2.2 with 53 bytes", b"\x02", disk + b"\0"),
        ("2.2 with 36 bytes", b"\x02", disk[:36]),
        ("2.2 with 44 bytes", b"\x02", disk[:44]),
        ("2.0 with 36 bytes", b"\x00", disk[:36]),
        ("2.0 with 52 bytes", b"\x00", disk),
        ("2.1 with 44 bytes", b"\x01", disk[:44]),
        ("version 3", b"\x03", disk),
        ("no extras", b"", disk),
    ):
        run.note(f"marker {note}")
        peer, vb = new_consumer(run, admin)
        peer.send(op, note, ext=ext, val=val, vb=vb)
        for seqno in (1, 2):
            peer.mutation(vb, doc_key(f"m{seqno}"), seqno)
        peer.pump(0.4, 1.5)
        if not peer.conn.closed:
            persist(admin, vb)
            fields = {"flags": DISK_ONLY, "ctl": [MARKER_22]}
            stream_once(run, "cms", vb, note="what the replica says", **fields)
        peer.close()


def odd_frames(run, admin):
    """Stream ids, unknown opcodes, messages of newer releases."""
    sid = b"\x22\x00\x01"
    marker = marker_22(0, 2, 1, 2, 0, 0, 0)
    for note, op, fields in (
        ("marker with a stream id", Op.DCP_SNAPSHOT_MARKER, {"ext": b"\x02", "val": marker, "fr": sid}),
        (
            "mutation with a stream id",
            Op.DCP_MUTATION,
            {"ext": mutation_extras(1), "key": doc_key("k"), "val": b"v", "cas": 9, "fr": sid},
        ),
        ("end with a stream id", Op.DCP_STREAM_END, {"ext": u32(0), "fr": sid}),
        ("unknown frame id", Op.DCP_STREAM_END, {"ext": u32(0), "fr": b"\xf1\0\0"}),
        ("opcode 0x66", 0x66, {"ext": mutation_extras(1), "key": doc_key("k"), "val": b"v"}),
        ("opcode 0x67", 0x67, {}),
        ("opcode 0x6f", 0x6F, {}),
        ("OSO snapshot", Op.DCP_OSO_SNAPSHOT, {"ext": u32(1)}),
        ("SEQNO_ADVANCED", Op.DCP_SEQNO_ADVANCED, {"ext": struct.pack(">Q", 3)}),
        ("STREAM_END reason 7", Op.DCP_STREAM_END, {"ext": u32(7)}),
        ("STREAM_END reason 8", Op.DCP_STREAM_END, {"ext": u32(8)}),
        ("STREAM_END reason 9", Op.DCP_STREAM_END, {"ext": u32(9)}),
    ):
        run.note(note)
        peer, vb = new_consumer(run, admin, "co")
        peer.send(op, note, vb=vb, **fields)
        peer.pump(0.6, 1.5)
        if not peer.conn.closed:
            peer.conn.cmd(Op.NOOP, note="is it alive?", timeout=1)
        peer.close()


def take_over(run, admin, name):
    """A vbucket moves to this node, with marker 2.2 and sync writes."""
    run.note("takeover: the node is the destination")
    vb = run.fresh_vb(admin, REPLICA)
    peer = Peer(run, "ct", features=COLLECTIONS, val=name, dt=1)
    peer.add(vb, flags=1, note="ADD_STREAM takeover")
    disk = marker_22(0, 3, 6, 3, 0, 1, 0)
    peer.send(Op.DCP_SNAPSHOT_MARKER, "disk", ext=b"\x02", val=disk, vb=vb)
    for seqno in (2, 3):
        peer.mutation(vb, doc_key(f"t{seqno}"), seqno)
    last = marker_22(4, 4, 0xD, 4, 0, 1, 0)
    peer.send(Op.DCP_SNAPSHOT_MARKER, "takeover", ext=b"\x02", val=last, vb=vb)
    peer.mutation(vb, doc_key("t4"), 4)
    peer.pump(0.5, 2)
    for state, note in ((3, "pending"), (1, "active")):
        peer.send(Op.DCP_SET_VBUCKET_STATE, note, ext=bytes([state]), vb=vb)
        peer.pump(0.5, 2)
    peer.send(Op.DCP_STREAM_END, "end", ext=u32(0), vb=vb)
    peer.pump(0.3, 1)
    peer.close()
    failover_log(admin, vb)
    persist(admin, vb)
    fields = {"flags": DISK_ONLY, "ctl": [MARKER_22]}
    stream_once(run, "cta", vb, note="active here now", **fields)
    run.note("takeover: the node is the source, the peer asks for marker 2.2")
    ctl = [MARKER_22, ("enable_sync_writes", "true"), ("consumer_name", "c")]
    conn = run.dcp("cto", 1, COLLECTIONS, ctl=ctl)
    conn.stream_request(vb, flags=TAKEOVER)
    answer_takeover(conn)
    conn.close()
    activate(admin, vb)


def answer_takeover(conn):
    """Say yes to markers and states until the node is quiet."""
    while True:
        frame = conn.recv(0.6)
        if frame is None:
            return
        needs = frame.op == Op.DCP_SET_VBUCKET_STATE
        if frame.op == Op.DCP_SNAPSHOT_MARKER:
            fields = frame.extras_fields()
            needs = bool(fields.get("flags", 0) & 8)
        if needs:
            conn.send(packet(frame.op, magic=0x81, opaque=frame.opaque), "yes")


# s79: flushed collections; the last one, since 8.0.1 may stop persisting after it


@scenario(first_vb=560, release=RELEASE)
def s79_collection_flush(run):
    """A collection is emptied by its flush_uid; everything from memory."""
    admin = run.admin()
    manifest = Manifest(admin, 0x7900)
    vb = run.fresh_vb(admin)
    other = collection("user2", OTHER)
    manifest.set(default_scope(collection("user1", USER), other), system_scope())
    for coll in (0, USER, OTHER):
        set_doc(admin, f"d{coll:x}", b"v", vb, coll=coll)
    persist(admin, vb)
    watchers = open_watchers(run, vb)
    watch(watchers)
    base = manifest.uid
    for note, uid in (
        ("flush_uid = the manifest's uid", base + 1),
        ("the same flush_uid again", base + 1),
        ("a flush_uid above the manifest's", base + 99),
        ("a second flush", base + 3),
    ):
        flushed = collection("user1", USER, flush_uid=f"{uid:x}")
        manifest.set(default_scope(flushed, other), system_scope(), note=note)
        watch(watchers, 0.4)
        for coll in (USER, OTHER):
            admin.cmd(Op.GET, key=doc_key(f"d{coll:x}", coll), vb=vb, note="documents after it")
        admin.cmd(GET_COLLECTION_ID, val="_default.user1")
    admin.cmd(Op.COLLECTIONS_GET_MANIFEST)
    set_doc(admin, "again", b"v", vb, coll=USER)
    watch(watchers, 0.3)
    for conn in watchers:
        conn.close()
