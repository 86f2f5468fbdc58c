"""DCP_CONTROL on producers and consumers; what needs NOOP first."""

from dcpstream_node.judge.packets import Op
from dcpstream_node.judge.scenarios.kit import BASE, COLLECTIONS, scenario, set_doc

CONTROLS = {
    "enable_noop": ["true", "false", "xyz"],
    "set_noop_interval": ["1", "20", "180", "0", "-1", "1.5", "abc", "0.5"],
    "connection_buffer_size": [*("0", "1", "1048576", "4294967295", "4294967296"), *("-5", "abc", "10 ", "0x10")],
    "stream_buffer_size": ["1024"],
    "set_priority": ["high", "medium", "low", "HIGH", "bogus"],
    "enable_expiry_opcode": ["true", "false", "x"],
    "supports_cursor_dropping": ["true", "false"],
    "supports_cursor_dropping_vulcan": ["true"],
    "supports_hifi_MFU": ["true", "false"],
    "supports_hifi_mfu": ["true"],
    "send_stream_end_on_client_close_stream": ["true", "false", "x"],
    "enable_stream_id": ["true", "false"],
    "enable_sync_writes": ["true", "false"],
    "consumer_name": ["c1"],
    "enable_out_of_order_snapshots": ["true", "true_with_seqno_advanced", "false"],
    "include_deleted_user_xattrs": ["true", "false"],
    "v7_dcp_status_codes": ["true", "false"],
    "flatbuffers_system_events": ["true", "false"],
    "change_streams": ["true"],
    "max_marker_version": ["2.2"],
    "backfill_order": ["round-robin", "sequential", "x"],
    "force_value_compression": ["true", "false"],
    "include_xattrs": ["true"],
    "set_window": ["1"],
    "snapshot_max_marker_version": ["2.2"],
    "bogus_key": ["true"],
    "ENABLE_NOOP": ["true"],
    "enable_noo": ["true"],
    "e": ["true"],
    "s": ["true"],
    "c": ["5"],
    "enable_noopx": ["true"],
}


def every_control():
    """Pairs of key and value."""
    return [(key, value) for key, values in CONTROLS.items() for value in values]


@scenario(first_vb=160)
def s03_control_producer(run):
    """Every control on a producer of its own, then combinations."""
    run.note("one fresh producer connection (flags=1) per key/value pair")
    for key, value in every_control():
        control_once(run, "ctl-prod", 1, COLLECTIONS, [(key, value)], noop=False)
    repeated_controls(run)
    run.note("include_deleted_user_xattrs with open flags 4|256")
    deleted = [("include_deleted_user_xattrs", "true")]
    control_once(run, "ctl-p3", 1 | 4 | 256, COLLECTIONS, deleted)
    run.note("enable_expiry_opcode with IncludeDeleteTimes (0x20)")
    expiry = [("enable_expiry_opcode", "true")]
    control_once(run, "ctl-p4", 1 | 32, COLLECTIONS, expiry)
    run.note("enable_stream_id then enable_sync_writes and vice versa")
    pair = [("enable_stream_id", "true"), ("enable_sync_writes", "true")]
    control_once(run, "ctl-p5", 1, COLLECTIONS, pair)
    control_once(run, "ctl-p6", 1, COLLECTIONS, pair[::-1])
    run.note("force_value_compression without SNAPPY negotiated")
    force = [("force_value_compression", "true")]
    control_once(run, "ctl-p7", 1, [6, 7, 8, 0xB], force)
    run.note("DCP_CONTROL before DCP_OPEN")
    conn = run.plain(COLLECTIONS)
    conn.control("enable_noop", "true")
    conn.close()
    run.note("without XERROR")
    conn = run.dcp("ctl-p8", 1, [6, 8, 0xA, 0xB])
    conn.control("bogus_key", "true")
    conn.control("stream_buffer_size", "1024")
    conn.recv(0.5)
    conn.close()


def control_once(run, name, flags, features, controls, noop=None):
    """A connection of its own for some controls."""
    run.dcp(name, flags, features, ctl=controls, noop=noop).close()


def repeated_controls(run):
    """The same key twice, and malformed control packets."""
    run.note("same key twice on one connection; and malformed control packets")
    conn = run.dcp("ctl-prod2", 1, COLLECTIONS)
    for key, value in (
        ("enable_noop", "true"),
        ("enable_noop", "true"),
        ("connection_buffer_size", "100"),
        ("connection_buffer_size", "200"),
        ("", ""),
        ("enable_noop", ""),
        ("", "true"),
    ):
        conn.control(key, value)
    noop = {"key": "enable_noop", "val": "true"}
    conn.cmd(Op.DCP_CONTROL, ext=b"\0\0\0\0", note="extras present", **noop)
    conn.cmd(Op.DCP_CONTROL, vb=9, note="vb=9", **noop)
    conn.cmd(Op.DCP_CONTROL, dt=1, note="datatype json", **noop)
    conn.close()


@scenario(first_vb=190)
def s04_control_consumer(run):
    """Every control sent to a consumer connection."""
    for key, value in every_control():
        conn = run.dcp("ctl-cons", 0, COLLECTIONS)
        conn.recv_all(0.05, 0.3)
        conn.control(key, value, note="sent to a CONSUMER connection")
        conn.close()


NOOP_CASES = (
    (1, COLLECTIONS, False, "Collections negotiated, NOOP off"),
    (1, COLLECTIONS, True, "Collections negotiated, NOOP on"),
    (1 | 4, BASE, False, "INCLUDE_XATTR, NOOP off"),
    (1 | 4, BASE, True, "INCLUDE_XATTR, NOOP on"),
    (1, BASE, False, "neither, NOOP off"),
    (1 | 32, BASE, False, "DELETE_TIMES, NOOP off"),
    (1 | 8, BASE, False, "NO_VALUE, NOOP off"),
    (1 | 64, BASE, False, "NO_VALUE_UNDERLYING, NOOP off"),
    (1 | 128, BASE, False, "PiTR, NOOP off"),
)


@scenario(first_vb=850)
def s28_noop_mandatory(run):
    """Streams that are refused unless NOOP was enabled."""
    admin = run.admin()
    vb = run.fresh_vb(admin)
    set_doc(admin, "k", b"v", vb)
    for flags, features, noop, note in NOOP_CASES:
        run.note(note)
        conn = run.dcp("nm", flags, features, noop=noop)
        conn.read_stream(vb, 0.3)
        conn.close()
