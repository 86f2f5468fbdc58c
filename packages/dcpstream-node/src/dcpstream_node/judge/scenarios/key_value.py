"""Documents: statuses, locks, quiet commands, metadata, sub-documents, durability, datatypes, privileges, states."""

import json
import struct

from dcpstream_node.judge.connection import Connection
from dcpstream_node.judge.packets import MAX_SEQNO, Op, Packet, packet
from dcpstream_node.judge.scenarios.kit import (
    ACTIVE,
    BASE,
    COLLECTIONS,
    DEAD,
    PENDING,
    REPLICA,
    Peer,
    activate,
    buffer_ack,
    delete_doc,
    delete_vb,
    doc_key,
    failover_log,
    fresh_vb,
    login_user,
    new_checkpoint,
    persist,
    scenario,
    set_doc,
    set_docs,
    set_vb,
    set_xattr,
    snappy_literal,
    subdoc_spec,
    u32,
    vb_stat,
)

GET, SET, ADD, REPLACE, DELETE, INCR, DECR = 0, 1, 2, 3, 4, 5, 6
GETQ, NOOP, GETK, GETKQ, APPEND, PREPEND = 0x09, 0x0A, 0x0C, 0x0D, 0x0E, 0x0F
SETQ, ADDQ, REPLACEQ, DELETEQ, INCRQ, DECRQ = 0x11, 0x12, 0x13, 0x14, 0x15, 0x16
QUITQ, APPENDQ, PREPENDQ, TOUCH, GAT, GATQ = 0x17, 0x19, 0x1A, 0x1C, 0x1D, 0x1E
OBSERVE_SEQNO, OBSERVE, GETL, UNLOCK = 0x91, 0x92, 0x94, 0x95
GET_META, GETQ_META, SET_META, SETQ_META, ADD_META = 0xA0, 0xA1, 0xA2, 0xA3, 0xA4
DEL_META, DELQ_META, RANDOM_KEY, GET_KEYS = 0xA8, 0xA9, 0xB6, 0xB8
GET_COLLECTION_ID, GET_SCOPE_ID = 0xBB, 0xBC
SD_GET, SD_EXISTS, SD_ADD, SD_UPSERT, SD_DELETE, SD_REPLACE = range(0xC5, 0xCB)
SD_LAST, SD_FIRST, SD_INSERT, SD_UNIQUE, SD_COUNTER = range(0xCB, 0xD0)
SD_LOOKUP, SD_MUTATE, SD_COUNT = 0xD0, 0xD1, 0xD2
NOT_MY_VBUCKET = 7
# xattr, select bucket, snappy, json, mutation seqno, collections: no xerror
NO_XERROR = [0x06, 0x08, 0x0A, 0x0B, 0x04, 0x10, 0x11, 0x12]
NO_SNAPPY = [0x06, 0x07, 0x08, 0x0B, 0x04, 0x10, 0x11, 0x12]
NO_JSON = [0x06, 0x07, 0x08, 0x0A, 0x04, 0x10, 0x11, 0x12]
NO_XATTR = [0x07, 0x08, 0x0A, 0x0B, 0x04, 0x10, 0x11, 0x12]
NOTHING = [0x08, 0x12]


class Masked(Connection):
    """Writes down frames without what every server makes up for itself.

    vbuuids and CAS inside values become numbers in the order of their
    coming; the cluster map of NOT_MY_VBUCKET goes.
    """

    def take_frame(self):
        """The next frame, masked."""
        frame = super().take_frame()
        if frame is None or not frame.is_response:
            return frame
        if frame.status == NOT_MY_VBUCKET:
            return self.with_value(frame, b"")
        if frame.status:
            return frame
        if frame.op == OBSERVE_SEQNO and len(frame.value) >= 27:
            value = frame.value[:3] + self.number(frame.value[3:11])
            value += frame.value[11:27]
            if len(frame.value) >= 43:
                value += self.number(frame.value[27:35]) + frame.value[35:]
            return self.with_value(frame, value)
        if frame.op == OBSERVE:
            value = self.observed(frame.value)
            return self.with_value(frame, value, no_cas=True)
        return frame

    def number(self, data):
        """A number in place of eight bytes; 0 stays."""
        known = self.__dict__.setdefault("numbers", {bytes(8): 0})
        return struct.pack(">Q", known.setdefault(data, len(known)))

    def observed(self, value):
        """The entries of OBSERVE: vbucket, key, state, CAS."""
        out, at = b"", 0
        while at + 4 <= len(value):
            size = struct.unpack(">H", value[at + 2 : at + 4])[0] + 5
            out += value[at : at + size] + self.number(value[at + size : at + size + 8])
            at += size + 8
        return out

    @staticmethod
    def with_value(frame, value, no_cas=False):
        """The same frame with another value."""
        body = frame.framing + frame.extras + frame.key + value
        head = bytearray(frame.raw[:24])
        head[8:12] = struct.pack(">I", len(body))
        if no_cas:
            head[16:24] = bytes(8)
        return Packet.parse(bytes(head) + body)


def masked(conn):
    """The connection writes down masked frames from now on."""
    conn.__class__ = Masked
    return conn


def session(run, label="kv", features=COLLECTIONS):
    """A client's connection, logged in."""
    return masked(run.session(label, features))


def administrator(run):
    """An administrator's connection."""
    return masked(run.admin())


class Client:
    """A connection and a vbucket; keys get the collection in front."""

    def __init__(self, conn, vb, collections=True):
        self.conn = conn
        self.vb = vb
        self.collections = collections

    def key(self, key, coll):
        """The key as it is sent."""
        if self.collections:
            return doc_key(key, coll)
        return key.encode() if isinstance(key, str) else key

    def do(self, op, key, note="", coll=0, timeout=5, **fields):
        """One request and its answer."""
        fields.setdefault("vb", self.vb)
        key = self.key(key, coll)
        return self.conn.cmd(op, key=key, note=note, timeout=timeout, **fields)

    def send(self, op, key, note="", coll=0, **fields):
        """One request."""
        fields.setdefault("vb", self.vb)
        opaque = self.conn.next_opaque()
        raw = packet(op, key=self.key(key, coll), opaque=opaque, **fields)
        self.conn.send(raw, note)

    def barrier(self, note=""):
        """NOOP; what the server had to say before comes first."""
        self.conn.cmd(NOOP, note=note)

    def meta(self, key, **fields):
        """GET_META with the datatype."""
        return self.do(GET_META, key, ext=b"\2", **fields)

    def sub(self, op, key, path, value=b"", flags=None, doc_flags=None, **fields):
        """A single-path request."""
        path = path.encode()
        value = value.encode() if isinstance(value, str) else value
        ext = struct.pack(">HB", len(path), flags or 0)
        if doc_flags is not None:
            ext += fields.pop("exp", b"") + bytes([doc_flags])
        return self.do(op, key, ext=ext, val=path + value, **fields)

    def lookup(self, key, *paths, doc_flags=None, **fields):
        """A multi-path lookup; a path is (opcode, flags, path)."""
        value = b""
        for op, flags, path in paths:
            value += struct.pack(">BBH", op, flags, len(path)) + path.encode()
        ext = b"" if doc_flags is None else bytes([doc_flags])
        return self.do(SD_LOOKUP, key, ext=ext, val=value, **fields)

    def mutate(self, key, *specs, doc_flags=None, **fields):
        """A multi-path mutation; a path is (opcode, flags, path, value)."""
        value = b"".join(subdoc_spec(*spec) for spec in specs)
        ext = b"" if doc_flags is None else bytes([doc_flags])
        return self.do(SD_MUTATE, key, ext=ext, val=value, **fields)


def store_extras(flags=0, exp=0):
    """Extras of SET, ADD, REPLACE."""
    return struct.pack(">II", flags, exp)


def count_extras(delta, initial=0, exp=0):
    """Extras of INCREMENT and DECREMENT."""
    return struct.pack(">QQI", delta, initial, exp)


STORE = store_extras()
NEVER = 0xFFFFFFFF


def fresh_client(run, label="kv", features=COLLECTIONS):
    """An administrator, a client, and a vbucket that is empty."""
    admin = administrator(run)
    vb = run.fresh_vb(admin)
    collections = 0x12 in features
    return admin, Client(session(run, label, features), vb, collections)


def read_all(run, name, vb, flags=1, features=COLLECTIONS, ctl=(), idle=0.5, **fields):
    """One stream on a connection of its own."""
    run.stream_once(name, vb, flags, features, ctl=ctl, idle=idle, **fields)


@scenario(first_vb=100)
def s41_kv_statuses(run):
    """Stores, counters, CAS, odd packets of plain documents."""
    _admin, kv = fresh_client(run)
    for op in (REPLACE, APPEND, PREPEND, DELETE, GET, GETK):
        ext = STORE if op == REPLACE else b""
        val = b"v" if op in (REPLACE, APPEND, PREPEND) else b""
        kv.do(op, "none", "of no document", ext=ext, val=val)
        kv.do(op, "none", "of no document, with CAS", ext=ext, val=val, cas=5)
    kv.do(SET, "none", "SET with CAS of no document", ext=STORE, val=b"v", cas=5)
    kv.do(ADD, "none", "ADD with CAS", ext=STORE, val=b"v", cas=5)
    first = kv.do(ADD, "a", ext=store_extras(0xCAFE), val=b"one")
    kv.do(ADD, "a", "ADD again", ext=STORE, val=b"two")
    kv.do(GET, "a")
    kv.do(GETK, "a")
    kv.do(REPLACE, "a", ext=store_extras(7), val=b'{"j":1}')
    for op in (SET, REPLACE):
        kv.do(op, "a", "old CAS", ext=STORE, val=b"x", cas=first.cas if first else 1)
    for op in (APPEND, PREPEND):
        kv.do(op, "a", "old CAS", val=b"x", cas=first.cas if first else 1)
    kv.do(DELETE, "a", "old CAS", cas=first.cas if first else 1)
    kv.do(APPEND, "a", val=b"+")
    kv.do(PREPEND, "a", val=b"-")
    kv.do(GET, "a", "flags of REPLACE, no JSON any more")
    now = kv.do(SET, "a", ext=STORE, val=b"y")
    kv.do(REPLACE, "a", "right CAS", ext=STORE, val=b"z", cas=now.cas if now else 1)
    kv.do(DELETE, "a")
    kv.do(DELETE, "a", "again")
    kv.do(APPEND, "a", "deleted", val=b"+")
    counters(kv)
    odd_stores(run, kv)
    expiries(run, kv)
    read_all(run, "kvs", kv.vb, flags=1 | 32, ctl=[("enable_expiry_opcode", "true")])


