"""Streams: failover logs, seqnos, memory, disk, ends, rollback, closing."""

import struct

from dcpstream_node.judge.packets import Op, packet, stream_request_extras
from dcpstream_node.judge.scenarios.kit import (
    BASE,
    COLLECTIONS,
    DEAD,
    PENDING,
    REPLICA,
    activate,
    delete_doc,
    failover_log,
    fresh_vb,
    new_checkpoint,
    persist,
    scenario,
    set_doc,
    set_docs,
    set_vb,
    u32,
)

SYNC_WRITES = [("enable_sync_writes", "true")]
SYNC_REPLICATION = [*SYNC_WRITES, ("consumer_name", "replica1")]


@scenario(first_vb=220)
def s05_failover_log(run):
    """GET_FAILOVER_LOG: arguments, kinds of connection, a growing log."""
    admin = run.admin()
    activate(admin, 5)
    failover_log_arguments(run)
    conn = run.dcp("folc", 0)
    conn.recv_all(0.1, 0.5)
    conn.cmd(Op.DCP_GET_FAILOVER_LOG, vb=5, note="on a consumer connection")
    conn.recv_all(0.2, 1)
    conn.close()
    conn = run.plain(COLLECTIONS)
    conn.cmd(Op.DCP_GET_FAILOVER_LOG, vb=5, note="0x54 on a non-DCP connection")
    conn.cmd(Op.GET_FAILOVER_LOG, vb=5, note="0x96 on a non-DCP connection")
    conn.close()
    growing_failover_log(run, admin)


def failover_log_arguments(run):
    """Vbuckets in and out of range, extras, key, value."""
    conn = run.dcp("fol", 1)
    for fields in (
        {"vb": 5},
        {"vb": 1023},
        {"vb": 1024, "note": "vb out of range"},
        {"vb": 65535},
        {"vb": 5, "ext": b"\0\0\0\0", "note": "extras"},
        {"vb": 5, "key": "k", "note": "key"},
        {"vb": 5, "val": "v", "note": "value"},
    ):
        conn.cmd(Op.DCP_GET_FAILOVER_LOG, **fields)
    conn.cmd(Op.GET_FAILOVER_LOG, vb=5, note="0x96 on DCP connection")
    conn.close()


def growing_failover_log(run, admin):
    """Active, replica, active: which changes add an entry."""
    run.note("grow the failover log: active->replica->active several times")
    vb = run.fresh_vb(admin)
    conn = run.dcp("fol2", 1)

    def show(note):
        conn.cmd(Op.DCP_GET_FAILOVER_LOG, vb=vb, note=note)

    show("fresh vb")
    for index in range(3):
        set_doc(admin, f"a{index}", b"x", vb)
        persist(admin, vb)
        set_vb(admin, vb, REPLICA)
        show("as replica")
        activate(admin, vb)
        show(f"active again (round {index})")
    activate(admin, vb)
    show("active->active")
    set_vb(admin, vb, PENDING)
    show("pending")
    activate(admin, vb)
    show("pending->active")
    set_vb(admin, vb, DEAD)
    show("dead")
    conn.close()
    activate(admin, vb)


@scenario(first_vb=250)
def s06_get_all_vb_seqnos(run):
    """GET_ALL_VB_SEQNOS: states, collections, odd arguments."""
    admin = run.admin()
    for state, docs in ((1, 3), (REPLICA, 0), (1, 0)):
        vb = run.fresh_vb(admin, state)
        set_docs(admin, vb, docs)
    op = Op.GET_ALL_VB_SEQNOS
    conn = run.plain(BASE)
    conn.cmd(op, note="no extras")
    conn.cmd(op, ext=u32(1), note="state=active")
    conn.cmd(op, ext=u32(2), note="state=replica")
    conn.cmd(op, ext=u32(0), note="state=0(alive)")
    conn.cmd(op, ext=u32(4), note="state=dead")
    conn.cmd(op, ext=u32(5), note="state=5 invalid")
    note = "8-byte extras (state+collection 0), no Collections HELLO"
    conn.cmd(op, ext=struct.pack(">II", 1, 0), note=note)
    conn.cmd(op, ext=b"\0\0", note="2-byte extras")
    conn.cmd(op, key="k", note="key")
    conn.close()
    conn = run.plain(COLLECTIONS)
    note = "collections negotiated: state+collection 0"
    conn.cmd(op, ext=struct.pack(">II", 1, 0), note=note)
    conn.cmd(op, ext=struct.pack(">II", 1, 99), note="unknown collection")
    conn.close()
    conn = run.dcp("vbsq", 1)
    conn.cmd(op, ext=u32(1), note="on a DCP producer connection")
    conn.close()
    activate(admin, run.last_vb - 1)


