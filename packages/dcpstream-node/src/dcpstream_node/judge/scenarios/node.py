"""The node around the streams: stats, malformed packets, collections, buckets."""

import json
import struct

from dcpstream_node.judge.packets import Op, Status, packet
from dcpstream_node.judge.scenarios.kit import (
    BASE,
    COLLECTIONS,
    REPLICA,
    Peer,
    activate,
    fresh_vb,
    new_checkpoint,
    permitted,
    persist,
    scenario,
    set_doc,
    set_docs,
)

MIB = 1 << 20


@scenario(first_vb=730)
def s22_stats(run):
    """STAT groups; what counts is which keys there are."""
    conn = run.session("stats")
    vb = run.new_vb()
    admin = run.admin()
    fresh_vb(admin, vb)
    for index in range(5):
        set_doc(admin, f"k{index}", b"v", vb)
    controls = [("connection_buffer_size", "10000"), ("enable_noop", "true")]
    producer = run.dcp("stats-prod", 1, ctl=controls)
    producer.read_stream(vb, 0.4)
    peer = Peer(run, "stats-cons")
    peer.pump(0.4, 2)
    replica = run.fresh_vb(admin, REPLICA)
    peer.add(replica)
    peer.pump(0.3, 1)
    for group in (
        "dcp",
        "dcpagg :",
        f"vbucket-seqno {vb}",
        f"failovers {vb}",
        f"vbucket-details {vb}",
        f"checkpoint {vb}",
        f"dcp-vbtakeover {vb} stats-prod",
        "diskinfo",
        f"hash {vb}",
    ):
        read_group(conn, group)
    producer.close()
    peer.close()


def read_group(conn, group):
    """One STAT request and all its answers."""
    conn.send(packet(Op.STAT, key=group, opaque=conn.next_opaque()))
    while True:
        frame = conn.recv(3)
        if frame is None or not frame.key:
            break


@scenario(first_vb=760)
def s23_malformed(run):
    """Packets that no client should send."""
    run.admin()
    noop = packet(Op.DCP_NOOP)
    control = {"key": "enable_noop", "val": "true"}
    send_odd(run, "magic 0x00", b"\0" + noop[1:])
    send_odd(run, "magic 0x82", b"\x82" + noop[1:])
    answer = packet(Op.DCP_STREAM_REQ, magic=0x81, opaque=5)
    send_odd(run, "magic 0x81 (response) for an unknown opaque", answer)
    send_odd(run, "opcode 0x66 unassigned", packet(0x66))
    send_odd(run, "opcode 0xee", packet(0xEE))
    send_odd(run, "opcode 0x5a DCP_FLUSH", packet(Op.DCP_FLUSH))
    too_long = packet(Op.DCP_CONTROL, extlen=200, **control)
    send_odd(run, "extlen > bodylen", too_long)
    too_long = packet(Op.DCP_CONTROL, keylen=2000, **control)
    send_odd(run, "keylen > bodylen", too_long)
    send_lying_lengths(run)
    send_framing(run)
    for op in range(0x50, 0x66):
        send_odd(run, f"bare opcode 0x{op:x} on a producer", packet(op), wait=0.4)
    for op in range(0x50, 0x66):
        note = f"bare opcode 0x{op:x} on a non-DCP connection"
        send_odd(run, note, packet(op), producer=False, wait=0.4)
    log = Op.DCP_GET_FAILOVER_LOG
    send_odd(run, "non-empty datatype on NOOP", packet(Op.DCP_NOOP, dt=1))
    send_odd(run, "datatype 0xff", packet(log, dt=0xFF))
    send_odd(run, "unnegotiated datatype", packet(log, dt=2))
    send_odd(run, 'ascii "stats\\r\\n"', b"stats\r\n" + b" " * 20)


def send_odd(run, note, raw, producer=True, wait=1.0):
    """Send bytes on a new connection and see whether it lives on."""
    conn = run.dcp("mal", 1) if producer else run.plain(COLLECTIONS)
    conn.send(raw, note=note)
    conn.recv_all(wait, wait + 0.2)
    if not conn.closed:
        conn.cmd(Op.NOOP, note="plain NOOP: is the connection alive?", timeout=1)
    conn.close()


def send_lying_lengths(run):
    """Lengths that are not those of the packet."""
    control = Op.DCP_CONTROL
    raw = packet(Op.DCP_BUFFER_ACK, ext=b"\0\0\0\1", bodylen=0)
    note = "bodylen 0 but extras given (next bytes parsed as header)"
    send_odd(run, note, raw, wait=1.5)
    raw = packet(control, key="enable_noop", bodylen=21 * MIB)
    send_odd(run, "bodylen 21 MiB (header only)", raw)
    send_odd(run, "bodylen 0xffffffff", packet(control, bodylen=0xFFFFFFFF))
    send_odd(run, "bodylen 30 MiB", packet(Op.SET, bodylen=30 * MIB))
    half = packet(Op.DCP_NOOP)[:10]
    send_odd(run, "half a header then nothing", half, wait=2)