def counters(kv):
    """INCREMENT and DECREMENT."""
    kv.do(INCR, "n", "not created", ext=count_extras(1, 5, NEVER))
    kv.do(DECR, "n", "not created", ext=count_extras(1, 5, NEVER))
    kv.do(INCR, "n", "created", ext=count_extras(3, 5))
    kv.do(INCR, "n", ext=count_extras(3, 5))
    kv.do(GET, "n")
    kv.do(DECR, "n", "below zero", ext=count_extras(100))
    kv.do(INCR, "n", "by the most", ext=count_extras(MAX_SEQNO))
    kv.do(INCR, "n", "over the top", ext=count_extras(2))
    kv.do(INCR, "n", "by 0", ext=count_extras(0))
    kv.do(INCR, "n", "with CAS", ext=count_extras(1), cas=77)
    kv.do(INCR, "n", "short extras", ext=b"\0" * 8)
    for value in (b"12", b" 12", b"12 ", b"-1", b"1.5", b"", b"abc", b'"5"', b"0x10"):
        kv.do(SET, "t", ext=store_extras(9), val=value)
        kv.do(INCR, "t", f"of {value!r}", ext=count_extras(1))
    for value in (b"18446744073709551615", b"18446744073709551616", b"1" * 30):
        kv.do(SET, "t", ext=STORE, val=value)
        kv.do(DECR, "t", f"of {value!r}", ext=count_extras(1))
    kv.do(GET, "t")


def odd_stores(run, kv):
    """Keys, sizes and packets that are wrong."""
    kv.do(SET, "k" * 250, "key of 250", ext=STORE, val=b"v")
    for op, fields in (
        (SET, {"key": "k" * 251, "ext": STORE, "val": b"v"}),
        (SET, {"key": "", "ext": STORE, "val": b"v"}),
        (SET, {"key": "x", "ext": b"\0" * 4, "val": b"v"}),
        (SET, {"key": "x", "val": b"v"}),
        (SET, {"key": "x", "ext": STORE, "val": b"not snappy", "dt": 2}),
        (SET, {"key": "x", "ext": STORE, "val": b"not json", "dt": 1}),
        (SET, {"key": "x", "ext": STORE, "val": b"xattr", "dt": 4}),
        (SET, {"key": "x", "ext": STORE, "val": b"v", "dt": 0x40}),
        (SET, {"key": "x", "ext": STORE, "val": b"v", "vb": 1024}),
        (ADD, {"key": "x", "ext": b"", "val": b"v"}),
        (GET, {"key": "x", "ext": b"\0" * 4}),
        (GET, {"key": "x", "val": b"v"}),
        (GET, {"key": "x", "cas": 1}),
        (GET, {"key": "x", "vb": 1024}),
        (GET, {"key": "x", "vb": 65535}),
        (GET, {"key": ""}),
        (GET, {"key": "x", "dt": 1}),
        (DELETE, {"key": "x", "ext": b"\0" * 4}),
        (DELETE, {"key": "x", "val": b"v"}),
        (APPEND, {"key": "x", "ext": STORE, "val": b"v"}),
        (TOUCH, {"key": "x"}),
        (GAT, {"key": "x", "ext": b"\0" * 8}),
        (UNLOCK, {"key": "x"}),
        (UNLOCK, {"key": "x", "ext": u32(1), "cas": 1}),
        (GETL, {"key": "x", "ext": b"\0"}),
    ):
        conn = session(run, "odd")
        client = Client(conn, kv.vb)
        key = fields.pop("key")
        client.do(op, key, timeout=1, **fields)
        conn.recv(0.1)
        if not conn.closed:
            client.barrier("alive?")
        conn.close()
    conn = session(run, "odd")
    big = b"a" * ((20 << 20) + 1)
    Client(conn, kv.vb).do(SET, "big", "one byte too many", ext=STORE, val=big)
    conn.close()


def expiries(run, kv):
    """Expiry: forms, and what goes when it passed."""
    now = kv.conn.unix()
    for key, exp in (("rel", 1000), ("abs", now + 5000), ("past", 3_000_000)):
        kv.do(SET, key, f"expiry of {key}", ext=store_extras(1, exp), val=b"v")
        kv.meta(key)
        kv.do(GET, key)
    kv.do(TOUCH, "rel", "no expiry", ext=u32(0))
    kv.meta("rel")
    kv.do(GAT, "rel", "in 2,000 s", ext=u32(2000))
    kv.meta("rel")
    kv.do(GAT, "rel", "the same again", ext=u32(0))
    kv.do(GAT, "rel", "the same again", ext=u32(0))
    kv.do(TOUCH, "none", "no document", ext=u32(10))
    kv.do(GAT, "none", "no document", ext=u32(10))
    kv.do(SET, "keep", ext=store_extras(0, 5000), val=b"v")
    kv.do(SET, "keep", "preserve expiry", ext=STORE, val=b"w", fr=b"\x50")
    kv.meta("keep")
    kv.do(SET, "keep", "not preserved", ext=STORE, val=b"x")
    kv.meta("keep")
    kv.do(ADD, "keep2", "preserve expiry of ADD", ext=STORE, val=b"x", fr=b"\x50")
    kv.do(SET, "soon", ext=store_extras(0, 1), val=b"v")
    kv.do(TOUCH, "abs", "in the past", ext=u32(1_000_000_000))
    run.sleep(4.2)
    kv.do(GET, "soon", "expired")
    kv.do(ADD, "soon", "expired", ext=STORE, val=b"again")
    kv.do(GET, "abs", "expired by TOUCH")
    kv.meta("abs")
    kv.do(APPEND, "abs", "expired", val=b"x")
    kv.do(INCR, "abs", "expired", ext=count_extras(1, 8))


@scenario(first_vb=110)
def s42_locks(run):
    """GET_LOCKED, UNLOCK, and everything else while a document is locked."""
    for features in (COLLECTIONS, NO_XERROR):
        run.note(f"features {features}")
        _admin, kv = fresh_client(run, "lock", features)
        kv.do(GETL, "none", "no document")
        kv.do(UNLOCK, "none", "no document", cas=5)
        kv.do(SET, "d", ext=store_extras(3), val=b'{"a":1}')
        kv.do(UNLOCK, "d", "not locked", cas=5)
        kv.do(UNLOCK, "d", "CAS 0", cas=0)
        lock = kv.do(GETL, "d")
        cas = lock.cas if lock else 1
        kv.do(GETL, "d", "locked", ext=u32(5))
        kv.do(GET, "d", "locked")
        for op, fields in (
            (SET, {"ext": STORE, "val": b"v"}),
            (SET, {"ext": STORE, "val": b"v", "cas": 5}),
            (SET, {"ext": STORE, "val": b"v", "cas": MAX_SEQNO}),
            (ADD, {"ext": STORE, "val": b"v"}),
            (REPLACE, {"ext": STORE, "val": b"v"}),
            (APPEND, {"val": b"v"}),
            (DELETE, {}),
            (DELETE, {"cas": 5}),
            (INCR, {"ext": count_extras(1)}),
            (TOUCH, {"ext": u32(9)}),
            (GAT, {"ext": u32(9)}),
            (UNLOCK, {"cas": 5}),
            (SET_META, {"ext": struct.pack(">IIQQ", 0, 0, 99, 1 << 60), "val": b"m"}),
            (DEL_META, {"ext": struct.pack(">IIQQ", 0, 0, 99, 1 << 60)}),
        ):
            kv.do(op, "d", "locked", **fields)
        kv.meta("d", note="locked")
        kv.sub(SD_GET, "d", "a", note="locked")
        kv.sub(SD_UPSERT, "d", "a", "2", note="locked")
        kv.sub(SD_UPSERT, "d", "a", "2", note="locked, its CAS", cas=cas)
        kv.do(SET, "d", "was unlocked", ext=STORE, val=b"free")
        lock = kv.do(GETL, "d")
        kv.do(UNLOCK, "d", "right CAS", cas=lock.cas if lock else 1)
        kv.do(UNLOCK, "d", "again", cas=lock.cas if lock else 1)
        lock = kv.do(GETL, "d")
        kv.do(DELETE, "d", "its CAS", cas=lock.cas if lock else 1)
        kv.do(GETL, "d", "deleted")
        times_of_locks(run, kv)
        kv.conn.close()


def times_of_locks(run, kv):
    """The duration of a lock."""
    kv.do(SET, "t", ext=STORE, val=b"v")
    lock = kv.do(GETL, "t", "1 s", ext=u32(1))
    run.sleep(4.2)
    kv.do(UNLOCK, "t", "too late", cas=lock.cas if lock else 1)
    kv.do(SET, "t", "free again", ext=STORE, val=b"w")
    lock = kv.do(GETL, "t", "0 s", ext=u32(0))
    kv.do(DELETE, "t", "locked")
    kv.do(UNLOCK, "t", cas=lock.cas if lock else 1)
    lock = kv.do(GETL, "t", "31 s", ext=u32(31))
    kv.do(UNLOCK, "t", cas=lock.cas if lock else 1)
    kv.do(GETL, "t", "0xffffffff s", ext=u32(NEVER))