@scenario(first_vb=280)
def s07_stream_inmemory(run):
    """Streams from memory, live changes, resuming."""
    admin = run.admin()
    live_stream(run, admin)
    run.note("empty vbucket, stream from 0; then one set")
    vb = run.fresh_vb(admin)
    conn = run.dcp("mem2", 1)
    conn.read_stream(vb, 0.5)
    set_doc(admin, "x", b"1", vb)
    conn.recv_all(0.5)
    conn.close()
    run.note("resume at high seqno with right uuid")
    uuid = failover_log(admin, vb)[0][0]
    conn = run.dcp("mem3", 1)
    conn.read_stream(vb, 0.5, start=1, uuid=uuid)
    set_doc(admin, "y", b"2", vb)
    conn.recv_all(0.5)
    conn.close()
    run.note("collections negotiated: keys carry a leb128 collection id")
    run.stream_once("mem4", vb, features=COLLECTIONS, idle=0.5)
    run.note("no datatype features negotiated at all")
    run.stream_once("mem5", vb, features=[8], idle=0.5)


def live_stream(run, admin):
    """Five documents, then changes while the stream is open."""
    vb = run.fresh_vb(admin)
    for index in range(5):
        set_doc(admin, f"k{index}", b"value-%d" % index, vb, flags=0x01020304)
    conn = run.dcp("mem1", 1)
    conn.read_stream(vb, 1)
    set_doc(admin, "k5", b"live", vb)
    conn.recv_all(0.5)
    run.note("update same key twice quickly, then delete")
    set_doc(admin, "k5", b"live2", vb)
    set_doc(admin, "k5", b"live3", vb)
    delete_doc(admin, "k4", vb)
    conn.recv_all(0.7)
    run.note("CREATE_CHECKPOINT then one more set")
    new_checkpoint(admin, vb)
    set_doc(admin, "k6", b"after-cp", vb)
    conn.recv_all(0.7)
    conn.close()


@scenario(first_vb=310)
def s08_stream_end_seqno(run):
    """Streams with an end."""
    admin = run.admin()
    vb = run.fresh_vb(admin)
    for index in range(10):
        set_doc(admin, f"k{index}", b"v%d" % index, vb)
    for end in (5, 10, 1):
        run.note(f"memory, start 0 end {end}")
        run.stream_once(f"end{end}", vb, idle=0.8, end=end)
    run.note("end beyond high seqno (12); stays open; then reach it")
    conn = run.dcp("end20", 1)
    conn.read_stream(vb, 0.7, end=12)
    set_doc(admin, "n1", b"1", vb)
    set_doc(admin, "n2", b"1", vb)
    conn.recv_all(0.7)
    set_doc(admin, "n3", b"1", vb)
    conn.recv_all(0.7)
    conn.close()
    uuid = failover_log(admin, vb)[0][0]
    for note, name, fields in (
        ("start == end == high (13)", "endeq", {"start": 13, "end": 13, "uuid": uuid}),
        ("start == end == 5 (mid)", "endeq5", {"start": 5, "end": 5, "uuid": uuid}),
        ("start 0 end 0", "end00", {"start": 0, "end": 0}),
        ("start 5 snap [3,8]", "mid", {"start": 5, "uuid": uuid, "ss": 3, "se": 8}),
        ("start 3, end 7", "mid2", {"start": 3, "end": 7, "uuid": uuid}),
    ):
        run.note(note)
        run.stream_once(name, vb, **fields)


@scenario(first_vb=340)
def s09_backfill_disk(run):
    """Streams read from disk."""
    admin = run.admin()
    vb = run.new_vb()
    spilled_vbucket(run, admin, vb)
    conn = run.dcp("bf1", 1)
    conn.read_stream(vb, 1.2)
    set_doc(admin, "live1", b"x", vb)
    conn.recv_all(0.7)
    conn.close()
    uuid = failover_log(admin, vb)[0][0]
    run.note("backfill with end seqno 4")
    run.stream_once("bf2", vb, idle=1.2, end=4)
    run.note("DISKONLY flag 2")
    persist(admin, vb)
    conn = run.dcp("bf3", 1)
    conn.read_stream(vb, 1.2, flags=2)
    set_doc(admin, "live2", b"x", vb)
    conn.recv_all(0.7)
    conn.close()
    run.note("DISKONLY with end 3")
    run.stream_once("bf4", vb, idle=1.2, flags=2, end=3)
    run.note("LATEST flag 4 (end given 2, ignored?)")
    run.stream_once("bf5", vb, idle=1.2, flags=4, end=2)
    run.note("LATEST|DISKONLY")
    persist(admin, vb)
    run.stream_once("bf6", vb, idle=1.2, flags=6)
    run.note("backfill from the middle with the right uuid (start=3)")
    run.stream_once("bf7", vb, idle=1.2, start=3, uuid=uuid)
    backfill_variants(run, vb)
    vb = run.fresh_vb(admin)
    run.note("empty vbucket DISKONLY")
    run.stream_once("bf12", vb, idle=1.2, flags=2)
    run.note("LATEST on an empty vb")
    run.stream_once("bf13", vb, idle=1.2, flags=4)


