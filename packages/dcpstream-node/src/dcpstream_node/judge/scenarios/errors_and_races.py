"""Stream request errors, state changes, stream ids, races, idle time-outs, v7 status codes."""

import random  # noqa: TID251 - a fixed seed

from dcpstream_node.judge.packets import MAX_SEQNO, Op, packet, stream_request_extras
from dcpstream_node.judge.scenarios.kit import (
    BASE,
    COLLECTIONS,
    DEAD,
    PENDING,
    REPLICA,
    Peer,
    activate,
    buffer_ack,
    delete_vb,
    failover_log,
    frames_size,
    fresh_vb,
    mutation_extras,
    scenario,
    set_doc,
    set_docs,
    set_vb,
    u32,
    vb_stat,
    vb_state,
)

MIB = 1 << 20
CLOSE_STREAM_END = ("send_stream_end_on_client_close_stream", "true")


@scenario(first_vb=400)
def s11_stream_req_errors(run):
    """STREAM_REQ: everything that can be wrong with it."""
    admin = run.admin()
    vb = run.fresh_vb(admin)
    set_docs(admin, vb, 5)
    uuid = failover_log(admin, vb)[0][0]
    wrong_ranges_and_flags(run, vb, uuid)
    odd_packets(run, vb)
    filters(run, vb)
    duplicates(run, vb, uuid)
    other_states(run, admin)
    run.note("STREAM_REQ with opaque 0 and 0xffffffff")
    conn = run.dcp("opq", 1)
    for opaque in (0, 0xFFFFFFFF):
        fields = {"ext": stream_request_extras(end=2), "opaque": opaque}
        conn.cmd(Op.DCP_STREAM_REQ, vb=vb, **fields)
        conn.recv_all(0.4)
    conn.close()
    run.note("before DCP_OPEN")
    conn = run.plain(COLLECTIONS)
    conn.stream_request(vb)
    conn.close()


def request_once(run, note, vb, features=BASE, val=b"", **fields):
    """One STREAM_REQ on a connection of its own."""
    run.stream_once("se", vb, 1, features, idle=0.3, val=val, note=note, **fields)


def wrong_ranges_and_flags(run, vb, uuid):
    """Seqnos, snapshots, vbuckets and flags."""
    right = {"uuid": uuid}
    top = {"start": MAX_SEQNO, "end": MAX_SEQNO, "ss": MAX_SEQNO, "se": MAX_SEQNO}
    for note, fields in (
        ("start 5 > end 3", {"start": 5, "end": 3} | right),
        ("snap_start 4 > start 3", {"start": 3, "ss": 4, "se": 5} | right),
        ("snap_end 2 < start 3", {"start": 3, "ss": 1, "se": 2} | right),
        ("start 0 snap [0,5]", {"start": 0, "ss": 0, "se": 5}),
        ("start 0 snap [1,5]", {"start": 0, "ss": 1, "se": 5}),
        ("start max end max", top | right),
    ):
        request_once(run, note, vb, **fields)
    request_once(run, "vb 1024 (out of range)", 1024)
    request_once(run, "vb 65535", 65535)
    request_once(run, "reserved field = 7", vb, res=7)
    for flags in (0x40, 8, 0x100, 0x80000000, 16, 128, 3):
        request_once(run, f"flags 0x{flags:x}", vb, flags=flags)


def odd_packets(run, vb):
    """Extras, key, value, datatype, cas; and a consumer connection."""
    extras = stream_request_extras()
    for note, fields in (
        ("extras 47", {"ext": b"\0" * 47}),
        ("extras 0", {}),
        ("extras 49", {"ext": b"\0" * 49}),
        ("with key", {"ext": extras, "key": "k"}),
        ("value without Collections", {"ext": extras, "val": b'{"uid":"0"}'}),
        ("datatype=1", {"ext": extras, "dt": 1}),
        ("cas=7", {"ext": extras, "cas": 7}),
    ):
        conn = run.dcp("se", 1)
        conn.cmd(Op.DCP_STREAM_REQ, note=note, vb=vb, **fields)
        conn.recv_all(0.3)
        conn.close()
    conn = run.dcp("se", 0)
    conn.recv_all(0.05, 0.2)
    conn.read_stream(vb, 0.3, note="sent to a consumer")
    conn.close()