@scenario(first_vb=120)
def s43_quiet(run):
    """Quiet opcodes: when they answer and when they are silent."""
    for features in (COLLECTIONS, BASE, NO_XERROR):
        _admin, kv = fresh_client(run, "quiet", features)
        for note, op, key, fields in (
            ("miss", GETQ, "a", {}),
            ("miss", GETKQ, "a", {}),
            ("new", SETQ, "a", {"ext": STORE, "val": b"1"}),
            ("wrong CAS", SETQ, "a", {"ext": STORE, "val": b"1", "cas": 5}),
            ("hit", GETQ, "a", {}),
            ("hit", GETKQ, "a", {}),
            ("exists", ADDQ, "a", {"ext": STORE, "val": b"1"}),
            ("new", ADDQ, "b", {"ext": STORE, "val": b"1"}),
            ("exists", REPLACEQ, "b", {"ext": STORE, "val": b"2"}),
            ("missing", REPLACEQ, "c", {"ext": STORE, "val": b"2"}),
            ("missing", DELETEQ, "c", {}),
            ("exists", DELETEQ, "b", {}),
            ("count", INCRQ, "a", {"ext": count_extras(1)}),
            ("count", DECRQ, "a", {"ext": count_extras(1)}),
            ("missing", INCRQ, "m", {"ext": count_extras(1, 0, NEVER)}),
            ("exists", APPENDQ, "a", {"val": b"x"}),
            ("not a number", INCRQ, "a", {"ext": count_extras(1)}),
            ("missing", APPENDQ, "c", {"val": b"x"}),
            ("exists", PREPENDQ, "a", {"val": b"x"}),
            ("missing", PREPENDQ, "c", {"val": b"x"}),
            ("hit", GATQ, "a", {"ext": u32(0)}),
            ("miss", GATQ, "c", {"ext": u32(0)}),
            ("hit", GETQ_META, "a", {}),
            ("miss", GETQ_META, "zz", {}),
            ("new", SETQ_META, "w", {"ext": meta(5), "val": b"m"}),
            ("older", SETQ_META, "w", {"ext": meta(4), "val": b"m"}),
            ("newer", DELQ_META, "w", {"ext": meta(6)}),
            ("older", DELQ_META, "w", {"ext": meta(5)}),
            ("no vbucket", GETQ, "a", {"vb": 1024}),
            ("no vbucket", SETQ, "a", {"vb": 1024, "ext": STORE, "val": b"1"}),
        ):
            kv.send(op, key, note, **fields)
            kv.barrier()
        run.note("many at once")
        raw = b""
        for index in range(12):
            key = kv.key(f"m{index % 4}", 0)
            op = (SETQ, GETQ, DELETEQ)[index % 3]
            fields = {"ext": STORE, "val": b"q"} if op == SETQ else {}
            raw += packet(op, key=key, vb=kv.vb, opaque=0x500 + index, **fields)
        kv.conn.send(raw + packet(NOOP, opaque=0x600), "twelve, then NOOP")
        kv.conn.recv_all(0.4)
        kv.conn.send(packet(QUITQ, opaque=0x601), "QUITQ")
        kv.conn.recv(1)
        kv.conn.close()
        read_all(run, "qs", kv.vb, features=features)


def meta(rev, cas=1 << 60, flags=0, exp=0, options=None, extended=None):
    """Extras of the WITH_META opcodes."""
    out = struct.pack(">IIQQ", flags, exp, rev, cas)
    if options is not None:
        out += u32(options)
    return out + (struct.pack(">H", extended) if extended is not None else b"")


IS_EXPIRATION = 16


@scenario(first_vb=130)
def s44_with_meta(run):
    """GET_META, and documents brought from elsewhere."""
    _admin, kv = fresh_client(run, "meta")
    for ext in (b"", b"\1", b"\2", b"\0\0"):
        kv.do(GET_META, "none", f"extras {ext.hex()}", ext=ext)
    conflicts(kv)
    options_of_meta(run, kv)
    datatypes_of_meta(kv)
    for ext in (b"", b"\1", b"\2"):
        kv.do(GET_META, "c", f"extras {ext.hex()}", ext=ext)
        kv.do(GET_META, "del", f"deleted, extras {ext.hex()}", ext=ext)
    kv.do(0xB2, "c", "RETURN_META", ext=struct.pack(">III", 1, 0, 0), val=b"r")
    read_all(run, "wm", kv.vb, flags=1 | 4 | 32)
    ctl = [("enable_expiry_opcode", "true")]
    read_all(run, "wm2", kv.vb, flags=1 | 4 | 32, ctl=ctl)


def conflicts(kv):
    """Older, equal and newer."""
    base = 1 << 60
    kv.do(SET_META, "c", "new", ext=meta(10, base, 5), val=b"1")
    for note, extras in (
        ("older rev", meta(9, base + 1)),
        ("equal", meta(10, base, 5)),
        ("newer CAS", meta(10, base + 1, 5)),
        ("older CAS", meta(10, base, 5)),
        ("newer flags", meta(10, base + 1, 6)),
        ("newer expiry", meta(10, base + 1, 6, kv.conn.unix() + 90000)),
        ("newer rev", meta(11, 7, 0)),
    ):
        kv.do(SET_META, "c", note, ext=extras, val=b"2")
    kv.do(SET_META, "c", "CAS in the header, wrong", ext=meta(12), val=b"2", cas=4)
    kv.do(SET_META, "c", "CAS in the header, right", ext=meta(12), val=b"3", cas=7)
    kv.do(GET, "c")
    kv.meta("c")
    kv.do(ADD_META, "c", "exists", ext=meta(20), val=b"4")
    kv.do(ADD_META, "added", ext=meta(20), val=b"4")
    kv.do(DEL_META, "c", "older", ext=meta(3))
    kv.do(DEL_META, "none", "of no document", ext=meta(3))
    kv.meta("none")
    kv.do(SET_META, "none", "older than the deletion", ext=meta(2), val=b"5")
    kv.do(ADD_META, "none", "on a deletion", ext=meta(4), val=b"5")
    kv.do(SET_META, "del", ext=meta(1), val=b"5")
    kv.do(DEL_META, "del", "newer", ext=meta(2, base + 9, 3, kv.conn.unix()))
    kv.do(GET, "del")
    kv.do(SET, "del", "after the deletion", ext=STORE, val=b"6")
    kv.meta("del")
    kv.do(DELETE, "del")


def options_of_meta(run, kv):
    """Options, lengths of extras, CAS that cannot be."""
    for options in (1, 2, 3, 4, 5, 6, 8, 16, 17, 32, 0x40, 0x80000000):
        extras = meta(1, (1 << 60) + 100 + options, options=options)
        kv.do(SET_META, "o", f"older, options {options:#x}", ext=extras, val=b"o")
        kv.do(GET, "o")
    for options in (1, 3, 5, 16, 17):
        extras = meta(1, (1 << 60) + 200 + options, options=options)
        kv.do(DEL_META, "o", f"options {options:#x}", ext=extras)
        kv.meta("o")
        kv.do(SET, "o", ext=STORE, val=b"again")
    for cas in (0, MAX_SEQNO, MAX_SEQNO - 1, 1 << 63, (1 << 63) - 1):
        kv.do(SET_META, f"cas{cas:x}", "odd CAS", ext=meta(1, cas), val=b"p")
        kv.meta(f"cas{cas:x}")
    for length in (0, 20, 23, 25, 27, 29, 31):
        client = Client(session(run, "len"), kv.vb)
        fields = {"ext": b"\0" * length, "val": b"v", "timeout": 1}
        client.do(SET_META, "l", f"extras {length}", **fields)
        client.conn.close()
    extended = b"\1\1\0\1\0"
    extras = meta(5, extended=len(extended))
    kv.do(SET_META, "x", "extended meta", ext=extras, val=b"body" + extended)
    kv.do(GET, "x")
    kv.do(SET_META, "x", "extended meta too long", ext=meta(6, extended=99), val=b"b")
    extras = meta(7, options=0, extended=0)
    kv.do(SET_META, "x", "30 bytes of extras", ext=extras, val=b"30")


def datatypes_of_meta(kv):
    """JSON, snappy, xattrs."""
    size = 4 + len(b'_sync\0{"a":1}\0')
    blob = struct.pack(">II", size, size - 4) + b'_sync\0{"a":1}\0'
    packed = snappy_literal(b'{"s":1}')
    for key, value, datatype in (
        ("j", b'{"m":1}', 1),
        ("j0", b'{"m":1}', 0),
        ("nj", b"no json", 1),
        ("s", packed, 3),
        ("ns", b"no snappy", 2),
        ("xa", blob + b'{"b":1}', 5),
        ("xr", blob + b"raw", 4),
        ("bad", b"\0\0\0\x99" + b"bad", 4),
        ("sx", snappy_literal(blob + b'{"b":1}'), 7),
        ("dt", b"v", 0x20),
    ):
        extras = meta(5)
        kv.do(SET_META, key, f"datatype {datatype}", ext=extras, val=value, dt=datatype)
        kv.do(GET, key)
        kv.meta(key)
    for key, value, datatype in (
        ("dx", blob, 4),
        ("dv", b"value", 0),
        ("dxv", blob + b"value", 4),
        ("du", blob.replace(b"_sync", b"user1"), 4),
    ):
        kv.do(DEL_META, key, "deletion with a value", ext=meta(5), val=value, dt=datatype)
        kv.meta(key)
        kv.lookup(key, (SD_GET, 4, "_sync"), (SD_GET, 4, "user1"), doc_flags=4)


BODY = b'{"s":"str","n":5,"a":[1,2,{"x":0}],"o":{"p":{"q":null}},"t":true,"f":1.5}'


@scenario(first_vb=140)
def s45_subdoc(run):
    """Paths into a document, one and many: every status."""
    _admin, kv = fresh_client(run, "sd")
    kv.sub(SD_GET, "none", "a", note="no document")
    kv.sub(SD_UPSERT, "none", "a", "1", note="no document")
    kv.do(SET, "raw", ext=STORE, val=b"raw")
    kv.sub(SD_GET, "raw", "a", note="not JSON")
    kv.sub(SD_UPSERT, "raw", "a", "1", note="not JSON")
    kv.do(SET, "d", ext=store_extras(4), val=BODY)
    for path in ("s", "n", "a[1]", "a[-1]", "a[-1].x", "a[9]", "o.p.q", "o.z", "n.x"):
        for op in (SD_GET, SD_EXISTS, SD_COUNT):
            kv.sub(op, "d", path)
    for path in ("a[", "a[x]", "..", ".", "a]", "`s`", "", "x" * 1025, "o.p.q.r.s"):
        kv.sub(SD_GET, "d", path, note="odd path")
        kv.sub(SD_UPSERT, "d", path, "1", note="odd path")
    kv.sub(SD_GET, "d", ".".join(["a"] * 40), note="too deep")
    changes_of_paths(kv)
    kv.do(GET, "d")
    counters_of_paths(kv)
    many_paths(kv)
    odd_subdoc(run, kv)
    kv.do(GET, "d")
    kv.meta("d")


