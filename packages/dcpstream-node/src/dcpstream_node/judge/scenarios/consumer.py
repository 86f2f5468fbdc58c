"""The node as a consumer, and takeover."""

import struct

from dcpstream_node.judge.packets import Op, Status, packet, response
from dcpstream_node.judge.scenarios.kit import (
    COLLECTIONS,
    DEAD,
    PENDING,
    REPLICA,
    Peer,
    delete_vb,
    doc_key,
    failover_log,
    fresh_vb,
    get_doc,
    marker_extras,
    mutation_extras,
    new_checkpoint,
    persist,
    scenario,
    set_doc,
    set_docs,
    set_vb,
    u32,
    vb_state,
)


@scenario(first_vb=640)
def s19_consumer(run):
    """A consumer's whole life: controls, stream, data, rollback, refusal."""
    admin = run.admin()
    vb = run.fresh_vb(admin, REPLICA)
    run.note("answer SUCCESS to every control; nothing else for some seconds")
    peer = Peer(run, "cons1")
    peer.pump(9, 9)
    peer.add(vb)
    peer.pump(0.5, 2)
    feed_replica(admin, peer, vb)
    change_state_by_stream(admin, peer, vb)
    peer.send(Op.DCP_STREAM_END, "STREAM_END ok", ext=u32(0), vb=vb)
    peer.pump(0.7, 2)
    peer.close()
    rolled_back(run, admin, vb)
    refused_streams(run, admin)
    run.note("accept with an empty failover log")
    peer = peer_with_fresh_vb(run, admin, "cons5")
    peer.add(run.last_vb, log=())
    peer.pump(0.7, 2)
    peer.close()
    run.note("rollback response without body")
    peer = peer_with_fresh_vb(run, admin, "cons6")
    peer.add(run.last_vb, accept=False)
    peer.answer_stream(status=Status.ROLLBACK)
    peer.pump(1.0, 3)
    peer.close()


def peer_with_fresh_vb(run, admin, name):
    """A peer, and a new replica vbucket for it."""
    fresh_vb(admin, run.new_vb(), REPLICA)
    peer = Peer(run, name)
    peer.pump(0.3, 2)
    return peer


def feed_replica(admin, peer, vb):
    """Mutations, a deletion, an expiration; then what the replica answers."""
    mutation(peer, vb, "c1", b"one", 1, first_marker=(1, 4))
    mutation(peer, vb, "c2", b'{"two":2}', 2, dt=1)
    later = mutation_extras(3, flags=0x55, exp=admin.unix() + 9999)
    mutation(peer, vb, "c3", b"three", 3, ext=later)
    mutation(peer, vb, "c1", b"one-b", 4, ext=mutation_extras(4, rev=2))
    peer.pump(0.7, 2)
    peer.marker(vb, 5, 6, 3)
    extras = struct.pack(">QQH", 5, 2, 0)
    fields = {"key": "c2", "ext": extras, "vb": vb, "cas": 0x2000}
    peer.send(Op.DCP_DELETION, "DELETION v1", **fields)
    mutation(peer, vb, "c4", b"four", 6)
    peer.pump(0.7, 2)
    peer.marker(vb, 7, 7)
    extras = struct.pack(">QQI", 7, 2, admin.unix())
    fields = {"key": "c3", "ext": extras, "vb": vb, "cas": 0x3000}
    peer.send(Op.DCP_EXPIRATION, "EXPIRATION", **fields)
    peer.pump(0.7, 2)
    admin.stats(f"vbucket-details {vb}")
    get_doc(admin, "c1", vb)
    admin.cmd(Op.GET_REPLICA, key=doc_key("c1"), vb=vb)
    for key in ("c2", "c3", "c4"):
        admin.cmd(Op.GET_META, key=doc_key(key), vb=vb)


def mutation(peer, vb, key, value, seqno, first_marker=None, **fields):
    """A mutation whose CAS follows from its seqno."""
    if first_marker:
        peer.marker(vb, *first_marker)
    peer.mutation(vb, key, seqno, val=value, cas=0x1000 + seqno, **fields)


def change_state_by_stream(admin, peer, vb):
    """SET_VBUCKET_STATE on the stream."""
    op = Op.DCP_SET_VBUCKET_STATE
    peer.send(op, "SET_VBUCKET_STATE replica", ext=b"\2", vb=vb)
    peer.pump(0.5, 1)
    peer.send(op, "SET_VBUCKET_STATE active", ext=b"\1", vb=vb)
    peer.pump(0.7, 2)
    get_doc(admin, "c1", vb)
    failover_log(admin, vb)