def filters(run, vb):
    """Values of the request, with Collections negotiated."""
    run.note("value (stream filter) with Collections negotiated")
    for value in (
        b"{}",
        b"garbage",
        b'{"collections":["0"]}',
        b'{"collections":["99"]}',
        b'{"collections":[0]}',
        b'{"collections":[]}',
        b'{"uid":"0"}',
        b'{"uid":"5"}',
        b'{"uid":5}',
        b'{"scope":"0"}',
        b'{"scope":"99"}',
        b'{"sid":1}',
        b'{"foo":1}',
        b'{"collections":["zz"]}',
        b"[]",
        b'{"scope":"0","collections":["0"]}',
    ):
        request_once(run, f"filter value {value!r}", vb, COLLECTIONS, value)


def duplicates(run, vb, uuid):
    """The same vbucket twice, and again after its end."""
    run.note("duplicate stream")
    conn = run.dcp("dup", 1)
    conn.read_stream(vb, 0.3)
    conn.stream_request(vb, note="duplicate")
    conn.read_stream(vb, 0.3, start=5, uuid=uuid, note="duplicate, other start")
    conn.close()
    run.note("after the first one ended: reopen")
    conn = run.dcp("dup2", 1)
    conn.read_stream(vb, 0.5, end=5)
    conn.read_stream(vb, 0.3, note="again after STREAM_END")
    conn.close()


def other_states(run, admin):
    """Vbuckets that are not active."""
    run.note("states: replica/pending/dead")
    vb = run.new_vb()
    for state, name in ((REPLICA, "replica"), (PENDING, "pending"), (DEAD, "dead")):
        fresh_vb(admin, vb, state)
        request_once(run, f"vb state {name}", vb)
        request_once(run, f"vb state {name} ACTIVE_ONLY", vb, flags=16)
        request_once(run, f"vb state {name} takeover", vb, flags=1)
    set_vb(admin, vb, DEAD)
    delete_vb(admin, vb)
    run.sleep(0.3)
    request_once(run, "deleted vb", vb)
    activate(admin, vb)


@scenario(first_vb=550)
def s16_state_change_end(run):
    """The vbucket changes its state under a stream."""
    admin = run.admin()
    vb = run.new_vb()
    for state in (REPLICA, PENDING, DEAD, 1):
        conn = open_stream(run, admin, vb)
        run.note(f"SET_VBUCKET -> {state}")
        set_vb(admin, vb, state, [["active"]] if state == 1 else None)
        conn.recv_all(0.8)
        conn.close_stream(vb, note="CLOSE_STREAM after the state change")
        conn.close()
    conn = open_stream(run, admin, vb)
    run.note("DEL_VBUCKET")
    set_vb(admin, vb, DEAD)
    delete_vb(admin, vb)
    conn.recv_all(0.8)
    conn.close()
    run.note("replica stream stays on replica->active?")
    fresh_vb(admin, vb, REPLICA)
    conn = run.dcp("st", 1)
    conn.read_stream(vb, 0.4)
    activate(admin, vb)
    conn.recv_all(0.6)
    set_doc(admin, "k", b"v", vb)
    conn.recv_all(0.5)
    conn.close()


def open_stream(run, admin, vb):
    """A fresh vbucket with one document, and a stream of it."""
    fresh_vb(admin, vb)
    set_doc(admin, "k", b"v", vb)
    conn = run.dcp("st", 1)
    conn.read_stream(vb, 0.4)
    return conn


def sid_frame(stream_id):
    """The framing extra with a stream id."""
    return bytes([0x22]) + stream_id.to_bytes(2, "big")