def changes_of_paths(kv):
    """Every single-path mutation, right and wrong."""
    for note, op, path, value, flags in (
        ("new", SD_ADD, "new", b"1", 0),
        ("exists", SD_ADD, "new", b"1", 0),
        ("no parent", SD_ADD, "x.y", b"1", 0),
        ("make parent", SD_ADD, "x.y", b"1", 1),
        ("no parent", SD_UPSERT, "y.z", b"1", 0),
        ("make parents", SD_UPSERT, "y.z.w", b'"v"', 1),
        ("not JSON", SD_UPSERT, "bad", b"abc", 0),
        ("empty", SD_UPSERT, "bad", b"", 0),
        ("two values", SD_UPSERT, "bad", b"1,2", 0),
        ("into an array", SD_UPSERT, "a[0]", b"1", 0),
        ("into a number", SD_UPSERT, "n.x", b"1", 1),
        ("exists", SD_REPLACE, "new", b"[]", 0),
        ("missing", SD_REPLACE, "gone", b"[]", 0),
        ("element", SD_REPLACE, "a[0]", b'"first"', 0),
        ("last", SD_REPLACE, "a[-1]", b'{"x":[]}', 0),
        ("root", SD_REPLACE, "", b"{}", 0),
        ("exists", SD_DELETE, "new", b"", 0),
        ("missing", SD_DELETE, "new", b"", 0),
        ("with a value", SD_DELETE, "x", b"1", 0),
        ("element", SD_DELETE, "a[1]", b"", 0),
        ("root", SD_DELETE, "", b"", 0),
        ("", SD_LAST, "a", b"7", 0),
        ("two", SD_LAST, "a", b"8,9", 0),
        ("", SD_FIRST, "a", b'"f"', 0),
        ("missing", SD_LAST, "arr", b"1", 0),
        ("make", SD_LAST, "arr", b"1", 1),
        ("make deep", SD_FIRST, "q.r.s", b"1", 1),
        ("no array", SD_LAST, "n", b"1", 0),
        ("", SD_INSERT, "a[0]", b"0", 0),
        ("behind the end", SD_INSERT, "a[99]", b"0", 0),
        ("no index", SD_INSERT, "a", b"0", 0),
        ("negative", SD_INSERT, "a[-1]", b"0", 0),
        ("not there", SD_UNIQUE, "arr", b"2", 0),
        ("there", SD_UNIQUE, "arr", b"2", 0),
        ("make", SD_UNIQUE, "uni", b'"u"', 1),
        ("object", SD_UNIQUE, "arr", b"{}", 0),
        ("array of objects", SD_UNIQUE, "a", b"5", 0),
        ("unknown flag", SD_UPSERT, "flag", b"1", 0x20),
        ("deep value", SD_UPSERT, "deep", b"[" * 40 + b"]" * 40, 0),
    ):
        kv.sub(op, "d", path, value, flags, note=note)


def counters_of_paths(kv):
    """SUBDOC counters."""
    for path, value, flags in (
        ("n", b"10", 0),
        ("n", b"-20", 0),
        ("new", b"3", 0),
        ("c.d", b"3", 0),
        ("c.d", b"3", 1),
        ("s", b"1", 0),
        ("f", b"1", 0),
        ("n", b"0", 0),
        ("n", b"1.5", 0),
        ("n", b"abc", 0),
        ("n", b"", 0),
        ("n", b"9223372036854775807", 0),
        ("n", b"9223372036854775807", 0),
        ("n", b"9223372036854775808", 0),
        ("big", b"-9223372036854775807", 0),
        ("big", b"-5", 0),
    ):
        kv.sub(SD_COUNTER, "d", path, value, flags)
    body = b'{"n":9223372036854775808,"m":18446744073709551616}'
    kv.do(SET, "r", ext=STORE, val=body)
    kv.sub(SD_COUNTER, "r", "n", b"1")
    kv.sub(SD_COUNTER, "r", "m", b"-1")


def many_paths(kv):
    """Multi-path requests."""
    kv.lookup("none", (SD_GET, 0, "a"), note="no document")
    kv.lookup("raw", (SD_GET, 0, "a"), (SD_EXISTS, 0, "b"), note="not JSON")
    kv.lookup("raw", (GET, 0, ""), note="whole document")
    kv.lookup("d", (SD_GET, 0, "s"), (SD_EXISTS, 0, "n"), (SD_COUNT, 0, "a"))
    kv.lookup("d", (SD_GET, 0, "s"), (SD_GET, 0, "gone"), (SD_GET, 0, "n.x"))
    kv.lookup("d", (SD_GET, 0, "a["), (SD_EXISTS, 0, "gone"))
    kv.lookup("d", (GET, 0, ""), (SD_GET, 0, "s"), note="whole document and a path")
    kv.lookup("d", (SD_UPSERT, 0, "s"), note="a mutation in a lookup")
    kv.lookup("d", note="no path")
    kv.lookup("d", *[(SD_GET, 0, "s")] * 16, note="16 paths")
    kv.lookup("d", *[(SD_GET, 0, "s")] * 17, note="17 paths")
    up = (SD_UPSERT, 0, "m1", b"1")
    kv.mutate("none", up, note="no document")
    kv.mutate("d", up, (SD_COUNTER, 0, "cnt", b"5"), (SD_DELETE, 0, "m1", b""))
    kv.mutate("d", up, (SD_REPLACE, 0, "gone", b"1"), (SD_ADD, 0, "s", b"1"))
    kv.mutate("d", up, (SD_GET, 0, "s", b""), note="a lookup in a mutation")
    kv.mutate("d", up, (SD_UPSERT, 0, "m2", b"no json"), note="not JSON")
    kv.mutate("d", note="no path")
    kv.mutate("d", *[up] * 17, note="17 paths")
    kv.mutate("d", up, note="wrong CAS", cas=5)
    kv.mutate("new1", up, doc_flags=1, note="MKDOC")
    kv.mutate("new1", up, doc_flags=2, note="ADD, exists")
    kv.mutate("new2", up, doc_flags=2, note="ADD")
    kv.mutate("new2", up, doc_flags=3, note="MKDOC and ADD")
    kv.mutate("new3", (SD_LAST, 0, "", b"1"), doc_flags=1, note="an array is made")
    kv.do(GET, "new3")
    kv.mutate("new4", (SET, 0, "", b'{"w":1}'), doc_flags=1, note="whole document")
    kv.mutate("new4", (SET, 0, "", b"raw"), up, note="whole document and a path")
    kv.mutate("new4", (DELETE, 0, "", b""), note="delete the document")
    kv.do(GET, "new4")
    kv.mutate("new5", (SET, 0, "p", b"1"), doc_flags=1, note="SET with a path")


def odd_subdoc(run, kv):
    """Extras, flags and lengths that are wrong."""
    kv.sub(SD_UPSERT, "d", "e", "1", doc_flags=0x10, note="unknown document flag")
    kv.sub(SD_UPSERT, "sd1", "e", "1", doc_flags=1, note="MKDOC")
    kv.sub(SD_UPSERT, "sd1", "e", "2", doc_flags=2, note="ADD, exists")
    kv.sub(SD_UPSERT, "sd1", "e", "2", doc_flags=0, exp=u32(5000), note="expiry")
    kv.meta("sd1")
    kv.sub(SD_GET, "sd1", "e", doc_flags=1, note="MKDOC of a lookup")
    for op, fields in (
        (SD_GET, {"ext": b"", "val": b"s"}),
        (SD_GET, {"ext": b"\0\0", "val": b"s"}),
        (SD_GET, {"ext": b"\0\x09\0", "val": b"s"}),
        (SD_GET, {"ext": b"\0\1\0", "val": b"sx"}),
        (SD_GET, {"ext": b"\0\1\x80", "val": b"s"}),
        (SD_UPSERT, {"ext": b"\0\1\0", "val": b"e"}),
        (SD_LOOKUP, {"val": b"\xc5\0\0"}),
        (SD_LOOKUP, {"val": b"\xc5\0\0\x09s"}),
        (SD_LOOKUP, {"ext": b"\x80", "val": b"\xc5\0\0\1s"}),
        (SD_LOOKUP, {"ext": b"\0\0", "val": b"\xc5\0\0\1s"}),
        (SD_LOOKUP, {"val": b"\xee\0\0\1s"}),
        (SD_LOOKUP, {"val": b"\xc5\x20\0\1s"}),
        (SD_MUTATE, {"val": b"\xc8\0\0\1\0\0\0\x09e1"}),
    ):
        conn = session(run, "sdo")
        client = Client(conn, kv.vb)
        client.do(op, "d", "odd", timeout=1, **fields)
        if not conn.closed:
            client.barrier("alive?")
        conn.close()


@scenario(first_vb=150)
def s46_subdoc_xattr(run):
    """Extended attributes: macros, virtual ones, deleted documents."""
    _admin, kv = fresh_client(run, "xa")
    x = 4
    kv.do(SET, "d", ext=store_extras(6), val=b'{"b":1}')
    kv.sub(SD_UPSERT, "d", "u", '{"a":1}', x)
    kv.sub(SD_UPSERT, "d", "u.p.q", "2", x, note="no parent")
    kv.sub(SD_UPSERT, "d", "u.p.q", "2", x | 1, note="make parents")
    kv.sub(SD_GET, "d", "u", flags=x)
    kv.sub(SD_GET, "d", "u", note="without the flag")
    kv.sub(SD_GET, "d", "none", flags=x)
    kv.sub(SD_EXISTS, "d", "u.a", flags=x)
    kv.sub(SD_UPSERT, "d", "0123456789abcdef0", "1", x, note="key of 17")
    kv.sub(SD_UPSERT, "d", "0123456789abcdef", "1", x, note="key of 16")
    kv.sub(SD_UPSERT, "d", "$doc", "1", x, note="key with a dollar")
    kv.sub(SD_UPSERT, "d", "", "1", x, note="no key")
    kv.sub(SD_UPSERT, "d", "[0]", "1", x, note="an index")
    kv.sub(SD_LAST, "d", "arr", "1", x | 1)
    kv.sub(SD_COUNTER, "d", "cnt", "7", x)
    kv.do(GET, "d", "body only")
    xattrs_with_body(kv, x)
    macros(kv, x)
    virtual(kv, x)
    deleted(kv, x)
    run.note("connections without features")
    for features in (NO_XATTR, NO_XERROR, NOTHING):
        other = Client(session(run, "xo", features), kv.vb)
        other.sub(SD_GET, "d", "u", flags=x)
        other.sub(SD_UPSERT, "d", "u2", "1", x)
        other.do(GET, "d")
        other.sub(SD_GET, "d", "b")
        other.conn.close()
    read_all(run, "xs", kv.vb, flags=1 | 4)
    read_all(run, "xs", kv.vb, flags=1 | 4 | 8)
    read_all(run, "xs", kv.vb, flags=1 | 4 | 64)
    read_all(run, "xs", kv.vb, flags=1 | 8, features=NO_XATTR)
    ctl = [("force_value_compression", "true")]
    read_all(run, "xs", kv.vb, flags=1 | 4 | 8, ctl=ctl)


