"""Documents of every kind: datatypes, deletions, sync writes, compression."""

import struct

from dcpstream_node.judge.packets import Op, packet
from dcpstream_node.judge.scenarios.kit import (
    BASE,
    COLLECTIONS,
    activate,
    delete_doc,
    doc_key,
    get_doc,
    persist,
    scenario,
    set_doc,
    set_docs,
    set_vb,
    set_xattr,
    snappy_literal,
)

NO_SNAPPY = [6, 7, 8, 0xB]
FORCE = (("force_value_compression", "true"),)
EXPIRY_OPCODE = (("enable_expiry_opcode", "true"),)


@scenario(first_vb=430)
def s12_datatypes(run):
    """JSON, snappy and xattr values on connections opened in every way."""
    admin = run.admin()
    vb = run.fresh_vb(admin)
    write_datatypes(admin, vb)
    for flags, features, ctl, note in (
        (1, BASE, (), "flags=1 (no xattr), xattr+snappy+json negotiated"),
        (1 | 4, BASE, (), "INCLUDE_XATTR"),
        (1 | 4, [7, 8], (), "INCLUDE_XATTR but no datatype features"),
        (1 | 4, NO_SNAPPY, (), "INCLUDE_XATTR, no snappy negotiated"),
        (1 | 4, [6, 7, 8, 0xA], (), "INCLUDE_XATTR, no JSON negotiated"),
        (1 | 8, BASE, (), "NO_VALUE"),
        (1 | 64, BASE, (), "NO_VALUE_WITH_UNDERLYING_DATATYPE"),
        (1 | 8 | 4, BASE, (), "NO_VALUE|XATTR"),
        (1 | 64 | 4, BASE, (), "NO_VALUE_UNDERLYING|XATTR"),
        (1 | 4, BASE, FORCE, "force_value_compression"),
        (1, BASE, FORCE, "force_value_compression no xattr"),
        (1 | 4, BASE, (("supports_hifi_MFU", "true"),), "hifi MFU"),
    ):
        run.note(note)
        read_stream(run, "dt", vb, flags, features, ctl, 0.6, end=11)
    run.note("same from disk")
    persist(admin, vb)
    for flags, ctl, note in (
        (1, (), "flags=1 DISKONLY"),
        (1 | 4, (), "XATTR DISKONLY"),
        (1 | 8, (), "NO_VALUE DISKONLY"),
        (1 | 64, (), "NO_VALUE_UNDERLYING DISKONLY"),
        (1 | 4, FORCE, "force compression DISKONLY"),
    ):
        run.note(note)
        read_stream(run, "dtd", vb, flags, BASE, ctl, 0.8, flags=2, end=11)


def read_stream(run, name, vb, open_flags, features, ctl, idle, /, **fields):
    """One stream on a connection of its own."""
    run.stream_once(name, vb, open_flags, features, ctl=ctl, idle=idle, **fields)


def write_datatypes(admin, vb):
    """Eleven documents."""
    padded = b'{"compressed":true,"pad":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}'
    tomorrow = admin.unix() + 86400
    set_doc(admin, "raw", b"plain text", vb)
    set_doc(admin, "json", b'{"a":1,"b":[1,2,3]}', vb)
    set_doc(admin, "jsonscalar", b"123", vb)
    set_doc(admin, "snap", snappy_literal(b"hello hello hello hello"), vb, dt=2)
    set_doc(admin, "snapjson", snappy_literal(padded), vb, dt=3)
    set_doc(admin, "big", b'{"x":"' + b"a" * 2000 + b'"}', vb)
    set_doc(admin, "empty", b"", vb)
    set_doc(admin, "exp", b"v", vb, exp=tomorrow, flags=7)
    set_xattr(admin, "xattr", vb, "txn", '{"id":"t1"}', body=b'{"body":1}')
    set_xattr(admin, "sysxattr", vb, "_sync", '{"rev":"1-a"}', body=b'{"body":2}')
    set_xattr(admin, "xattrraw", vb, "meta", '{"k":"v"}', body=b"not json")