def rolled_back(run, admin, vb):
    """The producer asks for a rollback."""
    run.note("what STREAM_REQ is sent for a vb with data; then ROLLBACK to 3")
    set_vb(admin, vb, REPLICA)
    for name, seqno in (("cons2", 3), ("cons3", 0)):
        peer = Peer(run, name)
        peer.pump(0.5, 3)
        peer.add(vb, accept=False)
        fields = {"status": Status.ROLLBACK, "val": struct.pack(">Q", seqno)}
        peer.answer_stream(f"ROLLBACK to {seqno}", **fields)
        peer.pump(1.5, 6)
        if seqno:
            admin.stats(f"vbucket-seqno {vb}")
        peer.close()


def refused_streams(run, admin):
    """The producer refuses the stream."""
    run.note("STREAM_REQ refused: NMVB / EINVAL / ETMPFAIL / ERANGE / EEXISTS")
    for status in (7, 4, 0x86, 0x22, 0x02):
        peer = peer_with_fresh_vb(run, admin, "cons4")
        peer.add(run.last_vb, accept=False)
        note = f"refuse stream with {Status(status).name}"
        peer.answer_stream(note, status=status)
        peer.pump(1.0, 3)
        peer.close()


@scenario(first_vb=670)
def s20_consumer_errors(run):
    """Mistakes of the peer, one on each connection."""
    admin = run.admin()
    vb = run.fresh_vb(admin, REPLICA)
    add_stream_errors(run, admin, vb)
    run.note("ADD_STREAM sent to a PRODUCER")
    conn = run.dcp("cep", 1)
    fields = {"ext": u32(0), "vb": vb, "timeout": 2}
    conn.cmd(Op.DCP_ADD_STREAM, note="ADD_STREAM to a producer", **fields)
    conn.recv(1)
    conn.control("enable_noop", "true")
    conn.close()
    for note, steps in data_errors():
        feed(run, admin, note, steps)
    for note, steps in other_errors():
        feed(run, admin, note, steps)
    producer_messages_to_producer(run, vb)
    control_errors(run, admin, vb)
    other_consumers(run, admin, vb)


def add_stream_errors(run, admin, vb):
    """ADD_STREAM and CLOSE_STREAM with odd arguments."""
    peer = Peer(run, "ce1")
    peer.pump(0.4, 3)
    peer.add(vb)
    peer.add(vb, note="ADD_STREAM twice")
    peer.add(1024, note="ADD_STREAM vb 1024")
    other = run.new_vb()
    set_vb(admin, other, DEAD)
    delete_vb(admin, other)
    peer.add(other, note="ADD_STREAM deleted vb")
    fresh_vb(admin, other)
    peer.add(other, note="ADD_STREAM to an active vb")
    fresh_vb(admin, other, DEAD)
    peer.add(other, note="ADD_STREAM to a dead vb", accept=False)
    for fields in (
        {"note": "ADD_STREAM no extras"},
        {"note": "ADD_STREAM 8B extras", "ext": b"\0" * 8},
        {"note": "with key", "ext": b"\0" * 4, "key": "k"},
        {"note": "flag 8", "ext": u32(8)},
        {"note": "flag 0x40", "ext": u32(0x40)},
    ):
        peer.conn.cmd(Op.DCP_ADD_STREAM, vb=vb, timeout=1, **fields)
    peer.conn.close_stream(vb, note="CLOSE_STREAM on the consumer", timeout=2)
    peer.pump(0.5, 2)
    peer.conn.close_stream(vb, note="CLOSE_STREAM twice", timeout=2)
    peer.conn.close_stream(999, note="CLOSE_STREAM, no stream", timeout=2)
    peer.add(vb, note="ADD_STREAM after close")
    peer.close()


def feed(run, admin, note, steps):
    """A fresh replica, a stream for it, and the steps of one mistake.

    A step is a method of the peer, what it is given, and fields.
    `vb` in the fields is relative to the stream's vbucket.
    """
    run.note(note)
    vb = run.fresh_vb(admin, REPLICA)
    peer = Peer(run, "ce2")
    peer.pump(0.3, 2)
    if steps and steps[0] == "no stream":
        peer.stream_opaque, steps = 1, steps[1:]
    else:
        peer.add(vb)
    for method, arguments, fields in steps:
        do_step(peer, vb, method, arguments, dict(fields))
    peer.pump(0.8, 2.5)
    admin.stats(f"vbucket-details {vb}")
    peer.close()