def xattrs_with_body(kv, x):
    """Attributes and body in one request."""
    up = SD_UPSERT
    kv.mutate("d", (up, x, "_s", b'{"v":1}'), (up, 0, "b", b"2"))
    kv.mutate("d", (up, 0, "b", b"3"), (up, x, "_s", b"1"), note="body first")
    kv.mutate("d", (up, x, "_s", b"1"), (up, x, "u", b"1"), note="two attributes")
    kv.lookup("d", (SD_GET, x, "_s"), (SD_GET, x, "u"), note="two attributes")
    kv.lookup("d", (SD_GET, x, "_s"), (SD_GET, 0, "b"), (SD_GET, 0, "none"))
    kv.lookup("d", (SD_GET, 0, "b"), (SD_GET, x, "_s"), note="body first")
    kv.lookup("d", (SD_GET, x, "_s.v"), (GET, 0, ""))
    kv.lookup("d", (SD_GET, x, "no"), (GET, 0, ""))
    kv.mutate("d", (SD_DELETE, x, "u", b""), (SET, 0, "", b'{"b":4}'))
    kv.mutate("d", (SD_DELETE, x, "no", b""), (SET, 0, "", b'{"b":5}'))
    kv.lookup("d", (SD_GET, x, "$XTOC"), (GET, 0, ""))
    kv.do(SET, "d2", ext=STORE, val=b'{"plain":1}')
    kv.lookup("d2", (SD_GET, x, "$XTOC"), note="no attributes")


def macros(kv, x):
    """Macros: expanded values are looked at by their existence."""
    for macro in ("Mutation.CAS", "Mutation.seqno", "Mutation.value_crc32c", "Mutation"):
        value = f'"${{{macro}}}"'
        kv.sub(SD_UPSERT, "d", "m.v", value, x | 16 | 1, note=macro)
        kv.sub(SD_EXISTS, "d", "m.v", flags=x)
    kv.sub(SD_GET, "d", "m", flags=x, note="after an unknown macro")
    value = b'"${Mutation.value_crc32c}"'
    kv.mutate("d", (SD_UPSERT, x | 17, "m.crc", value), (SET, 0, "", b'{"b":1}'))
    kv.sub(SD_GET, "d", "m.crc", flags=x)
    kv.mutate("d", (SD_UPSERT, x | 17, "m.seq", b'"${Mutation.seqno}"'))
    kv.sub(SD_GET, "d", "m.seq", flags=x)
    kv.sub(SD_UPSERT, "d", "b", '"${Mutation.CAS}"', 16, note="macro in the body")
    kv.sub(SD_UPSERT, "d", "m.lit", '"${Mutation.CAS}"', x, note="no macro flag")
    kv.sub(SD_GET, "d", "m.lit", flags=x)
    kv.sub(SD_UPSERT, "d", "m.n", "5", x | 16, note="macro flag, no macro")


def virtual(kv, x):
    """Virtual attributes."""
    kv.do(SET, "v", ext=store_extras(0x55), val=b'{"v":1}')
    names = ("deleted", "flags", "exptime", "value_bytes", "datatype", "revid", "seqno")
    for name in names:
        kv.sub(SD_GET, "v", f"$document.{name}", flags=x)
    for name in ("CAS", "vbucket_uuid", "value_crc32c", "none"):
        kv.sub(SD_EXISTS, "v", f"$document.{name}", flags=x)
    kv.sub(SD_GET, "v", "$document.value_crc32c", flags=x)
    kv.sub(SD_EXISTS, "v", "$document", flags=x)
    kv.sub(SD_UPSERT, "v", "$document.flags", "1", x, note="read only")
    kv.sub(SD_EXISTS, "v", "$vbucket.HLC", flags=x)
    kv.sub(SD_GET, "v", "$vbucket.HLC.mode", flags=x)
    kv.sub(SD_GET, "v", "$vbucket.none", flags=x)
    kv.sub(SD_GET, "v", "$nothing", flags=x)
    kv.sub(SD_GET, "v", "$document")
    kv.lookup("v", (SD_GET, x, "$document.flags"), (SD_GET, x, "_s"), (GET, 0, ""))
    kv.lookup("v", (SD_GET, x, "$XTOC"), (SD_GET, x, "$document.seqno"))
    value = b'"${$document.flags}"'
    kv.mutate("v", (SD_UPSERT, x | 17, "_m", value), note="macro of $document")
    kv.sub(SD_GET, "v", "_m", flags=x)
    kv.mutate("v", (SD_UPSERT, x | 17, "_m", b'"${$document.none}"'))


def deleted(kv, x):
    """Documents that are deleted, and made so."""
    mk, add, access, create, revive = 1, 2, 4, 8, 16
    one = (SD_UPSERT, x | 1, "_t.a", b"1")
    kv.mutate("x", one, doc_flags=access | create | mk, note="create as deleted")
    kv.do(GET, "x")
    kv.meta("x")
    kv.lookup("x", (SD_GET, x, "_t"), note="without ACCESS_DELETED")
    kv.lookup("x", (SD_GET, x, "_t"), doc_flags=access)
    kv.lookup("x", (SD_GET, x, "_t"), (SD_GET, x, "no"), doc_flags=access)
    kv.lookup("x", (SD_GET, x, "_t"), (GET, 0, ""), doc_flags=access)
    kv.lookup("x", (SD_GET, x, "$document.deleted"), doc_flags=access)
    kv.sub(SD_GET, "x", "_t.a", flags=x, doc_flags=access)
    kv.mutate("x", (SD_UPSERT, x, "_t.b", b"2"), doc_flags=access)
    kv.mutate("x", one, (SET, 0, "", b"{}"), doc_flags=access, note="a body")
    kv.mutate("x", one, doc_flags=access | create | add, note="ADD, deleted")
    kv.mutate("y", one, (SET, 0, "", b"{}"), doc_flags=access | create | mk)
    kv.mutate("y", one, doc_flags=create | mk, note="without ACCESS_DELETED")
    kv.mutate("y", one, doc_flags=access | create, note="without MKDOC")
    kv.mutate("x", one, doc_flags=revive, note="revive without access")
    kv.mutate("x", one, (SET, 0, "", b'{"r":1}'), doc_flags=access | revive)
    kv.do(GET, "x")
    kv.mutate("x", one, doc_flags=access | revive, note="revive, not deleted")
    kv.do(DELETE, "d", "with user and system attributes")
    kv.lookup("d", (SD_GET, x, "$XTOC"), doc_flags=access)
    kv.do(SET, "d", ext=STORE, val=b'{"b":1}')
    kv.lookup("d", (SD_GET, x, "$XTOC"))
    kv.mutate("z", one, (SET, 0, "", b'{"z":1}'), doc_flags=mk)
    kv.mutate("z", (SD_UPSERT, x, "_t.c", b"3"), (DELETE, 0, "", b""), note="delete")
    kv.lookup("z", (SD_GET, x, "_t"), doc_flags=access)
    kv.do(0xD3, "z", "REPLACE_BODY_WITH_XATTR", ext=b"\0\4\4", val=b"_t.b")


def manifest_uid(admin):
    """The uid of the bucket's manifest."""
    return int(json.loads(admin.cmd(Op.COLLECTIONS_GET_MANIFEST).value)["uid"], 16)


def manifest(uid, *scopes):
    """A manifest; a scope is (name, uid, collections)."""
    out = []
    for name, sid, collections in scopes:
        entries = [dict(zip(("name", "uid", "maxTTL"), item, strict=False)) for item in collections]
        out.append({"name": name, "uid": sid, "collections": entries})
    return json.dumps({"uid": f"{uid:x}", "scopes": out})


def default_scope(*collections):
    """The default scope with its collection and more."""
    return ("_default", "0", [("_default", "0"), *collections])


@scenario(first_vb=170)
def s48_observe(run):
    """OBSERVE, OBSERVE_SEQNO, GET_VBUCKET, GET_REPLICA in every state."""
    admin, kv = fresh_client(run, "obs")
    for index in range(3):
        kv.do(SET, f"k{index}", ext=STORE, val=b"v")
    kv.do(DELETE, "k2")
    persist(admin, kv.vb)
    uuid = struct.pack(">Q", failover_log(admin, kv.vb)[0][0])
    run.note("OBSERVE_SEQNO")
    conn = kv.conn
    conn.cmd(OBSERVE_SEQNO, vb=kv.vb, val=uuid)
    for note, fields in (
        ("unknown uuid", {"val": b"\0" * 7 + b"\7"}),
        ("uuid 0", {"val": b"\0" * 8}),
        ("no vbucket", {"val": uuid, "vb": 1024}),
        ("short", {"val": uuid[:4]}),
        ("empty", {}),
        ("extras", {"ext": uuid}),
        ("key", {"val": uuid, "key": "k"}),
    ):
        other = session(run, "obs")
        other.cmd(OBSERVE_SEQNO, note=note, timeout=1, **({"vb": kv.vb} | fields))
        other.close()
    run.note("OBSERVE")

    def entry(key, vb=kv.vb, size=None):
        key = doc_key(key)
        return struct.pack(">HH", vb, len(key) if size is None else size) + key

    for note, value in (
        ("one", entry("k0")),
        ("three", entry("k0") + entry("k1") + entry("none")),
        ("deleted", entry("k2")),
        ("short", entry("k0")[:3]),
        ("a key too long", entry("k0", size=99)),
        ("no vbucket", entry("k0", 1024)),
        ("empty", b""),
    ):
        other = session(run, "obs")
        other.cmd(OBSERVE, note=note, val=value, timeout=1)
        other.close()
    states(run, admin, kv, uuid)


def states(run, admin, kv, uuid):
    """The same vbucket as replica, pending, dead, and gone."""
    for state in (REPLICA, PENDING, DEAD, ACTIVE):
        run.note(f"state {state}")
        set_vb(admin, kv.vb, state)
        conn = kv.conn
        conn.cmd(OBSERVE_SEQNO, vb=kv.vb, val=uuid, timeout=1)
        admin.cmd(Op.GET_VBUCKET, vb=kv.vb)
        kv.do(Op.GET_REPLICA, "k0", timeout=1)
        kv.do(Op.GET_REPLICA, "k2", timeout=1)
        kv.do(GET_META, "k0", timeout=1)
        if state != PENDING:
            kv.do(GET, "k0")
            kv.do(SET, "k0", ext=STORE, val=b"w")
            kv.do(SD_GET, "k0", ext=b"\0\1\0", val=b"a")
            kv.send(GETQ, "k0", "quiet")
            kv.barrier()
        admin.cmd(Op.GET_FAILOVER_LOG, vb=kv.vb)
    run.note("operations wait in a pending vbucket")
    set_vb(admin, kv.vb, PENDING)
    kv.send(GET, "k0", "waits")
    kv.conn.recv_all(0.4)
    activate(admin, kv.vb)
    kv.conn.recv(2)
    set_vb(admin, kv.vb, PENDING)
    kv.send(SET, "k1", "waits", ext=STORE, val=b"p")
    kv.conn.recv_all(0.4)
    set_vb(admin, kv.vb, DEAD)
    kv.conn.recv(2)
    delete_vb(admin, kv.vb)
    run.sleep(0.3)
    run.note("gone")
    kv.do(GET, "k0")
    admin.cmd(Op.GET_VBUCKET, vb=kv.vb)
    delete_vb(admin, kv.vb)
    kv.conn.cmd(OBSERVE_SEQNO, vb=kv.vb, val=uuid, timeout=1)
    activate(admin, kv.vb)
    kv.do(GET, "k0", "made again")
    kv.conn.close()