DELETION_CASES = (
    (1, (), "flags=1"),
    (1 | 32, (), "INCLUDE_DELETE_TIMES"),
    (1 | 32, EXPIRY_OPCODE, "DELETE_TIMES + enable_expiry_opcode"),
    (1, EXPIRY_OPCODE, "enable_expiry_opcode without DELETE_TIMES"),
    (1 | 4, (), "XATTR"),
    (1 | 4 | 32, EXPIRY_OPCODE, "XATTR|DELETE_TIMES+expiry opcode"),
    (1 | 4 | 256, (("include_deleted_user_xattrs", "true"),), "XATTR|DELETED_USER_XATTRS"),
    (1 | 8, (), "NO_VALUE"),
    (1 | 4 | 8, (), "XATTR|NO_VALUE"),
)


@scenario(first_vb=460)
def s13_deletes_expiry(run):
    """Deletions, expirations and their times."""
    admin = run.admin()
    vb = run.fresh_vb(admin)
    write_deletions(run, admin, vb)
    run.sleep(0.3)
    for flags, ctl, note in DELETION_CASES:
        run.note("memory: " + note)
        read_stream(run, "del", vb, flags, BASE, ctl, 0.6, flags=4)
    persist(admin, vb)
    for flags, ctl, note in DELETION_CASES:
        run.note("disk: " + note)
        read_stream(run, "deld", vb, flags, BASE, ctl, 0.8, flags=2)
    run.note("Collections negotiated, with and without delete times")
    read_stream(run, "delc", vb, 1 | 32, COLLECTIONS, (), 0.6, flags=4)
    read_stream(run, "delc", vb, 1, COLLECTIONS, (), 0.6, flags=4)


def write_deletions(run, admin, vb):
    """Deleted, expired and imported documents."""
    for key in ("d1", "d2", "e1", "e2", "x1"):
        set_doc(admin, key, b'{"v":1}', vb)
    delete_doc(admin, "d1", vb)
    set_xattr(admin, "x1", vb, "_sys", '{"a":1}')
    set_xattr(admin, "x1", vb, "user", '{"b":1}')
    delete_doc(admin, "x1", vb)
    set_doc(admin, "e1", b'{"v":2}', vb, exp=1)
    set_doc(admin, "e2", b'{"v":2}', vb, exp=admin.unix() + 1)
    run.sleep(3.2)
    get_doc(admin, "e1", vb)
    get_doc(admin, "e2", vb)
    deleted = struct.pack(">IIQQ", 0, admin.unix(), 9, 0x1122334455667788)
    admin.cmd(Op.DEL_WITH_META, key=doc_key("d2"), ext=deleted, vb=vb)
    imported = struct.pack(">IIQQ", 0xDEADBEEF, 0, 77, 0x2233445566778899)
    fields = {"ext": imported, "val": b'{"m":1}', "vb": vb}
    admin.cmd(Op.SET_WITH_META, key=doc_key("swm"), **fields)


def durability(timeout_ms, level=1):
    """The framing extra of a durable write."""
    return bytes([0x13, level]) + struct.pack(">H", timeout_ms)


def durable_packet(key, value, vb, timeout_ms, opaque):
    """A durable SET."""
    return packet(Op.SET, key=doc_key(key), ext=b"\0" * 8, val=value, vb=vb, fr=durability(timeout_ms), opaque=opaque)


def durable_set(admin, key, value, vb):
    """A durable SET that is answered when it is decided."""
    fields = {"ext": b"\0" * 8, "val": value, "vb": vb, "fr": durability(5000)}
    return admin.cmd(Op.SET, key=doc_key(key), timeout=8, **fields)


SYNC_WRITES = ("enable_sync_writes", "true")
REPLICA_NAME = ("consumer_name", "rep1")
SYNC_CASES = (
    ((), "no sync writes control"),
    ((SYNC_WRITES,), "enable_sync_writes"),
    ((SYNC_WRITES, REPLICA_NAME), "enable_sync_writes+consumer_name"),
)


@scenario(first_vb=490)
def s14_sync_writes(run):
    """Durable writes: prepares, commits, aborts, acknowledgements."""
    admin = run.admin()
    vb = run.fresh_vb(admin)
    set_docs(admin, vb, 3)
    durable_set(admin, "s1", b"sync", vb)
    for ctl, note in SYNC_CASES:
        run.note(note)
        conn = run.dcp("sw", 1, COLLECTIONS, ctl=ctl)
        conn.read_stream(vb, 0.5)
        durable_set(admin, "s2", b"sync2 " + note.encode(), vb)
        conn.recv_all(0.7)
        conn.close()
    persist(admin, vb)
    for ctl, note in SYNC_CASES:
        run.note("disk: " + note)
        read_stream(run, "sw", vb, 1, COLLECTIONS, ctl, 0.8, flags=2)
    acknowledged_prepare(run, admin, vb)


