"""Durable and plain writes in any order; a copy follows at its own pace, loses its connection, crashes, takes over.

Checked at the end: the node, a stream of documents, a stream with sync writes and the copy agree on every document, and
no client was told success of a write that is not there.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dcpstream.wire import Frame, MarkerFlag, Opcode, Status
from dcpstream.wire.keys import encode_frame_info
from dcpstream_node.testing.simulation import Peer, PretendWire, SimulatedNode
from tests.kit.streams import ACTIVE, REPLICA

TOPOLOGY = b'{"topology":[["node-a","node-b"]]}'
ALONE = b'{"topology":[["node-a"]]}'
KEYS = [b"\0k%d" % number for number in range(4)]
STEPS = 120
WRITERS = 5
DATA = frozenset((Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION))


@dataclass
class Writer:
    """A client with one durable write under way at most: (key, value, None for a deletion)."""

    peer: Peer
    waiting: tuple[bytes, bytes | None] | None = None


@dataclass
class World:
    """A node, its copy and their clients."""

    seed: int
    path: Path | None = None
    documents: dict[bytes, bytes | None] = field(default_factory=dict)
    successes: int = 0
    ambiguous: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.old, self.new = SimulatedNode(), SimulatedNode(path=self.path)
        self.old.set_vbucket(1, ACTIVE, TOPOLOGY)
        self.new.set_vbucket(1, REPLICA)
        self.plain = self.old.connect()
        self.writers = [Writer(self.old.connect()) for _ in range(WRITERS)]
        self.links = 0
        self.link = self.join()

    def join(self) -> PretendWire:
        """Join the copy, which asks for what it does not have."""
        self.links += 1
        link = PretendWire(self.old, self.new, name=b"replication-%d" % self.links, consumer_name="node-b")
        link.add_stream(1)
        return link

    def cut(self) -> None:
        """The connection between the two breaks; what was under way is lost."""
        self.link.producer.disconnect()
        self.link.consumer.disconnect()
        self.link = self.join()

    def crash(self) -> None:
        """The copy loses what it has not flushed, or nothing."""
        self.link.producer.disconnect()
        if self.chance.random() < 0.5:
            self.new.flush()
        self.new.restart(clean=self.chance.random() < 0.5)
        self.link = self.join()

    def step(self) -> None:
        """Something happens."""
        chance, key = self.chance, self.chance.choice(KEYS)
        value = b"%d" % chance.getrandbits(30)
        kind = chance.random()
        if kind < 0.25:
            self.write_plainly(key, value if chance.random() < 0.7 else None)
        elif kind < 0.6:
            idle = [writer for writer in self.writers if writer.waiting is None]
            if idle:
                self.write_durably(chance.choice(idle), key, value if chance.random() < 0.7 else None)
        elif kind < 0.9:
            for _ in range(chance.randrange(8)):
                self.link.step()
        elif kind < 0.94:
            self.old.advance(chance.choice((0.1, 3.0, 6.0)))
        elif kind < 0.97:
            self.old.vbucket(1).close_checkpoint()
        elif self.path is None or self.chance.random() < 0.5:
            self.cut()
        else:
            self.crash()
        self.hear()

    def write_plainly(self, key: bytes, value: bytes | None) -> None:
        """A write that is answered at once."""
        fields: dict[str, Any]
        opcode, fields = (Opcode.DELETE, {}) if value is None else (Opcode.SET, {"value": value, "extras": bytes(8)})
        status = self.plain.call(opcode, vbid=1, key=key, **fields).status
        is_blocked = any(writer.waiting is not None and writer.waiting[0] == key for writer in self.writers)
        is_missing = value is None and self.documents.get(key) is None
        if is_blocked and not is_missing:
            assert status == Status.SYNC_WRITE_IN_PROGRESS
        elif status == Status.SUCCESS:
            self.documents[key] = value
        else:
            assert (status, self.documents.get(key)) == (Status.KEY_ENOENT, None)

    def write_durably(self, writer: Writer, key: bytes, value: bytes | None) -> None:
        """A write that waits for the copy."""
        fields: dict[str, Any]
        opcode, fields = (Opcode.DELETE, {}) if value is None else (Opcode.SET, {"value": value, "extras": bytes(8)})
        framing = encode_frame_info(1, b"\1" + struct.pack(">H", self.chance.choice((2000, 20_000))))
        is_blocked = any(other.waiting is not None and other.waiting[0] == key for other in self.writers)
        frames = writer.peer.send(opcode, vbid=1, key=key, framing=framing, **fields)
        if value is None and self.documents.get(key) is None:
            assert [frame.status for frame in frames] == [Status.KEY_ENOENT]
        elif is_blocked:
            assert [frame.status for frame in frames] == [Status.SYNC_WRITE_IN_PROGRESS]
        else:
            assert frames == []
            writer.waiting = key, value

    def hear(self) -> None:
        """The answers to clients' durable writes."""
        for writer in self.writers:
            for frame in writer.peer.take():
                assert writer.waiting is not None
                (key, value), writer.waiting = writer.waiting, None
                if frame.status == Status.SUCCESS:
                    self.successes += 1
                    self.documents[key] = value
                else:
                    assert frame.status == Status.SYNC_WRITE_AMBIGUOUS
                    self.ambiguous += 1

    def held_by(self, node: SimulatedNode) -> dict[bytes, bytes | None]:
        """The documents that GET finds."""
        found = {key: node.admin.call(Opcode.GET, vbid=1, key=key) for key in KEYS}
        return {key: frame.value if frame.status == Status.SUCCESS else None for key, frame in found.items()}

    @property
    def expected(self) -> dict[bytes, bytes | None]:
        """The documents that should be there."""
        return {key: self.documents.get(key) for key in KEYS}