def durable(level=1, timeout_ms=None):
    """The framing extra of a durable write."""
    if timeout_ms is None:
        return bytes([0x11, level])
    return bytes([0x13, level]) + struct.pack(">H", timeout_ms)


@scenario(first_vb=190)
def s50_durability(run):
    """Durable writes: alone, impossible, in progress, ambiguous."""
    admin, kv = fresh_client(run, "dur")
    up = struct.pack(">HB", 1, 0)
    for note, op, key, fields in (
        ("", SET, "a", {"ext": STORE, "val": b"5"}),
        ("", ADD, "a", {"ext": STORE, "val": b"5"}),
        ("", ADD, "b", {"ext": STORE, "val": b'{"b":1}'}),
        ("", REPLACE, "b", {"ext": STORE, "val": b'{"b":2}'}),
        ("", REPLACE, "none", {"ext": STORE, "val": b"5"}),
        ("", APPEND, "a", {"val": b"0"}),
        ("", INCR, "a", {"ext": count_extras(2)}),
        ("", SD_UPSERT, "b", {"ext": up, "val": b"x1"}),
        ("", SD_GET, "b", {"ext": up, "val": b"x"}),
        ("", GET, "b", {}),
        ("", TOUCH, "b", {"ext": u32(0)}),
        ("", DELETE, "b", {}),
        ("", DELETE, "b", {}),
        ("", DELETE, "none", {}),
        ("wrong CAS", SET, "a", {"ext": STORE, "val": b"5", "cas": 9}),
        ("", SETQ, "a", {"ext": STORE, "val": b"q"}),
    ):
        kv.do(op, key, f"durable {note}", fr=durable(), timeout=2, **fields)
    for note, frame in (
        ("level 0", durable(0)),
        ("level 2", durable(2)),
        ("level 3", durable(3)),
        ("level 4", durable(4)),
        ("timeout 0", durable(1, 0)),
        ("timeout 65535", durable(1, 65535)),
        ("no body", b"\x10"),
        ("two bytes", b"\x12\1\0"),
        ("twice", durable() * 2),
        ("preserve expiry too", durable() + b"\x50"),
        ("an open tracing context", b"\x31a"),
        ("barrier", b"\0"),
        ("cut off", b"\x13\1"),
        ("unknown", b"\xe1\0"),
    ):
        conn = session(run, "durf")
        client = Client(conn, kv.vb)
        fields = {"ext": STORE, "val": b"f", "fr": frame, "timeout": 2}
        client.do(SET, "f", note, **fields)
        conn.close()
    other = Client(session(run, "dun", BASE), kv.vb, False)
    other.do(SET, "f", "no sync replication", ext=STORE, val=b"f", fr=durable())
    other.conn.close()
    other = Client(session(run, "dux", NO_XERROR), kv.vb)
    impossible(run, admin, kv, other)
    other.conn.close()
    in_progress(run, admin, kv, Client(session(run, "dup", NO_SNAPPY), kv.vb))
    for ctl in ((), [("enable_sync_writes", "true"), ("consumer_name", "r")]):
        read_all(run, "dus", kv.vb, ctl=ctl)
    activate(admin, kv.vb)


def impossible(run, admin, kv, other):
    """Replicas that are not there."""
    for topology in ([["active", None]], [["active", None, None, None]], [["a", "b"], ["c", None]]):
        run.note(f"topology {topology}")
        set_vb(admin, kv.vb, ACTIVE, topology)
        for client in (kv, other):
            fields = {"ext": STORE, "val": b"i", "fr": durable(1, 1000)}
            client.do(SET, "i", "impossible", **fields)
    kv.do(DELETE, "a", "impossible", fr=durable())
    kv.do(SET, "a", "not durable", ext=STORE, val=b"n")


def in_progress(run, admin, kv, other):
    """A replica that is silent: prepares wait, then it is ambiguous."""
    set_vb(admin, kv.vb, ACTIVE, [["active", "silent"]])
    fields = {"ext": STORE, "val": b"prepared", "fr": durable(1, 1500)}
    kv.send(SET, "p", "waits", **fields)
    run.sleep(0.3)
    for op, fields in (
        (GET, {}),
        (SET, {"ext": STORE, "val": b"x"}),
        (SET, {"ext": STORE, "val": b"x", "fr": durable(1, 1000)}),
        (DELETE, {}),
        (SD_UPSERT, {"ext": b"\0\1\0", "val": b"x1"}),
        (GETL, {}),
        (GET_META, {"ext": b"\2"}),
        (SET_META, {"ext": meta(50), "val": b"m"}),
        (ADD, {"ext": STORE, "val": b"x"}),
        (INCR, {"ext": count_extras(1)}),
    ):
        other.do(op, "p", "in progress", **fields)
    kv.conn.recv(4, note="ambiguous")
    kv.do(GET, "p", "after the abort")
    other.send(SET, "p2", "waits too", **fields)
    other.conn.recv(4, note="ambiguous")
    other.send(SET, "p3", "waits", ext=STORE, val=b"s", fr=durable(1, 60000))
    run.sleep(0.3)
    set_vb(admin, kv.vb, REPLICA)
    other.conn.recv(3, note="no longer active")
    activate(admin, kv.vb)
    kv.do(GET, "p3", "topology without the replica")
    other.conn.recv(2, note="committed meanwhile")


@scenario(first_vb=200)
def s51_datatypes_of_values(run):
    """JSON and snappy values on every kind of connection."""
    _admin, kv = fresh_client(run, "dtv")
    kinds = [
        (name, Client(session(run, name, features), kv.vb, 0x12 in features))
        for name, features in (("all", COLLECTIONS), ("nosnappy", NO_SNAPPY), ("nojson", NO_JSON), ("none", NOTHING))
    ]
    long = b'{"long":"' + b"z" * 200 + b'"}'
    copies = b"\x17\x14hello B\x06\x00"
    values = (
        ("json", b'{"a":1}', 0),
        ("array", b"[1]", 0),
        ("number", b"12", 0),
        ("text", b'"t"', 0),
        ("spaces", b' {"a": 1} ', 0),
        ("bad", b'{"a":1', 0),
        ("utf8", b'{"a":"\xff"}', 0),
        ("jsondt", b'{"a":1}', 1),
        ("baddt", b"{bad", 1),
        ("snap", copies, 2),
        ("snapjson", snappy_literal(long), 2),
        ("snapjson3", snappy_literal(long), 3),
        ("snapbad", b"\xff\xff\xff\xff\xff\xff", 2),
        ("snapcut", copies[:-1], 2),
        ("snaplie", b"\x99" + copies[1:], 2),
        ("snapempty", b"\0", 2),
        ("long", long, 0),
    )
    for name, client in kinds:
        run.note(f"stored by {name}")
        for key, value, datatype in values:
            client.do(SET, f"{key}-{name}", ext=STORE, val=value, dt=datatype, timeout=1)
            if client.conn.closed:
                run.note("closed")
                return
    for name, client in kinds:
        run.note(f"read by {name}")
        for key in ("json", "snap", "snapjson", "snapjson3", "long"):
            for owner in ("all", "none"):
                client.do(GET, f"{key}-{owner}")
        client.meta("snapjson-all")
        client.do(GAT, "snap-all", ext=u32(0))
        client.sub(SD_GET, "snapjson-all", "long")
    changed_values(kv, kinds[1][1])
    read_all(run, "dvs", kv.vb, flags=1)
    read_all(run, "dvs", kv.vb, flags=1 | 4, features=NO_SNAPPY)
    read_all(run, "dvs", kv.vb, flags=1 | 8)
    read_all(run, "dvs", kv.vb, flags=1, features=NOTHING)


def changed_values(kv, plain):
    """APPEND, counters and sub-documents on compressed values."""
    copies = b"\x17\x14hello B\x06\x00"
    for op, key, value, datatype in (
        (APPEND, "snap-all", b"+more", 0),
        (APPEND, "snap-all", snappy_literal(b"+snappy"), 2),
        (PREPEND, "snap-all", copies, 2),
        (APPEND, "json-all", b" ", 0),
        (APPEND, "json-all", b"x", 0),
        (APPEND, "json-all", b"[]", 1),
    ):
        kv.do(op, key, val=value, dt=datatype)
        plain.do(GET, key)
        kv.do(GET, key)
    kv.do(SET, "count", ext=STORE, val=snappy_literal(b"41"), dt=2)
    kv.do(INCR, "count", ext=count_extras(1))
    kv.do(GET, "count")
    kv.do(SET, "sub", ext=STORE, val=snappy_literal(b'{"a":1}'), dt=3)
    kv.sub(SD_UPSERT, "sub", "b", "2")
    kv.sub(SD_UPSERT, "sub", "_x", "2", 4)
    kv.do(GET, "sub")
    plain.do(GET, "sub")


@scenario(first_vb=210)
def s52_privileges(run):
    """Requests of users with fewer privileges."""
    admin = administrator(run)
    vb = run.fresh_vb(admin)
    set_doc(admin, "d", b'{"a":1}', vb)
    set_xattr(admin, "d", vb, "_sys", "1")
    set_xattr(admin, "d", vb, "usr", "1")
    for user in ("readonly", "nodcp"):
        for features in (COLLECTIONS, NO_XERROR):
            run.note(f"user {user}, features {features}")
            client = Client(login_as(run, user, features), vb)
            try_everything(run, client, user, features)
            client.conn.close()
    run.note("no login, no bucket")
    conn = masked(run.connect("nobody"))
    conn.hello(COLLECTIONS)
    client = Client(conn, vb)
    client.do(GET, "d", "no login")
    conn.select(run.target.bucket)
    run.login(conn)
    client.do(GET, "d", "no bucket")
    client.do(OBSERVE_SEQNO, "", "no bucket", val=b"\0" * 8)
    for bucket in ("none", "", "b" * 101, "@no bucket@", "de/fault"):
        conn.cmd(Op.SELECT_BUCKET, key=bucket, note=f"bucket {bucket!r}", timeout=1)
    conn.cmd(Op.SELECT_BUCKET, key="default", val=b"x", note="a value", timeout=1)
    conn.close()
    conn = masked(run.connect("nobody"))
    conn.hello(COLLECTIONS)
    conn.auth("nodcp", "wrong")
    login_user(conn, "nodcp")
    conn.select(run.target.bucket)
    login_user(conn, "readonly")
    Client(conn, vb).do(GET, "d", "another login, bucket not chosen again")
    conn.close()