def acknowledged_prepare(run, admin, vb):
    """A replica that acknowledges one prepare and not the next."""
    run.note("topology [active, rep1]: prepare waits for SEQNO_ACK")
    set_vb(admin, vb, 1, [["active", "rep1"]])
    conn = run.dcp("sw3", 1, COLLECTIONS, ctl=[SYNC_WRITES, REPLICA_NAME])
    conn.read_stream(vb, 0.5, start=0)
    opaque = admin.next_opaque()
    admin.send(durable_packet("acked", b"payload", vb, 3000, opaque))
    frames = conn.recv_all(0.7)
    acknowledge_last_prepare(conn, vb, frames)
    admin.recv(3)
    opaque = admin.next_opaque()
    admin.send(durable_packet("timeout", b"payload", vb, 1500, opaque))
    conn.recv_all(2.5, 4)
    admin.recv(3)
    conn.close()
    activate(admin, vb)


def acknowledge_last_prepare(conn, vb, frames):
    """SEQNO_ACK for the last prepare among the frames."""
    prepares = [frame for frame in frames if frame.op == Op.DCP_PREPARE]
    if prepares:
        last = prepares[-1]
        fields = {"ext": last.extras[:8], "vb": vb, "opaque": last.opaque}
        conn.send(packet(Op.DCP_SEQNO_ACK, **fields), "ack the prepare")
        conn.recv_all(0.7)


PASSIVE_CASES = (
    (1, BASE, 0, "snappy negotiated"),
    (1, NO_SNAPPY, 0, "no snappy"),
    (1 | 4, BASE, 0, "snappy + INCLUDE_XATTR"),
    (1 | 4, NO_SNAPPY, 0, "INCLUDE_XATTR no snappy"),
    (1 | 8, BASE, 0, "NO_VALUE"),
    (1 | 64, BASE, 0, "NO_VALUE_UNDERLYING"),
    (1, BASE, 2, "snappy, DISKONLY"),
    (1, NO_SNAPPY, 2, "no snappy, DISKONLY"),
    (1 | 4, BASE, 2, "xattr snappy DISKONLY"),
    (1 | 4 | 8, BASE, 2, "xattr NO_VALUE DISKONLY"),
)


@scenario(first_vb=880)
def s29_compression_passive(run):
    """The bucket keeps compressed values as they came."""
    admin = run.admin()
    vb = run.fresh_vb(admin)
    set_compression(admin, "passive")
    run.sleep(0.3)
    write_compressed(admin, vb)
    for flags, features, stream_flags, note in PASSIVE_CASES:
        if stream_flags:
            persist(admin, vb)
        run.note(note)
        fields = {"flags": stream_flags, "end": 5}
        read_stream(run, "cp", vb, flags, features, (), 0.6, **fields)
    set_compression(admin, "active")
    set_doc(admin, "act", b'{"x":"' + b"b" * 400 + b'"}', vb)
    run.sleep(1.0)
    read_stream(run, "cp", vb, 1, BASE, (), 0.6, end=6)
    set_compression(admin, "off")


def set_compression(admin, mode):
    """SET_PARAM compression_mode of the bucket."""
    extras = struct.pack(">I", 1)
    admin.optional(Op.SET_PARAM, key="compression_mode", ext=extras, val=mode)


def write_compressed(admin, vb):
    """Snappy values, one of them with copies, and a plain one with an xattr."""
    copies = b"\x17\x14hello B\x06\x00"
    json_copies = b'<h{"compressed":true,"pad":"az\x01\x00\x04"}'
    literal = snappy_literal(b"hello hello hello hello")
    set_doc(admin, "snap", copies, vb, dt=2)
    set_doc(admin, "snapjson", json_copies, vb, dt=3)
    set_doc(admin, "literalonly", literal, vb, dt=2)
    set_doc(admin, "plain", b'{"x":"' + b"a" * 200 + b'"}', vb)
    set_xattr(admin, "plain", vb, "txn", '{"id":"t1"}')
