"""HELLO, SASL, SELECT_BUCKET, DCP_OPEN."""

import struct

from dcpstream_node.judge.packets import Op
from dcpstream_node.judge.scenarios.kit import ALL_FEATURES, BASE, fresh_vb, login_user, scenario, set_doc

PRODUCER_OPEN = struct.pack(">II", 0, 1)
OPEN_FLAGS = [2, 3, 5, 9, 17, 33, 65, 129, 257, 261, 73, 513, 0x80000001, 128, 4, 32, 260]


@scenario(first_vb=100)
def s01_hello_sasl_select(run):
    """Requests that are allowed before and after the login, and their privileges."""
    before_login(run)
    sasl_mistakes(run)
    for user in ("readonly", "nodcp"):
        open_as(run, user, user, 1, "prod")
        open_as(run, user, f"{user}-cons", 0, "cons")
    open_without_xerror(run)
    open_unordered(run)
    commands_after_open(run)


def before_login(run):
    """Commands on a connection that did not log in."""
    conn = run.connect("noauth")
    conn.cmd(Op.VERSION, note="VERSION")
    conn.hello(ALL_FEATURES)
    conn.hello([])
    conn.cmd(Op.SASL_LIST_MECHS, note="SASL_LIST_MECHS")
    conn.cmd(Op.DCP_OPEN, key="x", ext=PRODUCER_OPEN, note="DCP_OPEN before auth")
    conn.cmd(Op.SELECT_BUCKET, key=run.target.bucket, note="SELECT_BUCKET before auth")
    conn.close()


def sasl_mistakes(run):
    """Wrong logins, then the right one, then wrong buckets."""
    user = run.target.user.encode()
    conn = run.connect("sasl")
    conn.hello(BASE)
    for mechanism, value, note in (
        ("PLAIN", b"\0" + user + b"\0wrong", "wrong password"),
        ("PLAIN", b"\0nouser\0password", "unknown user"),
        ("FOO", b"\0x\0y", "unknown mech"),
        ("PLAIN", b"garbage", "garbage payload"),
    ):
        conn.cmd(Op.SASL_AUTH, key=mechanism, val=value, note=note)
    run.login(conn)
    note = "DCP_OPEN before SELECT_BUCKET"
    conn.cmd(Op.DCP_OPEN, key="x", ext=PRODUCER_OPEN, note=note)
    conn.cmd(Op.SELECT_BUCKET, key="nosuch", note="SELECT_BUCKET nonexisting")
    conn.cmd(Op.SELECT_BUCKET, key="", note="empty bucket name")
    run.select(conn)
    note = "SELECT_BUCKET with extras"
    conn.cmd(Op.SELECT_BUCKET, key=run.target.bucket, ext=b"\0\0\0\0", note=note)
    conn.cmd(Op.LIST_BUCKETS, note="LIST_BUCKETS")
    conn.close()


def open_as(run, user, label, flags, prefix):
    """DCP_OPEN as a user with fewer privileges."""
    conn = run.connect(label)
    conn.hello(BASE)
    login_user(conn, user)
    run.select(conn)
    conn.dcp_open(f"{prefix}-{user}", flags, note=f"flags={flags} as user {user}")
    conn.close()


def open_without_xerror(run):
    """A missing privilege when XERROR was not negotiated."""
    conn = run.connect("noxerror")
    conn.hello([6, 8, 0xA, 0xB])
    login_user(conn, "nodcp")
    run.select(conn)
    conn.dcp_open("p-nox", 1, note="no XERROR, no privilege")
    conn.recv(0.5)
    conn.close()


def open_unordered(run):
    """DCP_OPEN after unordered execution was negotiated."""
    conn = run.connect("unordered")
    conn.hello([*BASE, 14])
    run.login(conn)
    run.select(conn)
    conn.dcp_open("p-unord", 1, note="UnorderedExecution negotiated")
    conn.close()


def commands_after_open(run):
    """Ordinary commands on an open DCP connection."""
    conn = run.connect("select-after-open")
    conn.hello(BASE)
    run.login(conn)
    run.select(conn)
    conn.dcp_open("p-sel", 1)
    note = "SELECT_BUCKET on an open DCP connection"
    conn.cmd(Op.SELECT_BUCKET, key=run.target.bucket, note=note)
    conn.hello([6], note="HELLO on an open DCP connection")
    run.login(conn)
    conn.cmd(Op.NOOP, note="plain NOOP on DCP connection")
    conn.cmd(Op.SET, key="k", ext=b"\0" * 8, val="v", note="SET on DCP connection")
    conn.cmd(Op.GET, key="k", note="GET on DCP connection")
    conn.recv(0.5)
    conn.close()


@scenario(first_vb=130)
def s02_dcp_open(run):
    """DCP_OPEN: names, flags, extras, values; the same name twice."""
    open_names_and_flags(run)
    open_odd_packets(run)
    open_twice_on_a_connection(run)
    same_name(run, "same-name", 1, 1, use_after=True)
    same_name(run, "same-mixed", 1, 0)
    same_consumer_name(run)


def open_one(run, name, flags, note, label="conn", **fields):
    """A connection with one DCP_OPEN."""
    conn = run.session(label)
    fields.setdefault("ext", struct.pack(">II", 0, flags))
    conn.cmd(Op.DCP_OPEN, key=name, note=note, **fields)
    conn.recv(0.3)
    return conn