@scenario(first_vb=790)
def s24_stream_id(run):
    """Several streams of one vbucket, distinguished by stream ids."""
    admin = run.admin()
    vb = run.fresh_vb(admin)
    set_docs(admin, vb, 3)
    conn = run.dcp("sid", 1, COLLECTIONS)
    conn.control("enable_stream_id", "true")
    open_stream_ids(conn, vb)
    set_doc(admin, "live", b"v", vb)
    conn.recv_all(0.5)
    conn.close_stream(vb, note="CLOSE without sid frame")
    conn.close_stream(vb, fr=sid_frame(1), note="CLOSE sid 1")
    conn.close_stream(vb, fr=sid_frame(1), note="CLOSE sid 1 twice")
    conn.close_stream(vb, fr=sid_frame(9), note="CLOSE sid 9 unknown")
    set_doc(admin, "live2", b"v", vb)
    conn.recv_all(0.5)
    set_vb(admin, vb, REPLICA)
    conn.recv_all(0.6)
    conn.close()
    run.note("sid without enable_stream_id")
    activate(admin, vb)
    conn = run.dcp("sid2", 1, COLLECTIONS)
    conn.stream_request(vb, val=b'{"sid":1}')
    conn.close()
    run.note("enable_stream_id without Collections HELLO")
    conn = run.dcp("sid3", 1, BASE)
    conn.control("enable_stream_id", "true")
    conn.stream_request(vb)
    conn.close()
    run.note("enable_stream_id + send_stream_end_on_client_close")
    controls = [("enable_stream_id", "true"), CLOSE_STREAM_END]
    conn = run.dcp("sid4", 1, COLLECTIONS, ctl=controls)
    conn.read_stream(vb, 0.5, val=b'{"sid":7}')
    conn.close_stream(vb, fr=sid_frame(7))
    conn.recv_all(0.5)
    conn.close()


def open_stream_ids(conn, vb):
    """Right and wrong stream ids."""
    conn.stream_request(vb, note="no sid given")
    for value, note in ((b'{"sid":1}', "sid as number"), (b'{"sid":"2"}', "sid as string"), (b'{"sid":2}', "sid 2")):
        conn.read_stream(vb, 0.5, val=value, note=note)
    conn.stream_request(vb, val=b'{"sid":2}', note="duplicate sid 2")
    conn.stream_request(vb, val=b'{"sid":0}', note="sid 0")
    conn.read_stream(vb, 0.3, val=b'{"sid":65536}', note="sid 65536")


@scenario(first_vb=970)
def s27_cursor_and_quit(run):
    """Reconnecting under the same name, QUIT, a large value."""
    run.note("disconnect with open streams, reconnect under the same name")
    admin = run.admin()
    vb = run.fresh_vb(admin)
    set_doc(admin, "k", b"v", vb)
    run.stream_once("rc", vb, 1, idle=0.3)
    conn = run.dcp("rc", 1)
    conn.read_stream(vb, 0.4)
    conn.cmd(Op.QUIT, note="QUIT", timeout=1)
    conn.recv(1)
    conn.close()
    run.note("large value")
    set_doc(admin, "big", random.Random(1).randbytes(3000), vb)
    run.stream_once("rc2", vb, 1, idle=0.5)


@scenario(first_vb=910)
def s30_v7_status_codes(run):
    """The newer status codes, on producer and consumer."""
    admin = run.admin()
    vb = run.fresh_vb(admin)
    for controls in ([], [("v7_dcp_status_codes", "true")]):
        run.note(f"producer, controls {controls}")
        conn = run.dcp("v7", 1, ctl=controls)
        conn.close_stream(vb, note="CLOSE_STREAM without a stream")
        conn.stream_request(vb)
        conn.read_stream(vb, 0.3, note="duplicate")
        conn.close_stream(vb)
        conn.close_stream(vb, note="close twice")
        conn.close()
    for status in (0, 4):
        run.note(f"consumer, peer answers v7_dcp_status_codes with {status}")
        consumer_statuses(run, admin, status)