def login_as(run, user, features):
    """A connection of another user."""
    conn = masked(run.connect(user, setup=True))
    conn.hello(features)
    login_user(conn, user)
    conn.select(run.target.bucket)
    conn.set_setup(False)
    return conn


def try_everything(run, client, user, features):
    """One of every operation."""
    spec = struct.pack(">IIQQ", 0, 0, 5, 1 << 60)
    for note, op, key, fields in (
        ("", GET, "d", {}),
        ("", GET, "none", {}),
        ("", SET, "n", {"ext": STORE, "val": b"v"}),
        ("", SET, "d", {"ext": STORE, "val": b'{"a":2}'}),
        ("", ADD, "n2", {"ext": STORE, "val": b"v"}),
        ("", REPLACE, "n2", {"ext": STORE, "val": b"v"}),
        ("", APPEND, "n2", {"val": b"v"}),
        ("", INCR, "c", {"ext": count_extras(1)}),
        ("", TOUCH, "d", {"ext": u32(0)}),
        ("", GAT, "d", {"ext": u32(0)}),
        ("", GETL, "none", {}),
        ("", UNLOCK, "d", {"cas": 5}),
        ("", DELETE, "n", {}),
        ("", DELETE, "n2", {}),
        ("", DELETE, "c", {}),
        ("", GET_META, "d", {"ext": b"\2"}),
        ("", SET_META, "m", {"ext": spec, "val": b"v"}),
        ("", DEL_META, "m", {"ext": spec}),
        ("", SD_GET, "d", {"ext": b"\0\1\0", "val": b"a"}),
        ("_sys", SD_GET, "d", {"ext": b"\0\4\4", "val": b"_sys"}),
        ("usr", SD_GET, "d", {"ext": b"\0\3\4", "val": b"usr"}),
        ("$XTOC", SD_GET, "d", {"ext": b"\0\5\4", "val": b"$XTOC"}),
        ("_sys", SD_UPSERT, "d", {"ext": b"\0\4\4", "val": b"_sys1"}),
        ("", SD_UPSERT, "d", {"ext": b"\0\1\0", "val": b"x1"}),
        ("", RANDOM_KEY, "", {"ext": u32(0x77)}),
        ("", OBSERVE_SEQNO, "", {"val": b"\0" * 8}),
        ("", Op.SET_VBUCKET, "", {"ext": b"\1"}),
        ("", Op.GET_VBUCKET, "", {}),
        ("", Op.DEL_VBUCKET, "", {"vb": 1023}),
        ("", Op.COLLECTIONS_SET_MANIFEST, "", {"val": b"{}"}),
        ("", GET_COLLECTION_ID, "", {"val": b"_default._default"}),
        ("", Op.DCP_OPEN, "name", {"ext": b"\0\0\0\0\0\0\0\0"}),
        ("", Op.CREATE_BUCKET, "bb", {"val": b"ep.so\0"}),
        ("", Op.DELETE_BUCKET, "bb", {}),
        ("", Op.SET_PARAM, "dcp_idle_timeout", {"ext": u32(4), "val": b"360"}),
        ("", Op.CREATE_CHECKPOINT, "", {}),
        ("", Op.COMPACT_DB, "", {"ext": bytes(24)}),
        ("", Op.GET_ALL_VB_SEQNOS, "", {"ext": u32(3)}),
        ("", Op.GET_FAILOVER_LOG, "", {}),
    ):
        bare = op in Op._value2member_map_ and op > 0x30 and op not in (0xA2, 0xA8, 0xA0)
        fields = {"vb": client.vb, "timeout": 2} | fields
        if bare or op in (RANDOM_KEY, OBSERVE_SEQNO, GET_COLLECTION_ID):
            client.conn.cmd(op, key=key, note=note, **fields)
        else:
            client.do(op, key, note, **fields)
        client.conn.recv(0.02)
        if features is NO_XERROR:
            client.conn.close()
            client.conn = login_as(run, user, features)


@scenario(first_vb=220)
def s53_vbucket_states(run):
    """SET_VBUCKET: forms of requests, topologies, streams under them."""
    admin = administrator(run)
    vb = run.fresh_vb(admin)
    topology = b'{"topology":[["active"]]}'
    for note, fields in (
        ("extras of 4", {"ext": u32(2)}),
        ("body of 4", {"val": u32(2)}),
        ("extras of 1", {"ext": b"\2"}),
        ("extras of 2", {"ext": b"\0\2"}),
        ("state 0", {"ext": b"\0"}),
        ("state 5", {"ext": b"\5"}),
        ("nothing", {}),
        ("a key", {"ext": b"\2", "key": "k"}),
        ("replica with topology", {"ext": b"\2", "val": topology, "dt": 1}),
        ("not JSON", {"ext": b"\1", "val": b"{", "dt": 1}),
        ("JSON without datatype", {"ext": b"\1", "val": topology}),
        ("unknown name", {"ext": b"\1", "val": b'{"foo":1}', "dt": 1}),
        ("no chains", {"ext": b"\1", "val": b'{"topology":[]}', "dt": 1}),
        ("empty chain", {"ext": b"\1", "val": b'{"topology":[[]]}', "dt": 1}),
        ("null active", {"ext": b"\1", "val": b'{"topology":[[null]]}', "dt": 1}),
        ("a text", {"ext": b"\1", "val": b'{"topology":"a"}', "dt": 1}),
        ("numbers", {"ext": b"\1", "val": b'{"topology":[[1]]}', "dt": 1}),
        ("twice", {"ext": b"\1", "val": b'{"topology":[["a","a"]]}', "dt": 1}),
        ("three chains", {"ext": b"\1", "val": b'{"topology":[["a"],["b"],["c"]]}', "dt": 1}),
        ("five nodes", {"ext": b"\1", "val": b'{"topology":[["a","b","c","d","e"]]}', "dt": 1}),
        ("right", {"ext": b"\1", "val": topology, "dt": 1}),
        ("vbucket 1024", {"ext": b"\1", "vb": 1024}),
        ("vbucket 65535", {"ext": b"\1", "vb": 65535}),
        ("CAS", {"ext": b"\1", "cas": 5}),
    ):
        other = administrator(run)
        other.cmd(Op.SET_VBUCKET, note=note, timeout=1, **({"vb": vb} | fields))
        other.close()
        admin.cmd(Op.GET_VBUCKET, vb=vb)
    for note, fields in (
        ("active", {}),
        ("async=0", {"val": b"async=0"}),
        ("a key", {"key": "k"}),
        ("extras", {"ext": b"\0"}),
        ("vbucket 1024", {"vb": 1024}),
    ):
        other = administrator(run)
        other.cmd(Op.DEL_VBUCKET, note=note, timeout=2, **({"vb": vb} | fields))
        other.close()
        admin.cmd(Op.GET_VBUCKET, vb=vb)
    activate(admin, vb)
    logs_of_states(run, admin, vb)


def logs_of_states(run, admin, vb):
    """Failover logs and streams while states change."""
    for path in (
        (REPLICA, ACTIVE),
        (PENDING, ACTIVE),
        (DEAD, ACTIVE),
        (ACTIVE,),
        (REPLICA, PENDING, ACTIVE),
        (DEAD, REPLICA, ACTIVE),
    ):
        run.note(f"path {path}")
        fresh_vb(admin, vb)
        set_docs(admin, vb, 2)
        conn = run.dcp("st", 1)
        conn.read_stream(vb, 0.3)
        for state in path:
            set_vb(admin, vb, state)
            conn.recv_all(0.3)
        set_docs(admin, vb, 1)
        conn.recv_all(0.3)
        failover_log(admin, vb)
        conn.close()
    run.note("a request and a change of state together")
    conn = masked(run.dcp("st2", 1))
    conn.read_stream(vb, 0.3)
    conn.close_stream(vb)
    conn.read_stream(vb, 0.3, note="again after CLOSE_STREAM")
    set_vb(admin, vb, REPLICA)
    conn.recv_all(0.3)
    conn.read_stream(vb, 0.9, note="of the replica")
    conn.stream_request(vb, flags=16, note="active only")
    set_vb(admin, vb, DEAD)
    conn.recv_all(0.3)
    conn.read_stream(vb, 0.3, note="of the dead one")
    conn.close()
    activate(admin, vb)


@scenario(first_vb=230)
def s54_stream_flags(run):
    """Flags of streams together, markers of other versions, odd acks."""
    admin = administrator(run)
    vb = run.fresh_vb(admin)
    set_docs(admin, vb, 4)
    delete_doc(admin, "k0", vb)
    persist(admin, vb)
    new_checkpoint(admin, vb)
    run.sleep(1.0)
    set_docs(admin, vb, 1, prefix="n")
    uuid = failover_log(admin, vb)[0][0]
    sync = [("enable_sync_writes", "true")]
    for flags in (0, 2, 4, 16, 32, 128, 2 | 16, 4 | 16, 2 | 4, 16 | 32, 2 | 32, 64, 2 | 128):
        for ctl in ((), sync) if flags in (0, 2, 4) else ((),):
            conn = run.dcp("sf", 1, COLLECTIONS, ctl=ctl)
            note = f"flags {flags:#x}, {'sync' if ctl else 'plain'}"
            conn.read_stream(vb, 0.5, flags=flags, note=note)
            conn.close()
    for note, fields in (
        ("strict, uuid 0, from 0", {"flags": 32}),
        ("strict, uuid, from 0", {"flags": 32, "uuid": uuid}),
        ("strict, other uuid, from 0", {"flags": 32, "uuid": 77}),
        ("strict, uuid 0, from 2", {"flags": 32, "start": 2}),
        ("uuid 0, from 2", {"start": 2}),
        ("other uuid, from 0", {"uuid": 77}),
        ("from 3 to 4", {"start": 3, "end": 4, "uuid": uuid}),
        ("from 3 to 3", {"start": 3, "end": 3, "uuid": uuid}),
        ("from the last", {"start": 6, "uuid": uuid}),
        ("from the last to the latest", {"start": 6, "uuid": uuid, "flags": 4}),
        ("from the future", {"start": 60, "uuid": uuid}),
        ("snapshot past the last", {"start": 3, "se": 60, "uuid": uuid}),
        ("snapshot around", {"start": 3, "ss": 1, "se": 6, "uuid": uuid}),
    ):
        run.stream_once("sq", vb, 1, COLLECTIONS, idle=0.4, note=note, **fields)
    for value in ("2.0", "2.1", "2.2", "1.0", "3.0", "x", ""):
        conn = run.dcp("mv", 1, COLLECTIONS, ctl=sync)
        conn.control("max_marker_version", value)
        conn.read_stream(vb, 0.5, flags=2)
        conn.close()
    odd_acks(run, admin, vb)