def open_names_and_flags(run):
    """Names of every length, every flag."""
    open_one(run, "p-plain", 1, "producer flags=1").close()
    open_one(run, "c-plain", 0, "consumer flags=0").close()
    open_one(run, "", 1, "empty name").close()
    for length in (200, 240, 250, 251, 256, 300):
        open_one(run, "n" * length, 1, f"name length {length}").close()
    for flags in OPEN_FLAGS:
        open_one(run, f"f-{flags:x}", flags, f"flags=0x{flags:x}").close()


def open_odd_packets(run):
    """Odd extras, values and header fields."""
    name_json = b'{"consumer_name":"n1"}'
    for name, flags, note, fields in (
        ("seqno5", 1, "seqno field = 5", {"ext": struct.pack(">II", 5, 1)}),
        ("noext", 1, "no extras", {"ext": b""}),
        ("ext4", 1, "extras 4", {"ext": b"\0\0\0\1"}),
        ("ext12", 1, "extras 12", {"ext": b"\0" * 12}),
        ("json", 0, "consumer with JSON value", {"val": name_json, "dt": 1}),
        ("jsonp", 1, "producer with consumer_name JSON", {"val": name_json, "dt": 1}),
        ("jsonraw", 0, "value but datatype raw", {"val": name_json}),
        ("jsonunk", 0, "unknown JSON property", {"val": b'{"foo":1}', "dt": 1}),
        ("jsonbad", 0, "bad JSON", {"val": b"{", "dt": 1}),
        ("vb5", 1, "vbucket field=5", {"vb": 5}),
        ("cas5", 1, "cas=5", {"cas": 5}),
        ("name with space \x00 and nul", 1, "odd characters in name", {}),
    ):
        open_one(run, name, flags, note, **fields).close()


def open_twice_on_a_connection(run):
    """A second and a third DCP_OPEN."""
    conn = open_one(run, "twice-conn", 1, "first open")
    conn.dcp_open("twice-conn", 1, note="second DCP_OPEN same connection, same name")
    conn.dcp_open("other-name", 1, note="second DCP_OPEN same connection, other name")
    conn.recv(1)
    conn.close()


def same_name(run, name, first_flags, second_flags, use_after=False):
    """The same name on two connections, at least one of them a producer."""
    older = open_one(run, name, first_flags, f"A: {name} flags={first_flags}", "A")
    newer = open_one(run, name, second_flags, f"B: {name} flags={second_flags}", "B")
    older.recv(3, note="A after B opened the same name")
    if use_after:
        newer.control("enable_noop", "true", note="B still works?")
        fields = {"key": "enable_noop", "val": "true", "timeout": 2}
        older.cmd(Op.DCP_CONTROL, note="A still works?", **fields)
    older.close()
    newer.close()


def same_consumer_name(run):
    """The same name on two consumer connections."""
    older = open_one(run, "same-cons", 0, "conn A: consumer same-cons", "A")
    newer = open_one(run, "same-cons", 0, "conn B: consumer same-cons", "B")
    for _ in range(12):
        if older.recv(1, note="A after B") is None:
            break
    older.close()
    newer.close()


@scenario(first_vb=1100)
def s34_hello_variants(run):
    """HELLO with every feature, doubles, odd lengths, and without HELLO."""
    conn = run.connect("all")
    features = [item for item in ALL_FEATURES if item != 5]
    conn.hello(features, note="every feature but TCPDELAY")
    conn.close()
    conn = run.connect("dup")
    conn.hello([6, 6, 7, 7])
    conn.hello([7])
    conn.close()
    conn = run.connect("odd")
    conn.cmd(Op.HELLO, key="x", val=b"\0\6\0", note="odd value length")
    conn.cmd(Op.HELLO, key="", val=b"\0\6", note="no key")
    conn.cmd(Op.HELLO, key="k" * 300, val=b"\0\6", note="300 byte key")
    conn.close()
    hello_dependencies(run)
    run.note("a DCP connection that never sent HELLO")
    admin = run.admin()
    vb = 903
    fresh_vb(admin, vb)
    set_doc(admin, "j", b'{"a":1}', vb)
    without_hello(run, vb)
    without_hello_xattr(run, vb)


def hello_dependencies(run):
    """Features that need others."""
    conn = run.connect("collonly")
    conn.hello([0x12])
    conn.close()
    conn = run.connect("altonly")
    conn.hello([0x10])
    conn.hello([0x11], note="SyncReplication without AltRequest")
    conn.hello([0x0E])
    conn.hello([0x0D])
    conn.hello([0x0D, 0x0C])
    conn.close()


def without_hello(run, vb):
    """Streams and refusals without any negotiated feature."""
    conn = run.connect("nohello")
    run.login(conn)
    run.select(conn)
    conn.dcp_open("nohello", 1)
    conn.read_stream(vb, 0.4)
    conn.stream_request(vb, note="duplicate")
    conn.close_stream(5, note="close unknown")
    conn.cmd(Op.DCP_CONTROL, key="bogus", val="x")
    conn.cmd(Op.DCP_STREAM_REQ, vb=vb, note="no extras")
    conn.close()


def without_hello_xattr(run, vb):
    """INCLUDE_XATTR without HELLO XATTR."""
    conn = run.connect("nohello-x")
    run.login(conn)
    run.select(conn)
    conn.dcp_open("nohello-x", 1 | 4, note="INCLUDE_XATTR without HELLO XATTR")
    conn.control("enable_noop", "true")
    conn.read_stream(vb, 0.4)
    conn.close()