def spilled_vbucket(run, admin, vb):
    """Documents on disk, and a new checkpoint so that memory lacks them."""
    fresh_vb(admin, vb)
    for index in range(8):
        set_doc(admin, f"k{index}", b"value-%d" % index, vb)
    persist(admin, vb)
    new_checkpoint(admin, vb)
    delete_doc(admin, "k3", vb)
    set_doc(admin, "k1", b"updated", vb)
    high_seqno = persist(admin, vb)
    new_checkpoint(admin, vb)
    run.sleep(1.5)
    run.note(f"persisted, high seqno {high_seqno}, new checkpoint created")


def backfill_variants(run, vb):
    """The same backfill on connections opened in other ways."""
    for note, name, flags, features, ctl in (
        ("include delete times (open flag 0x20)", "bf8", 1 | 32, BASE, ()),
        ("NO_VALUE", "bf9", 1 | 8, BASE, ()),
        ("with enable_sync_writes", "bf10", 1, COLLECTIONS, SYNC_WRITES),
        ("with sync replication", "bf11", 1, COLLECTIONS, SYNC_REPLICATION),
    ):
        run.note(note)
        run.stream_once(name, vb, flags, features, ctl, idle=1.2)


@scenario(first_vb=370)
def s10_rollback(run):
    """The seqno that a stream must roll back to, before and after a failover."""
    admin = run.admin()
    vb = run.fresh_vb(admin)
    set_docs(admin, vb, 10)
    uuid = failover_log(admin, vb)[0][0]
    rollback_one_branch(run, vb, uuid)
    run.note("failover: replica->active adds an entry at seqno 10; then 5 more")
    set_vb(admin, vb, REPLICA)
    activate(admin, vb)
    set_docs(admin, vb, 5, prefix="m")
    log = failover_log(admin, vb)
    rollback_two_branches(run, vb, log[-1][0], log[0][0])


def try_rollback(run, name, vb, cases, idle):
    """Stream requests, each on a connection of its own."""
    for note, fields in cases:
        run.stream_once(name, vb, idle=idle, note=note, **fields)


def rollback_one_branch(run, vb, uuid):
    """The history has one branch, high seqno 10."""
    right = {"uuid": uuid}
    cases = (
        ("start 5 wrong uuid", {"start": 5, "uuid": 0x1234}),
        ("start 5 uuid 0", {"start": 5, "uuid": 0}),
        ("start 5 right uuid", {"start": 5} | right),
        ("start 20 > high seqno 10, right uuid", {"start": 20} | right),
        ("start 20 wrong uuid", {"start": 20, "uuid": 0x99}),
        ("start 0 wrong uuid (no strict)", {"start": 0, "uuid": 0x1234}),
        ("start 0 wrong uuid STRICT", {"start": 0, "uuid": 0x1234, "flags": 32}),
        ("start 0 uuid 0 STRICT", {"start": 0, "uuid": 0, "flags": 32}),
        ("start 0 right uuid STRICT", {"start": 0, "flags": 32} | right),
        ("start 5 snap [5,20]", {"start": 5, "ss": 5, "se": 20} | right),
        ("start 10 snap [8,20]", {"start": 10, "ss": 8, "se": 20} | right),
        ("start 8 snap [8,20]", {"start": 8, "ss": 8, "se": 20} | right),
    )
    try_rollback(run, "rb", vb, cases, 0.4)


def rollback_two_branches(run, vb, old_uuid, new_uuid):
    """The history branched at seqno 10; high seqno 15."""
    old, new = {"uuid": old_uuid}, {"uuid": new_uuid}
    cases = (
        ("old uuid, start 8 (before the branch)", {"start": 8} | old),
        ("old uuid, start 10 (at the branch)", {"start": 10} | old),
        ("old uuid, start 12 snap [12,12]", {"start": 12} | old),
        ("old uuid, start 12 snap [9,12]", {"start": 12, "ss": 9, "se": 12} | old),
        ("old uuid, start 12 snap [12,14]", {"start": 12, "ss": 12, "se": 14} | old),
        ("old uuid, start 9 snap [8,12]", {"start": 9, "ss": 8, "se": 12} | old),
        ("new uuid, start 8 (older than the entry)", {"start": 8} | new),
        ("new uuid, start 13", {"start": 13} | new),
        ("new uuid start 15=high", {"start": 15} | new),
        ("new uuid start 16 > high", {"start": 16} | new),
        ("old uuid start 10 snap [10,12]", {"start": 10, "ss": 10, "se": 12} | old),
        ("old uuid start 7 snap[7,12]", {"start": 7, "ss": 7, "se": 12} | old),
    )
    try_rollback(run, "rb", vb, cases, 0.4)