def do_step(peer, vb, method, arguments, fields):
    """Send one message of a mistake."""
    vb += fields.pop("vb_offset", 0)
    if method == "marker":
        peer.marker(vb, *arguments, **fields)
    elif method == "mutation":
        peer.mutation(vb, *arguments, **fields)
    elif method == "pump":
        peer.pump(*arguments)
    else:
        peer.send(*arguments, vb=vb, **fields)


def marker(*arguments, **fields):
    """Step: a snapshot marker."""
    return ("marker", arguments, fields)


def mutate(*arguments, **fields):
    """Step: a mutation."""
    return ("mutation", arguments, fields)


def send(*arguments, **fields):
    """Step: any message."""
    return ("send", arguments, fields)


PUMP: tuple[str, tuple[float, float], dict[str, object]] = ("pump", (0.4, 1), {})


def data_errors():
    """Mistakes in markers and mutations."""
    short = b"\0" * 7 + b"\1" + b"\0" * 22
    v20 = struct.pack(">QQIQQ", 1, 2, 1, 2, 0)
    v21 = struct.pack(">QQIQQQ", 1, 2, 1, 2, 0, 0)
    snapshot = Op.DCP_SNAPSHOT_MARKER
    first = marker(1, 5)
    return (
        ("mutation without a snapshot marker", [mutate("a", 1)]),
        ("mutation beyond the snapshot end", [marker(1, 2), mutate("a", 3)]),
        ("mutation with seqno not increasing", [first, mutate("a", 2), mutate("b", 2), mutate("c", 1)]),
        ("mutation seqno 0", [marker(0, 5), mutate("a", 0)]),
        ("mutation wrong opaque", [first, mutate("a", 1, opaque=0x999)]),
        ("mutation for a vb without a stream", [marker(1, 5, vb_offset=1), mutate("a", 1, vb_offset=1)]),
        ("mutation without any ADD_STREAM", ["no stream", first, mutate("a", 1)]),
        ("marker with start > end", [marker(5, 1), mutate("a", 5)]),
        (
            "marker below the current seqno",
            [*(marker(1, 3), mutate("a", 1), mutate("b", 3)), *(marker(1, 3), mutate("c", 2))],
        ),
        ("marker extras 19", [send(snapshot, ext=b"\0" * 19)]),
        (
            "marker v2.0 (1 byte extras + 36 byte value)",
            [send(snapshot, ext=b"\0", val=v20), mutate("a", 1), mutate("b", 2)],
        ),
        ("marker v2.1", [send(snapshot, ext=b"\1", val=v21)]),
        ("marker v2.0 with short value", [send(snapshot, ext=b"\0", val=b"\0" * 20)]),
        ("mutation extras 30", [first, mutate("a", 1, ext=short)]),
        ("mutation no key", [first, mutate("", 1)]),
        ("mutation datatype 0x80", [first, mutate("a", 1, dt=0x80)]),
        ("datatype xattr with a malformed blob", [first, mutate("a", 1, dt=4)]),
        ("datatype snappy with non-snappy bytes", [first, mutate("a", 1, dt=2)]),
        ("datatype json with non-json", [first, mutate("a", 1, dt=1)]),
        ("key 251 bytes", [first, mutate("k" * 251, 1)]),
        ("key 250 bytes", [first, mutate("k" * 250, 1)]),
    )


def other_errors():
    """Mistakes in deletions, ends, states, system events."""
    deletion, end = Op.DCP_DELETION, Op.DCP_STREAM_END
    state = Op.DCP_SET_VBUCKET_STATE
    first = marker(1, 5)
    old = struct.pack(">QQH", 1, 1, 0)
    new = struct.pack(">QQIB", 1, 1, 1234, 0)
    event = {"ext": struct.pack(">QIB", 1, 0, 0), "val": struct.pack(">QII", 1, 0, 8)}
    return (
        ("deletion v2 extras (21) without delete times negotiated", [first, send(deletion, key="a", ext=new)]),
        ("deletion with a value", [first, send(deletion, key="a", ext=old, val=b"body", cas=5)]),
        ("deletion of an unknown key", [first, send(deletion, key="nokey", ext=old, cas=5)]),
        ("STREAM_END flag 1, then a mutation", [send(end, ext=u32(1)), marker(1, 2), mutate("a", 1)]),
        ("STREAM_END unknown opaque", [send(end, ext=u32(0), opaque=0x999)]),
        ("STREAM_END without extras", [send(end)]),
        ("STREAM_END flags=99", [send(end, ext=u32(99))]),
        (
            "SET_VBUCKET_STATE state 0 / 5 / no stream / 4 bytes",
            [
                *(send(state, ext=b"\0"), PUMP, send(state, ext=b"\5"), PUMP),
                *(send(state, ext=b"\2", vb_offset=1), PUMP),
                send(state, ext=b"\2\0\0\0"),
            ],
        ),
        ("DCP_FLUSH (0x5a)", [send(Op.DCP_FLUSH)]),
        ("SYSTEM_EVENT create collection without collections", [first, send(Op.DCP_SYSTEM_EVENT, key="coll", **event)]),
    )