def consumer_statuses(run, admin, status):
    """Wrong opaques and vbuckets on a consumer."""
    vb = run.fresh_vb(admin, REPLICA)
    peer = Peer(run, "v7c", overrides={"v7_dcp_status_codes": status})
    peer.pump(0.2, 1)
    peer.add(vb)
    peer.mutation(vb, "a", 1, cas=9, opaque=0x999, note="wrong opaque")
    peer.pump(0.4, 1)
    peer.mutation(vb + 1, "a", 1, cas=9, note="vb without a stream")
    peer.pump(0.4, 1)
    end, state = Op.DCP_STREAM_END, Op.DCP_SET_VBUCKET_STATE
    peer.send(end, "STREAM_END vb without a stream", ext=u32(0), vb=vb + 1)
    peer.pump(0.4, 1)
    peer.send(end, "STREAM_END wrong opaque", ext=u32(0), vb=vb, opaque=0x777)
    peer.pump(0.4, 1)
    peer.send(state, "state, wrong opaque", ext=b"\2", vb=vb, opaque=0x777)
    peer.pump(0.4, 1)
    note = "CLOSE_STREAM vb without a stream"
    peer.conn.close_stream(vb + 1, note=note, timeout=1)
    peer.add(vb, note="ADD_STREAM duplicate")
    peer.close()


def set_idle_timeout(admin, seconds):
    """SET_PARAM dcp_idle_timeout."""
    fields = {"key": "dcp_idle_timeout", "ext": u32(4), "val": str(seconds)}
    admin.optional(Op.SET_PARAM, **fields)


def wait_closed(conn, seconds):
    """Read until the server closes, or the time is over."""
    end = conn.now() + seconds
    while conn.now() < end and not conn.closed:
        conn.recv(0.5)


@scenario(first_vb=1100)
def s31_idle_timeout(run):
    """Silent connections that are closed after the idle timeout of 3 s, and others."""
    admin = run.admin()
    set_idle_timeout(admin, 3)
    noop = [("set_noop_interval", "1"), ("enable_noop", "true")]
    for note, name, flags, controls, seconds in (
        ("producer, NOOP enabled, never answered", "it1", 1, noop, 10),
        ("producer, NOOP not enabled, silent", "it2", 1, [], 7),
        ("consumer, silent peer", "it3", 0, [], 10),
    ):
        run.note(note)
        conn = run.dcp(name, flags, ctl=controls)
        wait_closed(conn, seconds)
        conn.close()
    run.note("consumer with a stream, peer silent after accepting")
    peer = peer_with_stream(run, admin, "it4", 900)
    wait_closed(peer.conn, 12)
    peer.close()
    run.note("consumer with a stream, peer sends DCP_NOOP")
    peer = peer_with_stream(run, admin, "it5", 901)
    for opaque in range(0x51, 0x5A):
        if not peer.conn.closed:
            peer.conn.send(packet(Op.DCP_NOOP, opaque=opaque))
            peer.conn.recv(1)
            run.sleep(0.5)
    peer.close()
    set_idle_timeout(admin, 360)


def peer_with_stream(run, admin, name, vb):
    """A peer whose stream the server accepted."""
    fresh_vb(admin, vb, REPLICA)
    peer = Peer(run, name)
    peer.pump(0.3, 1)
    peer.add(vb)
    return peer


@scenario(first_vb=1100)
def s35_add_stream_flags(run):
    """ADD_STREAM flags, other states, resuming, flow control of a consumer."""
    admin = run.admin()
    vb = 904
    for flags in (0, 1, 2, 4, 16, 32, 128, 6, 255):
        fresh_vb(admin, vb, REPLICA)
        peer = Peer(run, f"af{flags}")
        peer.pump(0.2, 1)
        peer.add(vb, flags=flags, accept=False, note=f"ADD_STREAM flags={flags}")
        peer.pump(0.2, 0.5)
        peer.close()
    pending_becomes_active(run, admin, vb)
    partial_snapshot(run, admin, vb)
    consumer_acks(run, admin, vb)


def pending_becomes_active(run, admin, vb):
    """A disk snapshot into a pending vbucket, which then becomes active."""
    run.note("consumer vb in pending state")
    fresh_vb(admin, vb, PENDING)
    peer = Peer(run, "afp")
    peer.pump(0.2, 1)
    peer.add(vb)
    peer.marker(vb, 0, 2, 2 | 4, note="DISK|CHK snapshot")
    for seqno in (1, 2):
        peer.mutation(vb, f"p{seqno}", seqno, cas=50 + seqno)
    peer.pump(0.8, 2)
    vb_state(admin, vb)
    vb_stat(admin, "vbucket-seqno", vb, "high_seqno")
    run.note("its vb becomes active by SET_VBUCKET")
    activate(admin, vb)
    peer.pump(1.0, 3)
    peer.mutation(vb, "p3", 3, cas=53, note="mutation after the vb went active")
    peer.pump(0.8, 2)
    peer.close()


