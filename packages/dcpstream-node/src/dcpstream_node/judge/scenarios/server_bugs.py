"""The known bugs of servers, each made to show: the steps after which a server with the bug answers otherwise."""

from __future__ import annotations

from dcpstream_node.judge.packets import Op, packet
from dcpstream_node.judge.scenarios.data import durability
from dcpstream_node.judge.scenarios.kit import (
    ACTIVE,
    COLLECTIONS,
    buffer_ack,
    doc_key,
    failover_log,
    fresh_vb,
    new_checkpoint,
    permitted,
    persist,
    scenario,
    set_doc,
    set_docs,
    set_vb,
)
from dcpstream_node.judge.scenarios.node import set_oso
from dcpstream_node.judge.scenarios.release_8 import Manifest, collection, default_scope

FRUIT, VEG = 0x30, 0x31
ONLY_FRUIT = b'{"collections":["30"]}'
EVENTS = 2
"""Seqnos of a fresh vbucket that the events of the two collections take."""
WITH_REPLICA = [["active", "replica"]]
OSO = ("enable_out_of_order_snapshots", "true")
LARGE = b"x" * 100_000
"""Three of them are more than the changes that a stream looks at in memory at once."""
WAITING = b"x" * 2_000
"""One of them is more than the client's buffer."""


class Garden:
    """A bucket with two collections, in which each bug gets a vbucket of its own."""

    def __init__(self, run):
        self.run = run
        self.admin = run.admin()
        manifest = Manifest(self.admin, 0x8100)
        manifest.set(default_scope(collection("fruit", FRUIT), collection("veg", VEG)))

    def vb(self):
        """A vbucket with the events of the collections, and nothing else."""
        vb = self.run.new_vb()
        fresh_vb(self.admin, vb)
        return vb

    def put(self, vb, key, coll, value=b"v"):
        """A document."""
        set_doc(self.admin, key, value, vb, coll=coll)

    def resume(self, name, vb, start, snapshot, end=None):
        """A stream of fruit that goes on within a snapshot, and what comes."""
        conn = self.run.dcp(name, 1, COLLECTIONS)
        uuid = failover_log(self.admin, vb)[0][0]
        fields = {"start": start, "uuid": uuid, "ss": snapshot[0], "se": snapshot[1]}
        if end is not None:
            fields["end"] = end
        conn.read_stream(vb, 0.5, val=ONLY_FRUIT, **fields)
        return conn


@scenario(first_vb=640)
def s81_known_bugs(run):
    """Bugs that do not end a server: MB-73354, MB-67551, MB-23898, the first marker after OSO, a queued close."""
    garden = Garden(run)
    lost_advance(garden)
    closed_while_queued(garden)
    keys_only(garden)
    out_of_order(garden)


def lost_advance(garden):
    """MB-73354: a snapshot from memory ends with a prepare of fruit, and a change of veg follows."""
    garden.run.note("MB-73354")
    admin, vb = garden.admin, garden.vb()
    permitted(admin, set_vb(admin, vb, ACTIVE, WITH_REPLICA), f"SET_VBUCKET {vb}")
    garden.put(vb, "ap", FRUIT)
    writer = garden.run.admin(label="writer")
    fields = {"key": doc_key("p", FRUIT), "ext": bytes(8), "val": b"v", "vb": vb, "opaque": writer.next_opaque()}
    writer.send(packet(Op.SET, fr=durability(60_000), **fields), "a prepare that stays")
    writer.recv(0.3)
    garden.put(vb, "ca", VEG)
    conn = garden.resume("bug-adv", vb, EVENTS, (EVENTS, EVENTS), EVENTS + 3)
    conn.close()
    writer.close()


def closed_while_queued(garden):
    """CLOSE_STREAM while the last messages wait for room in the client's buffer."""
    garden.run.note("CLOSE_STREAM while messages wait")
    vb = garden.vb()
    for index in range(4):
        garden.put(vb, f"k{index}", 0, WAITING)
    controls = [("connection_buffer_size", "1000"), ("send_stream_end_on_client_close_stream", "true")]
    conn = garden.run.dcp("bug-close", 1, ctl=controls)
    uuid = failover_log(garden.admin, vb)[0][0]
    conn.read_stream(vb, 0.4, start=EVENTS, uuid=uuid, end=EVENTS + 4, note="from memory")
    conn.close_stream(vb)
    for _ in range(4):
        buffer_ack(conn, len(WAITING) + 200)
        conn.recv_all(0.2)
    conn.close()


def keys_only(garden):
    """MB-23898: a stream of keys alone from disk."""
    garden.run.note("MB-23898")
    admin, vb = garden.admin, garden.vb()
    set_docs(admin, vb, 2)
    admin.cmd(Op.DELETE, key=doc_key("k1"), vb=vb)
    to_disk(garden, vb)
    conn = garden.run.dcp("bug-keys", 1 | 8, COLLECTIONS)
    conn.read_stream(vb, 0.5, flags=2)
    conn.close()


def out_of_order(garden):
    """MB-67551: keys that begin with 0xff. The first marker after an out-of-order snapshot."""
    garden.run.note("MB-67551, and the first marker after an out-of-order snapshot")
    vb = garden.vb()
    for key in (b"a", b"\xff", b"\xff1"):
        garden.put(vb, key, FRUIT)
    to_disk(garden, vb)
    set_oso(garden.admin, "enabled")
    conn = garden.run.dcp("bug-oso", 1, COLLECTIONS, ctl=[OSO])
    conn.read_stream(vb, 0.5, val=ONLY_FRUIT)
    garden.put(vb, "later", FRUIT)
    conn.recv_all(0.5)
    conn.close()
    set_oso(garden.admin, "auto")


def to_disk(garden, vb):
    """Persist the vbucket, and drop it from memory where a server lets us say so."""
    persist(garden.admin, vb)
    new_checkpoint(garden.admin, vb)
    garden.run.sleep(0.5)


@scenario(first_vb=650, ends_servers=True)
def s82_bugs_that_end_servers(run):
    """Bugs after which a server's process ends: MB-65581, MB-66612, MB-62984."""
    garden = Garden(run)
    run.note("MB-65581: the first changes in memory are not for the stream, later ones are")
    vb = garden.vb()
    garden.put(vb, "ap0", FRUIT)
    for index in range(3):
        garden.put(vb, f"ca{index}", VEG, LARGE)
    garden.put(vb, "ap1", FRUIT)
    garden.resume("bug-early", vb, EVENTS + 1, (EVENTS, EVENTS + 5)).close()
    run.note("MB-66612: nothing for the stream on disk, no change in memory")
    vb = garden.vb()
    garden.put(vb, "ap", FRUIT)
    garden.put(vb, "ca", VEG)
    to_disk(garden, vb)
    conn = garden.resume("bug-future", vb, EVENTS + 1, (EVENTS, EVENTS + 2))
    garden.put(vb, "ap2", FRUIT)
    conn.recv_all(0.5)
    conn.close()
    run.note("MB-62984: the snapshot ends above the high seqno")
    vb = garden.vb()
    garden.put(vb, "ap", FRUIT)
    garden.put(vb, "ca", VEG)
    conn = garden.resume("bug-above", vb, EVENTS + 1, (EVENTS + 1, EVENTS + 4))
    garden.put(vb, "ap2", FRUIT)
    conn.recv_all(0.5)
    conn.close()