@scenario(first_vb=520)
def s15_close_stream(run):
    """CLOSE_STREAM, with and without a STREAM_END for it."""
    admin = run.admin()
    vb = run.fresh_vb(admin)
    set_docs(admin, vb, 3)
    for ctl in ((), (("send_stream_end_on_client_close_stream", "true"),)):
        run.note(f"controls: {ctl}")
        conn = run.dcp("cs", 1, ctl=ctl)
        opaque = conn.stream_request(vb).opaque
        conn.recv_all(0.4)
        conn.close_stream(vb, note="close")
        conn.recv_all(0.6)
        conn.close_stream(vb, note="close twice")
        conn.recv_all(0.3)
        conn.close_stream(vb + 500, note="close a vb without stream")
        conn.close_stream(1024, note="close vb 1024")
        reopen_and_close(run, conn, vb, opaque)


def reopen_and_close(run, conn, vb, opaque):
    """A second stream, closed by odd packets; a third one closed after its end."""
    conn.read_stream(vb, 0.4, note="re-open after close")
    conn.close_stream(vb, ext=b"\0\0\0\0", note="extras")
    conn.close_stream(vb, key="k", note="key")
    conn.close_stream(vb, opaque=opaque, note="with the opaque of the first stream")
    conn.recv_all(0.4)
    run.note("close a finished stream")
    conn.read_stream(vb, 0.5, end=2)
    conn.close_stream(vb, note="close after STREAM_END")
    conn.recv_all(0.3)
    conn.close()


@scenario(first_vb=940)
def s26_many_vbs_and_priority(run):
    """Several vbuckets on one connection, requests sent together."""
    admin = run.admin()
    vbs = [run.new_vb() for _ in range(4)]
    for vb in vbs:
        fresh_vb(admin, vb)
        set_docs(admin, vb, 3, value=b"v%d" % vb)
    conn = run.dcp("multi", 1)
    request_together(conn, vbs, 0x100, end=3)
    run.note("disk-only, several vbs")
    for vb in vbs:
        persist(admin, vb)
    conn = run.dcp("multi2", 1, ctl=[("backfill_order", "sequential")])
    request_together(conn, vbs, 0x200, flags=2)


def request_together(conn, vbs, first_opaque, **fields):
    """A STREAM_REQ for each vbucket without waiting in between."""
    extras = stream_request_extras(**fields)
    for opaque, vb in enumerate(vbs, first_opaque):
        conn.send(packet(Op.DCP_STREAM_REQ, ext=extras, vb=vb, opaque=opaque))
    conn.recv_all(1.0)
    conn.close()


@scenario(first_vb=1100)
def s32_purge_rollback(run):
    """Streams that start below the purge seqno."""
    admin = run.admin()
    vb = 902
    fresh_vb(admin, vb)
    set_docs(admin, vb, 6)
    for index in range(4):
        delete_doc(admin, f"k{index}", vb)
    set_doc(admin, "last", b"v", vb)
    persist(admin, vb)
    uuid = failover_log(admin, vb)[0][0]
    run.note("before the purge: seqnos 1..11, tombstones 7..10")
    run.stream_once("pg0", vb, flags=2)
    purge(run, admin, vb)
    new_checkpoint(admin, vb)
    run.sleep(1.0)
    right = {"uuid": uuid}
    cases = (
        ("start 0 after the purge", {"start": 0}),
        ("start 0, DISKONLY", {"start": 0, "flags": 2}),
        ("start 3 < purge seqno, right uuid", {"start": 3} | right),
        ("start 3, IGNORE_PURGED_TOMBSTONES", {"start": 3, "flags": 128} | right),
        ("start 10 = purge seqno", {"start": 10} | right),
        ("start 11 = high", {"start": 11} | right),
        ("start 3 wrong uuid with 128", {"start": 3, "uuid": 0x99, "flags": 128}),
    )
    try_rollback(run, "pg", vb, cases, 0.7)


def purge(run, admin, vb):
    """COMPACT_DB with drop_deletes."""
    extras = struct.pack(">QQBBHI", 0x7FFFFFFF, 0x7FFFFFFF, 1, 0, 0, 0)
    admin.optional(Op.COMPACT_DB, ext=extras, vb=vb, timeout=20)
    run.sleep(1.0)
    admin.stats(f"vbucket-details {vb}")