def producer_messages_to_producer(run, vb):
    """Messages that only a producer may send, sent to one."""
    run.note("producer messages sent to a PRODUCER connection")
    for op, extras, key in (
        (Op.DCP_MUTATION, mutation_extras(1), "k"),
        (Op.DCP_SNAPSHOT_MARKER, marker_extras(1, 1), ""),
        (Op.DCP_DELETION, struct.pack(">QQH", 1, 1, 0), "k"),
        (Op.DCP_STREAM_END, u32(0), ""),
        (Op.DCP_SET_VBUCKET_STATE, b"\1", ""),
    ):
        conn = run.dcp("cep2", 1)
        conn.cmd(op, key=key, ext=extras, vb=vb, timeout=1.5)
        conn.recv(0.5)
        conn.close()


def control_errors(run, admin, vb):
    """The peer refuses the consumer's controls or its GET_ERROR_MAP."""
    for name, note, fields in (
        ("ce9", "controls answered EINVAL", {"answer": 4}),
        ("ce10", "controls answered UNKNOWN_COMMAND", {"answer": 0x81}),
        ("ce11", "controls answered NOT_SUPPORTED", {"answer": 0x83}),
        ("ce11b", "GET_ERROR_MAP answered UNKNOWN_COMMAND (pre-5.0 producer)", {"overrides": {"errmap": 0x81}}),
        ("ce11c", "GET_ERROR_MAP answered EINVAL", {"overrides": {"errmap": 4}}),
    ):
        run.note(note)
        if "overrides" in fields:
            fresh_vb(admin, vb, REPLICA)
        peer = Peer(run, name, **fields)
        peer.pump(1.0, 4)
        if name == "ce9":
            fresh_vb(admin, vb, REPLICA)
        peer.add(vb)
        peer.close()


def other_consumers(run, admin, vb):
    """No answers at all; a consumer name; other open flags."""
    run.note("controls never answered; ADD_STREAM at once")
    conn = run.session("ce12")
    conn.dcp_open("ce12", 0)
    conn.send(packet(Op.DCP_ADD_STREAM, ext=u32(0), vb=vb, opaque=0x31))
    conn.recv_all(1.5, 4)
    conn.close()
    run.note("consumer_name JSON and Collections+SyncReplication HELLO")
    value = b'{"consumer_name":"node-a"}'
    peer = Peer(run, "ce13", features=COLLECTIONS, val=value, dt=1)
    peer.pump(1.0, 4)
    fresh_vb(admin, vb, REPLICA)
    peer.add(vb)
    peer.pump(0.5, 1)
    peer.close()
    run.note("consumer opened with flags 4 (xattr) / 32 (delete times)")
    peer = Peer(run, "ce14", openflags=4 | 32)
    peer.pump(0.6, 3)
    peer.close()


class Taker:
    """The new owner in a takeover: acknowledges marker and state changes."""

    def __init__(self, admin, conn, vb, marker=True, state=True, write=False):
        self.admin = admin
        self.conn = conn
        self.vb = vb
        self.acks_marker = marker
        self.acks_state = state
        self.writes = write
        self.pending = None

    def run(self, total=10):
        """Take part until STREAM_END or silence."""
        end = self.conn.now() + total
        while self.conn.now() < end:
            frame = self.conn.recv(1.5)
            if frame is None or frame.op == Op.DCP_STREAM_END:
                break
            if not frame.is_response:
                self.take(frame)

    def take(self, frame):
        """React to one message."""
        fields = frame.extras_fields()
        if frame.op == Op.DCP_SNAPSHOT_MARKER and self.acks_marker:
            if fields["flags"] & 8:
                self.pending = (fields["end"], frame.opaque)
        elif frame.op == Op.DCP_MUTATION and self.pending:
            if fields["by_seqno"] == self.pending[0]:
                answer = response(Op.DCP_SNAPSHOT_MARKER, opaque=self.pending[1])
                self.conn.send(answer, "ack the snapshot marker (flag 8 = ACK)")
                self.pending = None
        elif frame.op == Op.DCP_SET_VBUCKET_STATE:
            self.take_state(frame)

    def take_state(self, frame):
        """Look at the source, write to it if wanted, acknowledge."""
        vb_state(self.admin, self.vb)
        if self.writes:
            self.writes = False
            set_doc(self.admin, "during", b"x", self.vb)
        if self.acks_state:
            answer = response(Op.DCP_SET_VBUCKET_STATE, opaque=frame.opaque)
            self.conn.send(answer, f"ack state {frame.extras[0]}")