def documents_in(frames: list[Frame]) -> dict[bytes, bytes | None]:
    """The documents that a client makes of a stream's messages; prepares count when they are committed."""
    found: dict[bytes, bytes | None] = dict.fromkeys(KEYS)
    prepared: dict[bytes, tuple[int, bytes | None]] = {}
    last, is_disk = 0, False
    for frame in frames:
        if frame.opcode == Opcode.DCP_SNAPSHOT_MARKER:
            is_disk = bool(struct.unpack_from(">QQI", frame.extras)[2] & MarkerFlag.DISK)
        if frame.opcode not in DATA | {Opcode.DCP_PREPARE, Opcode.DCP_COMMIT, Opcode.DCP_ABORT}:
            continue
        seqnos = struct.unpack_from(">QQ", frame.extras)
        is_decision = frame.opcode in (Opcode.DCP_COMMIT, Opcode.DCP_ABORT)
        seqno = seqnos[1] if is_decision else seqnos[0]
        assert seqno > last
        last = seqno
        if frame.opcode == Opcode.DCP_PREPARE:
            assert frame.key not in prepared
            prepared[frame.key] = seqno, None if frame.extras[29] else frame.value
        elif frame.opcode == Opcode.DCP_ABORT and is_disk:
            assert frame.key not in prepared  # it took its prepare's place
        elif is_decision:
            number, value = prepared.pop(frame.key)
            assert number == seqnos[0]
            if frame.opcode == Opcode.DCP_COMMIT:
                found[frame.key] = value
        else:
            prepared.pop(frame.key, None)
            found[frame.key] = frame.value if frame.opcode == Opcode.DCP_MUTATION else None
    assert not prepared
    return found


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 10))])
def test_everybody_agrees(seed: int, on_disk: bool, tmp_path: Path) -> None:
    world = World(seed, tmp_path if on_disk else None)
    live = world.old.producer(b"live", controls=((b"enable_sync_writes", b"true"),))
    live.stream(1)
    live.take()
    watched = len(live.received)
    for _ in range(STEPS):
        world.step()
    world.link.run()
    world.hear()
    assert all(writer.waiting is None for writer in world.writers)
    assert world.successes
    assert world.held_by(world.old) == world.expected
    assert documents_in(live.received[watched:]) == world.expected
    for name, controls in ((b"plain", ()), (b"sync", ((b"enable_sync_writes", b"true"),))):
        assert documents_in(world.old.producer(name, controls=controls).stream(1)) == world.expected, name
    world.new.set_vbucket(1, ACTIVE, ALONE)
    assert world.held_by(world.new) == world.expected


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 20))])
def test_what_was_acknowledged_survives_the_loss_of_the_active(seed: int) -> None:
    world = World(seed + 100)
    committed: dict[bytes, bytes | None] = {}
    for _ in range(STEPS):
        key = world.chance.choice(KEYS)
        idle = [writer for writer in world.writers if writer.waiting is None]
        if world.chance.random() < 0.5 and idle:
            world.write_durably(world.chance.choice(idle), key, b"%d" % world.chance.getrandbits(30))
        else:
            world.link.step()
        world.hear()
        committed = world.expected
    world.new.set_vbucket(1, ACTIVE, ALONE)
    waiting = {writer.waiting for writer in world.writers}
    for key, value in world.held_by(world.new).items():
        assert value == committed[key] or (key, value) in waiting