def odd_acks(run, admin, vb):
    """BUFFER_ACK, NOOP and CONTROL where they do not belong."""
    run.note("BUFFER_ACK")
    ack = Op.DCP_BUFFER_ACK
    for note, control, fields in (
        ("no flow control", (), {"ext": u32(10)}),
        ("more than was sent", [("connection_buffer_size", "5000")], {"ext": u32(99999)}),
        ("zero", [("connection_buffer_size", "5000")], {"ext": u32(0)}),
        ("no extras", [("connection_buffer_size", "5000")], {}),
        ("8 bytes", [("connection_buffer_size", "5000")], {"ext": bytes(8)}),
        ("a key", [("connection_buffer_size", "5000")], {"ext": u32(1), "key": "k"}),
        ("a vbucket", [("connection_buffer_size", "5000")], {"ext": u32(1), "vb": vb}),
    ):
        conn = run.dcp("ba", 1, ctl=control)
        conn.read_stream(vb, 0.3, end=3)
        conn.send(packet(ack, opaque=0x77, **fields), note)
        conn.recv_all(0.3)
        if not conn.closed:
            conn.cmd(NOOP, note="alive?", timeout=1)
        conn.close()
    run.note("buffer switched off and on")
    conn = run.dcp("bb", 1, ctl=[("connection_buffer_size", "64")])
    conn.read_stream(vb, 0.3)
    conn.control("connection_buffer_size", "0")
    conn.recv_all(0.3)
    conn.control("connection_buffer_size", "100000")
    buffer_ack(conn, 60)
    conn.recv_all(0.3)
    conn.close()
    run.note("NOOP")
    for flags in (0, 1):
        for note, fields in (
            ("", {}),
            ("extras", {"ext": b"\0"}),
            ("key", {"key": "k"}),
            ("value", {"val": b"v"}),
            ("vbucket", {"vb": vb}),
        ):
            conn = run.dcp("np", flags)
            conn.recv_all(0.05, 0.3)
            conn.cmd(Op.DCP_NOOP, note=note, timeout=0.6, **fields)
            conn.close()


@scenario(first_vb=240)
def s55_replica_data(run):
    """Messages that a replica takes: prepares, commits, aborts, odd snapshots."""
    admin = administrator(run)
    prep = prepare_extras
    two = struct.Struct(">QQ").pack
    first = ("m", 1, 9, 1)
    for note, steps in (
        ("prepare, commit", [first, ("p", "k", prep(1)), ("c", "k", two(1, 2))]),
        ("prepare, abort", [first, ("p", "k", prep(1)), ("a", "k", two(1, 2))]),
        ("commit of nothing", [first, ("c", "k", two(1, 2))]),
        ("abort of nothing", [first, ("a", "k", two(1, 2))]),
        ("commit of another seqno", [first, ("p", "k", prep(1)), ("c", "k", two(5, 6))]),
        ("commit below", [first, ("p", "k", prep(3)), ("c", "k", two(3, 2))]),
        ("prepare twice", [first, ("p", "k", prep(1)), ("p", "k", prep(2))]),
        ("mutation over it", [first, ("p", "k", prep(1)), ("d", "k", 2)]),
        ("prepare above the end", [("m", 1, 1, 1), ("p", "k", prep(2))]),
        ("level 9", [first, ("p", "k", prep(1, level=9))]),
        ("level 0", [first, ("p", "k", prep(1, level=0))]),
        ("deleted", [first, ("p", "k", prep(1, deleted=1)), ("c", "k", two(1, 2))]),
        ("majority persisted", [first, ("p", "k", prep(1, level=3)), ("c", "k", two(1, 2))]),
        ("short prepare", [first, ("p", "k", prep(1)[:-1])]),
        ("short commit", [first, ("p", "k", prep(1)), ("c", "k", b"\0" * 8)]),
        ("commit with a value", [first, ("p", "k", prep(1)), ("c", "k", two(1, 2), b"v")]),
        ("disk, commit first", [("m", 1, 9, 2), ("c", "k", two(1, 2))]),
        ("disk, prepare above the end", [("m", 0, 3, 6), ("p", "k", prep(4))]),
    ):
        play(run, admin, note, steps)
    old = struct.Struct(">QQH").pack
    new = struct.Struct(">QQIB").pack
    gone = struct.Struct(">QQI").pack
    now = admin.unix()
    for note, steps in (
        ("a second marker inside", [first, ("d", "k", 1), ("m", 2, 4, 1), ("d", "l", 2)]),
        ("a marker that overlaps", [first, ("d", "k", 5), ("m", 3, 12, 1), ("d", "l", 6)]),
        ("the same marker", [first, first, ("d", "k", 1)]),
        ("flags 0", [("m", 1, 2, 0), ("d", "k", 1), ("d", "l", 2)]),
        ("flags 0x40", [("m", 1, 2, 0x40), ("d", "k", 1)]),
        ("memory and disk", [("m", 1, 2, 3), ("d", "k", 1)]),
        ("marker to acknowledge", [("m", 1, 1, 9), ("d", "k", 1)]),
        ("an end without items", [("m", 1, 9, 1), ("e",), ("d", "k", 1)]),
        ("deletion v1 with v2 on", [first, ("x", "k", old(1, 1, 0))]),
        ("deletion v2", [first, ("x", "k", new(1, 1, now, 0))]),
        ("deletion, last byte 1", [first, ("x", "k", new(1, 1, now, 1))]),
        ("expiration", [first, ("y", "k", gone(1, 1, now))]),
        ("expiration of 17", [first, ("y", "k", gone(1, 1, now)[:17])]),
        ("seqno advanced", [first, ("s", struct.pack(">Q", 9))]),
        ("seqno advanced, not the end", [first, ("s", struct.pack(">Q", 5)), ("d", "k", 6)]),
        ("seqno advanced above", [first, ("s", struct.pack(">Q", 15))]),
        ("seqno advanced, short", [first, ("s", b"\0" * 4)]),
        ("out of order start", [("o", u32(1)), ("d", "k", 3), ("o", u32(2))]),
        ("out of order 9", [("o", u32(9))]),
        ("unknown collection", [first, ("d", b"\x55k", 1)]),
        ("bad prefix", [first, ("d", b"\x80", 1)]),
        ("empty key", [first, ("d", b"\0", 1)]),
        ("a mutation of the past", [first, ("d", "k", 4), ("d", "k", 3)]),
        ("CAS 0", [first, ("d", "k", 1, {"cas": 0})]),
        ("xattr", [first, ("d", "k", 1, {"val": XATTR + b"b", "dt": 4})]),
        ("snappy", [first, ("d", "k", 1, {"val": snappy_literal(b"abc"), "dt": 2})]),
        ("state pending", [first, ("d", "k", 1), ("v", b"\3"), ("d", "l", 2)]),
        ("state dead", [first, ("d", "k", 1), ("v", b"\4"), ("d", "l", 2)]),
    ):
        play(run, admin, note, steps)


XATTR = struct.pack(">II", 18, 14) + b'_sync\0{"a":1}\0'


def prepare_extras(seqno, level=1, deleted=0):
    """Extras of a prepare."""
    return struct.pack(">QQIIIBBB", seqno, 1, 0, 0, 0, 0, deleted, level)


LETTERS = {
    "p": Op.DCP_PREPARE,
    "c": Op.DCP_COMMIT,
    "a": Op.DCP_ABORT,
    "x": Op.DCP_DELETION,
    "y": Op.DCP_EXPIRATION,
    "s": Op.DCP_SEQNO_ADVANCED,
    "o": Op.DCP_OSO_SNAPSHOT,
    "v": Op.DCP_SET_VBUCKET_STATE,
    "e": Op.DCP_STREAM_END,
}


def play(run, admin, note, steps):
    """A fresh replica, its stream, the steps; then what it holds."""
    run.note(note)
    vb = run.fresh_vb(admin, REPLICA)
    value = b'{"consumer_name":"me"}'
    peer = Peer(run, "rd", COLLECTIONS, openflags=32, val=value, dt=1)
    masked(peer.conn)
    peer.pump(0.15, 2)
    peer.add(vb)
    for step in steps:
        if not peer.conn.closed:
            send_step(peer, vb, *step)
            peer.pump(0.12, 0.6)
    peer.pump(0.3, 1)
    peer.close()
    for key in ("k", "l"):
        answer = admin.cmd(Op.GET_REPLICA, key=doc_key(key), vb=vb)
        if answer is not None and answer.status:
            admin.cmd(GET_META, key=doc_key(key), vb=vb, ext=b"\2")
    vb_stat(admin, "vbucket-seqno", vb, "high_seqno")
    admin.cmd(Op.GET_ALL_VB_SEQNOS, ext=u32(2))
    delete_vb(admin, vb)
    activate(admin, vb)


def send_step(peer, vb, kind, *rest):
    """One message."""
    if kind == "m":
        peer.marker(vb, *rest)
    elif kind == "d":
        key, seqno, *more = rest
        fields = {"cas": 0x900 + seqno} | (more[0] if more else {})
        peer.mutation(vb, doc_key(key) if isinstance(key, str) else key, seqno, **fields)
    elif kind in "soev":
        peer.send(LETTERS[kind], ext=rest[0] if rest else u32(0), vb=vb)
    else:
        key, extras, *value = rest
        fields = {"cas": 0x800, "val": value[0] if value else b""}
        if kind == "p" and len(extras) == 31 and not extras[-2]:
            fields["val"] = b"prepared"
        peer.send(LETTERS[kind], key=doc_key(key), ext=extras, vb=vb, **fields)