def send_framing(run):
    """Several packets in a segment, a second DCP_OPEN, framing extras."""
    log = Op.DCP_GET_FAILOVER_LOG
    raw = packet(Op.DCP_CONTROL, key="enable_noop", val="true", opaque=1)
    raw += packet(Op.DCP_CONTROL, key="set_priority", val="high", opaque=2)
    raw += packet(log, opaque=3)
    send_odd(run, "three commands pipelined in one segment", raw)
    again = packet(Op.DCP_OPEN, ext=b"\0" * 8)
    send_odd(run, "DCP_OPEN without a name on an open connection", again)
    raw = packet(log, fr=bytes([0xF1, 0, 0]))
    send_odd(run, "framing-extras request with unknown frame id", raw)
    raw = packet(Op.DCP_CLOSE_STREAM, fr=bytes([0x22, 0, 1]))
    send_odd(run, "stream-id frame, not enabled: CLOSE_STREAM", raw)


DEFAULT_COLLECTION = {"name": "_default", "uid": "0"}
DEFAULT_SCOPE = {"name": "_default", "uid": "0", "collections": [DEFAULT_COLLECTION]}
FRUIT = {"name": "fruit", "uid": "8"}
VEG_SCOPE = {"name": "s1", "uid": "9", "collections": [{"name": "veg", "uid": "a", "maxTTL": 100}]}
OSO = "enable_out_of_order_snapshots"
FLATBUFFERS = ("flatbuffers_system_events", "true")
ONLY_FRUIT = b'{"collections":["8"]}'


class Manifest:
    """The bucket's manifest; each change counts its uid up."""

    def __init__(self, admin):
        self.admin = admin
        answer = admin.cmd(Op.COLLECTIONS_GET_MANIFEST)
        self.uid = int(json.loads(answer.value)["uid"], 16)

    def set(self, *scopes):
        """Install scopes."""
        self.uid += 1
        value = json.dumps({"uid": f"{self.uid:x}", "scopes": scopes})
        answer = self.admin.cmd(Op.COLLECTIONS_SET_MANIFEST, val=value)
        return permitted(self.admin, answer, "COLLECTIONS_SET_MANIFEST")


@scenario(first_vb=820)
def s25_collections_oso(run):
    """Collections: system events, filters, out-of-order snapshots."""
    admin = run.admin()
    vb = run.fresh_vb(admin)
    manifest = Manifest(admin)
    conn = run.dcp("colE", 1, COLLECTIONS)
    conn.stream_request(vb, val=b"{}", note="filter {} is refused")
    conn.close()
    watchers = open_watchers(run, vb)
    default = DEFAULT_SCOPE | {"collections": [DEFAULT_COLLECTION, FRUIT]}
    manifest.set(default, VEG_SCOPE)
    watch(watchers, 0.5)
    for index in range(3):
        set_doc(admin, f"ap{index}", b"v", vb, coll=8)
        set_doc(admin, f"ca{index}", b"v", vb, coll=0xA)
    set_doc(admin, "plain", b"v", vb)
    watch(watchers, 0.5)
    filtered_streams(run, vb, manifest.uid)
    settle(run, admin, vb)
    out_of_order(run, admin, vb)
    filtered_from_disk(run, admin, vb)
    drop_collections(run, vb, manifest, watchers)


def open_watchers(run, vb):
    """Streams of everything: plain, with flatbuffers events, without HELLO."""
    every = run.dcp("colA", 1, COLLECTIONS)
    every.read_stream(vb, 0.4, note="no value = everything")
    flat = run.dcp("colFB", 1, COLLECTIONS, ctl=[FLATBUFFERS])
    flat.read_stream(vb, 0.3)
    legacy = run.dcp("colLegacy", 1, BASE)
    legacy.read_stream(vb, 0.3, note="no Collections HELLO")
    return [every, flat, legacy]


def watch(watchers, idle):
    """Read what the open streams bring."""
    for conn in watchers:
        conn.recv_all(idle)


def filter_once(run, name, vb, value, ctl=(), idle=0.8, note=""):
    """One stream with a filter."""
    run.stream_once(name, vb, 1, COLLECTIONS, ctl=ctl, idle=idle, val=value, note=note)


def filtered_streams(run, vb, uid):
    """Filters by collection, scope and manifest uid."""
    run.note("filtered streams")
    for value in (
        ONLY_FRUIT,
        b'{"collections":["8","a"]}',
        b'{"scope":"9"}',
        b'{"collections":["0"]}',
        b'{"uid":"%x"}' % uid,
        b'{"uid":"%x"}' % (uid + 5),
        b'{"collections":["8"],"uid":"%x"}' % uid,
        b"",
    ):
        filter_once(run, "colF", vb, value, idle=0.5)