@scenario(first_vb=700)
def s21_takeover(run):
    """Takeover streams, from both sides."""
    admin = run.admin()
    vb = run.fresh_vb(admin)
    set_docs(admin, vb, 5)
    conn = run.dcp("tk", 1)
    conn.stream_request(vb, flags=1, note="STREAM_REQ takeover")
    Taker(admin, conn, vb).run()
    vb_state(admin, vb)
    get_doc(admin, "k1", vb)
    conn.recv_all(0.5)
    conn.close()
    run.note("a write on the source while it waits for the pending ack")
    take_over(run, admin, "tk1b", vb, 3, write=True)
    run.note("takeover of an empty vb")
    take_over(run, admin, "tk1c", vb, 0)
    run.note("takeover without acking the snapshot marker")
    take_over(run, admin, "tk1d", vb, 1, total=4, marker=False)
    stuck_takeover(run, admin, vb)
    run.note("takeover, from disk backfill")
    takeover_from_disk(run, admin, vb)
    takeover_as_consumer(run, admin)


def take_over(run, admin, name, vb, docs, total=10, **behaviour):
    """A takeover of a fresh vbucket with some documents."""
    fresh_vb(admin, vb)
    set_docs(admin, vb, docs)
    conn = run.dcp(name, 1)
    conn.stream_request(vb, flags=1)
    Taker(admin, conn, vb, **behaviour).run(total)
    vb_state(admin, vb)
    conn.close()


def stuck_takeover(run, admin, vb):
    """SET_VBUCKET_STATE is never acknowledged."""
    run.note("takeover without acking SET_VBUCKET_STATE")
    fresh_vb(admin, vb)
    set_docs(admin, vb, 1)
    conn = run.dcp("tk2", 1)
    conn.stream_request(vb, flags=1)
    Taker(admin, conn, vb, state=False).run(5)
    vb_state(admin, vb)
    fields = {"key": doc_key("w"), "ext": b"\0" * 8, "val": b"during", "vb": vb}
    opaque = admin.next_opaque()
    admin.send(packet(Op.SET, opaque=opaque, **fields), "SET while it is stuck")
    answer = admin.recv(1)
    conn.close()
    if answer is None:
        admin.recv(3, note="after disconnect")
    run.sleep(0.5)
    vb_state(admin, vb)


def takeover_from_disk(run, admin, vb):
    """The items are on disk only."""
    fresh_vb(admin, vb)
    set_docs(admin, vb, 3)
    persist(admin, vb)
    new_checkpoint(admin, vb)
    run.sleep(1)
    conn = run.dcp("tk2b", 1)
    conn.stream_request(vb, flags=1)
    Taker(admin, conn, vb).run()
    vb_state(admin, vb)
    conn.close()


def takeover_as_consumer(run, admin):
    """ADD_STREAM with the takeover flag."""
    run.note("takeover via a consumer (ADD_STREAM flag 1)")
    vb = run.fresh_vb(admin, PENDING)
    peer = Peer(run, "tk3")
    peer.pump(0.4, 3)
    peer.add(vb, flags=1)
    peer.marker(vb, 1, 1, 9, note="marker with the ACK flag 8")
    peer.mutation(vb, "t1", 1, cas=77)
    peer.pump(0.5, 1)
    state = Op.DCP_SET_VBUCKET_STATE
    peer.send(state, "state pending", ext=b"\3", vb=vb)
    peer.pump(0.7, 2)
    peer.send(state, "state active", ext=b"\1", vb=vb)
    peer.pump(0.7, 2)
    peer.send(Op.DCP_STREAM_END, ext=u32(0), vb=vb)
    peer.pump(0.5, 1)
    vb_state(admin, vb)
    failover_log(admin, vb)
    get_doc(admin, "t1", vb)
    peer.close()
