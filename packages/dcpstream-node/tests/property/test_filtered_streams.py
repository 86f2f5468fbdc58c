"""Readers with filters of all kinds against a model: whatever happens, each ends up with what is there.

A world is a vbucket with collections that come and go, documents in them, checkpoints and purges, and readers that
follow it with a filter through a small window, stop anywhere and resume where they stood. Whenever the node has
nothing more to say, every reader must hold exactly the documents of its collections.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dcpstream.client.machine.tracker import PositionTracker
from dcpstream.model import StreamOffset
from dcpstream.wire import Frame, Opcode, Status, StreamEndReason
from dcpstream.wire.keys import leb128_decode, leb128_encode
from dcpstream.wire.values import decode_failover_log
from dcpstream_node.testing.simulation import Peer, SimulatedNode
from tests.kit.streams import collection, manifest, message, new_checkpoint, purge, scope, set_manifest

SCOPES = {0x20: "s1", 0x21: "s2"}
IDS = (0x30, 0x31, 0x32, 0x33)
SCOPE_OF = {number: (0x20 if number % 2 == 0 else 0x21) for number in IDS}
WINDOW = (b"connection_buffer_size", b"150")
"""Two or three messages at a time."""
OSO = (b"enable_out_of_order_snapshots", b"true_with_seqno_advanced")
FLATBUFFERS = (b"flatbuffers_system_events", b"true")


@dataclass
class Reader:
    """A client that follows one filter."""

    peer: Peer
    ids: frozenset[int] | None
    scope_id: int | None
    tracker: PositionTracker = field(default_factory=lambda: PositionTracker(StreamOffset.ZERO))
    documents: dict[bytes, int] = field(default_factory=dict)
    is_open: bool = False
    ended: int | None = None
    in_oso: bool = False

    @property
    def value(self) -> bytes:
        if self.scope_id is not None:
            return b'{"scope":"%x"}' % self.scope_id
        if self.ids is None:
            return b""
        return b'{"collections":[%s]}' % b",".join(b'"%x"' % number for number in sorted(self.ids))

    def open(self) -> None:
        """Ask for what follows; after a rollback from the beginning."""
        offset = self.tracker.offset
        start, low, high = offset.request_bounds()
        frames = self.peer.stream(
            1, start, vbuuid=offset.vbuuid if start else 0, snapshot=(low, high), value=self.value
        )
        status = frames[0].status
        if status == Status.ROLLBACK:
            assert start, "nobody goes back from the beginning"
            self.tracker = PositionTracker(StreamOffset.ZERO)
            self.documents.clear()
            self.open()
            return
        self.is_open = status == 0
        if self.is_open:
            self.tracker.opened(decode_failover_log(frames[0].value))
            self.take(frames[1:])
        else:
            assert status in (Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE)
            self.ended = int(StreamEndReason.FILTER_EMPTY)

    def resume(self, living: set[int]) -> None:
        """Go on without the collections that were dropped meanwhile: a request that names one is refused."""
        self.ended = None
        if self.ids is not None:
            self.ids &= living
            self.documents = {key: at for key, at in self.documents.items() if leb128_decode(key)[0] in self.ids}
            if not self.ids:
                self.ended = int(StreamEndReason.FILTER_EMPTY)
                return
        self.open()

    @property
    def must_go_back(self) -> bool:
        """Whether deletions that it had not seen were purged: the node tells it when it asks again."""
        return self.ended == StreamEndReason.STATE_CHANGED

    def take(self, frames: list[Frame]) -> None:
        """Check the messages of the stream as they come."""
        for frame in frames:
            if frame.opcode == Opcode.DCP_SNAPSHOT_MARKER:
                marker = message(frame)
                assert marker.start_seqno <= marker.end_seqno  # type: ignore[attr-defined]
                self.tracker.marker(marker.start_seqno, marker.end_seqno)  # type: ignore[attr-defined]
            elif frame.opcode == Opcode.DCP_OSO_SNAPSHOT:
                self.in_oso = frame.extras[3] == 1
                self.tracker.oso(self.in_oso)
            elif frame.opcode == Opcode.DCP_STREAM_END:
                self.ended, self.is_open = frame.extras[3], False
            else:
                self._item(frame)

    def _item(self, frame: Frame) -> None:
        seqno = int.from_bytes(frame.extras[:8], "big")
        assert seqno > self.tracker.seqno or self.in_oso
        self.tracker.item(seqno)
        if frame.opcode == Opcode.DCP_SYSTEM_EVENT:
            if frame.extras[11] == 1 and frame.extras[12] == 0:
                number = int.from_bytes(frame.value[12:16], "big")
                gone = [key for key in self.documents if leb128_decode(key)[0] == number]
                for key in gone:
                    del self.documents[key]
        elif frame.opcode == Opcode.DCP_MUTATION:
            self.documents[frame.key] = seqno
        elif frame.opcode == Opcode.DCP_DELETION:
            self.documents.pop(frame.key, None)

    def acknowledge(self) -> bool:
        """Make room for more; whether more came."""
        frames = [frame for frame in self.peer.take() if frame.is_request]
        frames += self.peer.buffer_ack(1 << 20)
        self.take(frames)
        return bool(frames)

    def drain(self) -> None:
        """Read to the end of what is there."""
        while self.is_open and self.acknowledge():
            pass

    def stop(self) -> None:
        """Leave, wherever that is."""
        if self.is_open:
            self.is_open = False
            assert self.peer.close_stream(1)[0].status == 0


class World:
    """The node, what should be there, and who reads it."""

    def __init__(self) -> None:
        self.node = SimulatedNode(vbuckets=2)
        self.node.bucket.parameters.oso_backfill = "enabled"
        self.uid = 0
        self.living: set[int] = set()
        self.scopes: set[int] = set()
        self.used: set[int] = set()
        self.documents: dict[bytes, int] = {}
        self.readers: list[Reader] = []

    def apply_manifest(self) -> None:
        self.uid += 1
        scopes = []
        for number in sorted(self.scopes):
            items = [collection(f"c{item:x}", item) for item in sorted(self.living) if SCOPE_OF[item] == number]
            scopes.append(scope(SCOPES[number], number, *items))
        set_manifest(self.node, manifest(self.uid, *scopes))

    def create(self, number: int) -> None:
        if number not in self.used:
            self.used.add(number)
            self.living.add(number)
            self.scopes.add(SCOPE_OF[number])
            self.apply_manifest()

    def drop(self, number: int) -> None:
        if number in self.living:
            self.living.discard(number)
            self.documents = {key: at for key, at in self.documents.items() if leb128_decode(key)[0] != number}
            self.apply_manifest()

    def drop_scope(self, number: int) -> None:
        if number in self.scopes and not any(SCOPE_OF[item] == number for item in IDS if item not in self.used):
            for item in [item for item in self.living if SCOPE_OF[item] == number]:
                self.drop(item)
            self.scopes.discard(number)
            self.apply_manifest()

    def write(self, number: int, name: int) -> None:
        if number == 0 or number in self.living:
            prefix = leb128_encode(number)
            self.node.set_doc(1, f"k{name}", collection=prefix)
            self.documents[prefix + b"k%d" % name] = self.node.vbucket(1).high_seqno

    def delete(self, number: int, name: int) -> None:
        key = leb128_encode(number) + b"k%d" % name
        if key in self.documents:
            self.node.delete_doc(1, f"k{name}", collection=leb128_encode(number))
            del self.documents[key]

    def read(self, ids: frozenset[int] | None, scope_id: int | None, *, is_oso: bool, is_flat: bool) -> None:
        controls = (
            [WINDOW]
            + ([OSO] if is_oso else [])
            + ([FLATBUFFERS] if is_flat and ids is None and scope_id is None else [])
        )
        reader = Reader(self.node.producer(b"r%d" % len(self.readers), controls=controls), ids, scope_id)
        if ids is not None and not ids <= self.living | {0}:
            return
        if scope_id is not None and scope_id not in self.scopes:
            return
        self.readers.append(reader)
        reader.open()

    def check(self) -> None:
        self.node.pump()
        high = self.node.vbucket(1).high_seqno
        for reader in self.readers:
            reader.drain()
            if reader.must_go_back:
                reader.resume(self.living | {0})
                reader.drain()
            if reader.ended is not None:
                assert reader.ended == StreamEndReason.FILTER_EMPTY
                if reader.ids is not None:
                    assert not reader.ids & (self.living | {0})
                else:
                    assert reader.scope_id not in self.scopes
                continue
            if not reader.is_open:
                continue
            wanted = {key: at for key, at in self.documents.items() if self.is_wanted(reader, leb128_decode(key)[0])}
            is_flat = reader.ids is None and reader.scope_id is None
            found = reader.documents
            if is_flat:  # such a reader may get its events in a layout that this one does not read
                found = {key: at for key, at in found.items() if leb128_decode(key)[0] in self.living | {0}}
            assert found == wanted
            assert reader.tracker.seqno <= high

    def is_wanted(self, reader: Reader, number: int) -> bool:
        if reader.scope_id is not None:
            return SCOPE_OF.get(number) == reader.scope_id
        return reader.ids is None or number in reader.ids


numbers = st.sampled_from((0, *IDS))
steps = st.one_of(
    st.tuples(st.just("write"), numbers, st.integers(0, 3)),
    st.tuples(st.just("write"), numbers, st.integers(0, 3)),
    st.tuples(st.just("delete"), numbers, st.integers(0, 3)),
    st.tuples(st.just("create"), st.sampled_from(IDS)),
    st.tuples(st.just("drop"), st.sampled_from(IDS)),
    st.tuples(st.just("drop_scope"), st.sampled_from(tuple(SCOPES))),
    st.tuples(st.just("checkpoint")),
    st.tuples(st.just("purge")),
    st.tuples(st.just("read"), st.frozensets(numbers, min_size=1, max_size=2), st.booleans()),
    st.tuples(st.just("read_scope"), st.sampled_from(tuple(SCOPES)), st.booleans()),
    st.tuples(st.just("read_all"), st.booleans()),
    st.tuples(st.just("stop"), st.integers(0, 9)),
    st.tuples(st.just("resume"), st.integers(0, 9)),
    st.tuples(st.just("acknowledge"), st.integers(0, 9)),
    st.tuples(st.just("check")),
)
READERS_MAX = 6


def take(world: World, step: tuple) -> None:
    """One step."""
    name, *rest = step
    if name in ("write", "delete", "create", "drop", "drop_scope"):
        getattr(world, name)(*rest)
    elif name == "checkpoint":
        new_checkpoint(world.node)
    elif name == "purge":
        purge(world.node)
    elif name.startswith("read") and len(world.readers) < READERS_MAX:
        if name == "read":
            world.read(rest[0], None, is_oso=rest[1], is_flat=False)
        elif name == "read_scope":
            world.read(None, rest[0], is_oso=rest[1], is_flat=False)
        else:
            world.read(None, None, is_oso=False, is_flat=rest[0])
    elif name in ("stop", "resume", "acknowledge") and rest[0] < len(world.readers):
        reader = world.readers[rest[0]]
        reader.take([frame for frame in reader.peer.take() if frame.is_request])
        if name == "acknowledge" and reader.is_open:
            reader.acknowledge()
        elif name == "stop":
            reader.stop()
        elif name == "resume" and not reader.is_open and (reader.ended is None or reader.must_go_back):
            reader.resume(world.living | {0})
    elif name == "check":
        world.check()


@given(st.lists(steps, min_size=5, max_size=40))
@example(
    [("create", 48), ("write", 0, 0), ("read", frozenset([0, 48]), False), ("drop", 48), ("create", 49), ("purge",)]
)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_every_reader_ends_up_with_what_is_there(plan: list[tuple]) -> None:
    world = World()
    for step in plan:
        take(world, step)
    world.check()
