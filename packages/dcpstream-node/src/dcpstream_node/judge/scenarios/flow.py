"""Flow control and NOOP."""

from dcpstream_node.judge.packets import Op, packet, response
from dcpstream_node.judge.scenarios.kit import buffer_ack, frames_size, scenario, set_doc

NOOP_EACH_SECOND = [("set_noop_interval", "1"), ("enable_noop", "true")]


@scenario(first_vb=580)
def s17_flow_control(run):
    """Buffers, acknowledgements, what counts."""
    admin = run.admin()
    vb = run.fresh_vb(admin)
    for index in range(40):
        set_doc(admin, f"key{index:03d}", b"x" * 100, vb)
    small_buffer(run, admin, vb)
    buffer_below_one_message(run, vb)
    run.note("ack without flow control enabled")
    conn = run.dcp("fc3", 1)
    buffer_ack(conn, 100, opaque=5)
    conn.recv_all(0.5)
    conn.close()
    run.note("everything fits; what does the node count?")
    conn = run.dcp("fc4", 1, ctl=[("connection_buffer_size", "100000")])
    conn.stream_request(vb, end=40)
    note_size(run, conn.recv_all(0.8))
    admin.stats("dcp")
    conn.close()
    run.note("dynamic change: enable with 500 then set 0")
    conn = run.dcp("fc5", 1, ctl=[("connection_buffer_size", "500")])
    conn.read_stream(vb, 0.6)
    conn.control("connection_buffer_size", "0")
    conn.recv_all(0.6)
    conn.close()
    run.note("consumer connection receiving BUFFER_ACK")
    conn = run.dcp("fc6", 0)
    conn.recv_all(0.1, 0.3)
    buffer_ack(conn, 100, opaque=5)
    conn.recv_all(0.5, 2)
    conn.close()


def note_size(run, frames):
    """Write down how much came."""
    run.note(f"received {len(frames)} frames, {frames_size(frames)} bytes")


def small_buffer(run, admin, vb):
    """1,024 bytes, acknowledged in pieces."""
    conn = run.dcp("fc", 1, ctl=[("connection_buffer_size", "1024")])
    conn.stream_request(vb)
    note_size(run, conn.recv_all(1.0))
    conn.recv_all(1.0)
    fields = {"ext": (100).to_bytes(4, "big"), "timeout": 0.5}
    conn.cmd(Op.DCP_BUFFER_ACK, note="ack 100", **fields)
    note_size(run, conn.recv_all(0.7))
    for size, opaque, note in (
        (400, 0x77, "ack 400 more"),
        (0, 0x78, "ack 0"),
        (1000000, 0x79, "ack far more than outstanding"),
    ):
        buffer_ack(conn, size, opaque, note)
        note_size(run, conn.recv_all(0.7))
    conn.send(packet(Op.DCP_BUFFER_ACK, opaque=0x7A), "no extras")
    conn.recv_all(0.4)
    odd = packet(Op.DCP_BUFFER_ACK, ext=b"\0" * 8, opaque=0x7B)
    conn.send(odd, "8-byte extras")
    conn.recv_all(0.4)
    admin.stats("dcp")
    conn.close()


def buffer_below_one_message(run, vb):
    """A buffer of 50 bytes still lets one message pass."""
    run.note("buffer smaller than one message (buffer 50)")
    conn = run.dcp("fc2", 1, ctl=[("connection_buffer_size", "50")])
    conn.stream_request(vb)
    frames = conn.recv_all(0.8)
    buffer_ack(conn, frames_size(frames), opaque=1)
    note_size(run, conn.recv_all(0.8))
    conn.close()


@scenario(first_vb=610)
def s18_noop(run):
    """NOOP: asked, answered, not answered, answered wrongly."""
    run.admin()
    answered_then_silent(run)
    run.note("noop answered with other opaque")
    conn = run.dcp("np2", 1, ctl=NOOP_EACH_SECOND)
    conn.recv(3)
    conn.send(response(Op.DCP_NOOP, opaque=0x4242))
    conn.recv_all(4, 5)
    conn.close()
    noop_requests_to_producer(run)
    run.note("unsolicited NOOP response")
    conn = run.dcp("np4", 1)
    conn.send(response(Op.DCP_NOOP, opaque=1))
    conn.recv(1)
    conn.control("enable_noop", "true")
    conn.close()
    run.note("client NOOP to a consumer")
    conn = run.dcp("np5", 0)
    conn.recv_all(0.1, 0.3)
    conn.send(packet(Op.DCP_NOOP, opaque=0x51), "NOOP request to consumer")
    conn.recv_all(0.5, 1.5)
    conn.close()


def answered_then_silent(run):
    """NOOPs answered for some seconds, then not answered."""
    conn = run.dcp("np", 1, ctl=NOOP_EACH_SECOND)
    end = conn.now() + 4.5
    while conn.now() < end:
        frame = conn.recv(1.5)
        if frame and frame.op == Op.DCP_NOOP and not frame.is_response:
            conn.send(response(Op.DCP_NOOP, opaque=frame.opaque))
    run.note("now stop answering")
    end = conn.now() + 8
    while conn.now() < end and not conn.closed:
        conn.recv(1)
    conn.close()


def noop_requests_to_producer(run):
    """A producer does not take NOOP requests."""
    run.note("NOOP requests to a producer")
    conn = run.dcp("np3", 1)
    for fields in (
        {"note": "client sends DCP_NOOP request to a producer"},
        {"ext": b"\0", "note": "NOOP with extras"},
        {"key": "k", "note": "NOOP with key"},
        {"val": "v", "note": "NOOP with value"},
    ):
        conn.cmd(Op.DCP_NOOP, timeout=1, **fields)
    conn.close()