def settle(run, admin, vb):
    """On disk, and out of memory."""
    persist(admin, vb)
    new_checkpoint(admin, vb)
    run.sleep(1.2)


def set_oso(admin, value):
    """SET_PARAM dcp_oso_backfill; by default tiny collections do not use it."""
    extras = struct.pack(">I", 4)
    admin.optional(Op.SET_PARAM, key="dcp_oso_backfill", ext=extras, val=value)


def out_of_order(run, admin, vb):
    """Out-of-order snapshots, only for one collection from disk."""
    set_oso(admin, "enabled")
    run.note("OSO: one collection, from disk")
    for value in ("true", "true_with_seqno_advanced"):
        conn = run.dcp("oso", 1, COLLECTIONS, ctl=[(OSO, value)])
        conn.read_stream(vb, 1.0, val=ONLY_FRUIT)
        set_doc(admin, "more", b"v", vb)
        set_doc(admin, "apx", b"v", vb, coll=8)
        conn.recv_all(0.6)
        conn.close()
        settle(run, admin, vb)
    on = [(OSO, "true")]
    run.note("no OSO for unfiltered")
    filter_once(run, "oso2", vb, b"", on)
    run.note("OSO with two collections")
    filter_once(run, "oso3", vb, b'{"collections":["8","a"]}', on)
    run.note("OSO + flatbuffers")
    filter_once(run, "oso4", vb, ONLY_FRUIT, [*on, FLATBUFFERS])
    set_oso(admin, "auto")


def filtered_from_disk(run, admin, vb):
    """The messages of a filtered stream about seqnos that it leaves out."""
    run.note("filtered disk backfill: SEQNO_ADVANCED?")
    conn = run.dcp("sa", 1, COLLECTIONS)
    conn.read_stream(vb, 0.8, val=ONLY_FRUIT)
    set_doc(admin, "p2", b"v", vb)
    conn.recv_all(0.6)
    conn.close()
    run.note("with sync_writes, filtered")
    filter_once(run, "sa2", vb, ONLY_FRUIT, [("enable_sync_writes", "true")])


def drop_collections(run, vb, manifest, watchers):
    """Drop a collection, then a scope, while streams are open."""
    fruit = run.dcp("colDrop", 1, COLLECTIONS)
    fruit.read_stream(vb, 0.5, val=ONLY_FRUIT)
    run.note("drop collection 8")
    manifest.set(DEFAULT_SCOPE, VEG_SCOPE)
    watch([fruit, *watchers], 0.6)
    run.note("drop scope 9")
    manifest.set(DEFAULT_SCOPE)
    for conn in watchers:
        conn.recv_all(0.6)
        conn.close()
    fruit.close()
    conn = run.dcp("colGone", 1, COLLECTIONS)
    conn.stream_request(vb, val=ONLY_FRUIT, note="stream on dropped collection")
    conn.close()


BUCKET = "b2"
BUCKET_CONFIG = b"ep.so\0dbname=db/b2;max_size=104857600;max_vbuckets=64"


@scenario(first_vb=1100)
def s33_delete_bucket(run):
    """A bucket is deleted under open connections."""
    admin = run.admin(bucket=None)
    created = admin.cmd(Op.CREATE_BUCKET, key=BUCKET, val=BUCKET_CONFIG, timeout=30)
    permitted(admin, created, "CREATE_BUCKET")
    writer = run.admin(bucket=BUCKET, label="writer")
    activate(writer, 0)
    enable_traffic(run, writer)
    set_docs(writer, 0, 3)
    producer = open_in(run, "db-prod", 1)
    producer.read_stream(0, 0.4)
    consumer = open_in(run, "db-cons", 0)
    idle = open_in(run, "db-prod-nostream", 1)
    opaque = admin.next_opaque()
    raw = packet(Op.DELETE_BUCKET, key=BUCKET, val=b"force=false", opaque=opaque)
    admin.send(raw, "DELETE_BUCKET")
    producer.recv_all(1.0, 4)
    consumer.recv_all(0.5, 2)
    idle.recv_all(0.5, 2)
    admin.recv(20)


def enable_traffic(run, admin):
    """ENABLE_TRAFFIC, again until the bucket is warm."""
    with admin.marked(poll="enable traffic"):
        for _ in range(30):
            answer = admin.optional(Op.ENABLE_TRAFFIC)
            if answer is None or answer.status != Status.ETMPFAIL:
                break
            run.sleep(0.1)


def open_in(run, name, flags):
    """DCP_OPEN in the other bucket."""
    conn = run.session(name, bucket=BUCKET)
    conn.dcp_open(name, flags)
    return conn