def partial_snapshot(run, admin, vb):
    """Disconnect within a snapshot, and add the stream again."""
    run.note("partial snapshot then disconnect, re-add: which STREAM_REQ?")
    fresh_vb(admin, vb, REPLICA)
    peer = Peer(run, "afq")
    peer.pump(0.2, 1)
    peer.add(vb)
    peer.marker(vb, 1, 10)
    for seqno in (1, 2, 3):
        peer.mutation(vb, f"q{seqno}", seqno, cas=50 + seqno)
    peer.pump(0.5, 1)
    peer.close()
    run.sleep(0.3)
    peer = Peer(run, "afq2")
    peer.pump(0.2, 1)
    peer.add(vb, accept=False, note="re-add after 3 of 10 items of a snapshot")
    peer.close()


def consumer_acks(run, admin, vb):
    """Twelve mutations of 1 MiB: the consumer acknowledges."""
    run.note("BUFFER_ACK from the consumer")
    fresh_vb(admin, vb, REPLICA)
    peer = Peer(run, "afr")
    peer.pump(0.2, 1)
    peer.add(vb)
    count = 12
    peer.marker(vb, 1, count)
    for seqno in range(1, count + 1):
        fields = {"val": b"x" * MIB, "cas": 50 + seqno}
        peer.mutation(vb, f"big{seqno}", seqno, ext=mutation_extras(seqno), **fields)
    peer.pump(2.0, 8)
    peer.close()


@scenario(first_vb=1100)
def s36_reopen_races(run):
    """Requests sent together; closing and NOOP while flow control blocks."""
    admin = run.admin()
    vb = 905
    fresh_vb(admin, vb)
    set_docs(admin, vb, 5)
    for name, controls in (("rr", []), ("rr2", [CLOSE_STREAM_END])):
        run.note(f"STREAM_REQ, CLOSE_STREAM, STREAM_REQ in one write {controls}")
        conn = run.dcp(name, 1, ctl=controls)
        conn.send(three_requests(vb), note="3 requests")
        conn.recv_all(0.8)
        conn.close()
    close_while_blocked(run, vb)
    run.note("NOOP while blocked by flow control")
    controls = [("set_noop_interval", "1"), ("enable_noop", "true")]
    conn = run.dcp("rr4", 1, ctl=[*controls, ("connection_buffer_size", "100")])
    conn.stream_request(vb)
    conn.recv_all(2.6, 6)
    conn.close()
    run.note("STREAM_REQ end == high (5) then more data: one stream per end")
    conn = run.dcp("rr5", 1)
    uuid = failover_log(admin, vb)[0][0]
    conn.read_stream(vb, 0.4, end=5)
    set_doc(admin, "k9", b"v", vb)
    conn.read_stream(vb, 0.5, start=5, end=6, uuid=uuid)
    conn.close()


def three_requests(vb):
    """Open, close, open."""
    extras = stream_request_extras()
    return (
        packet(Op.DCP_STREAM_REQ, ext=extras, vb=vb, opaque=0x11)
        + packet(Op.DCP_CLOSE_STREAM, vb=vb, opaque=0x12)
        + packet(Op.DCP_STREAM_REQ, ext=extras, vb=vb, opaque=0x13)
    )


def close_while_blocked(run, vb):
    """CLOSE_STREAM while the buffer is full, then the acknowledgement."""
    run.note("close while blocked by flow control, then ack")
    controls = [("connection_buffer_size", "150"), CLOSE_STREAM_END]
    conn = run.dcp("rr3", 1, ctl=controls)
    conn.stream_request(vb)
    frames = conn.recv_all(0.6)
    conn.close_stream(vb)
    conn.recv_all(0.5)
    buffer_ack(conn, frames_size(frames), opaque=9)
    conn.recv_all(0.6)
    conn.close()
