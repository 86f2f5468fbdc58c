"""DCP streams of simulated nodes: frames in the form that tests compare, manifests, purges, branches of history."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping

from dcpstream.model import VbucketState
from dcpstream.wire import Feature, Frame, Opcode, OpenFlag, Status, StreamEndReason, decode_message
from dcpstream.wire.keys import leb128_encode
from dcpstream.wire.messages.dcp import Mutation
from dcpstream_node.testing.simulation import USUAL_FEATURES, Peer, SimulatedNode

FRUIT, VEG = 8, 0xA
FRUIT_KEY, VEG_KEY = leb128_encode(FRUIT), leb128_encode(VEG)
VEG_SCOPE = 9
DEFAULT = {"name": "_default", "uid": "0"}

FROM_MEMORY, FROM_DISK, CHECKPOINT = 1, 2, 4
FIRST, LATER, DISK = FROM_MEMORY | CHECKPOINT, FROM_MEMORY, FROM_DISK | CHECKPOINT

ACTIVE, REPLICA, PENDING, DEAD = VbucketState

WITHOUT_XERROR = tuple(feature for feature in USUAL_FEATURES if feature != Feature.XERROR)

_NAMES = {
    Opcode.DCP_STREAM_END: "end",
    Opcode.DCP_SEQNO_ADVANCED: "advanced",
    Opcode.DCP_OSO_SNAPSHOT: "oso",
    Opcode.DCP_SET_VBUCKET_STATE: "state",
}


def opcodes(frames: Iterable[Frame]) -> list[int]:
    """The opcodes, in order."""
    return [frame.opcode for frame in frames]


def of(frames: Iterable[Frame], opcode: int) -> list[Frame]:
    """The frames with this opcode."""
    return [frame for frame in frames if frame.opcode == opcode]


def statuses(frames: Iterable[Frame]) -> list[int]:
    """The statuses of frames that must all be answers."""
    found = list(frames)
    assert all(frame.is_response for frame in found), found
    return [frame.status for frame in found]


def seqno_of(frame: Frame) -> int:
    """The seqno of a message that has one: all have it first in their extras."""
    return int.from_bytes(frame.extras[:8], "big")


def read(frames: Iterable[Frame]) -> list[object]:
    """Frames as tests compare them.

    Answers as ("answer", status), markers as (start, end, flags), data as the seqno, system events as
    ("event", seqno, kind), all else as (name, number).
    """
    out: list[object] = []
    for frame in frames:
        if frame.is_response:
            out.append(("answer", frame.status))
        elif frame.opcode == Opcode.DCP_SNAPSHOT_MARKER:
            body = frame.extras if len(frame.extras) == 20 else frame.value
            out.append(struct.unpack_from(">QQI", body))
        elif frame.opcode == Opcode.DCP_SYSTEM_EVENT:
            out.append(("event", seqno_of(frame), int.from_bytes(frame.extras[8:12], "big")))
        elif frame.opcode in _NAMES:
            out.append((_NAMES[Opcode(frame.opcode)], int.from_bytes(frame.extras, "big")))
        else:
            out.append(seqno_of(frame))
    return out


def answer(frames: list[Frame]) -> tuple[int, bytes]:
    """Status and value of the only answer among the frames."""
    found = [frame for frame in frames if frame.is_response]
    assert len(found) == 1, frames
    return found[0].status, found[0].value


def sent(frames: list[Frame]) -> list[object]:
    """The frames after the answer to a STREAM_REQ, which must be a success, as `read` shows them."""
    assert frames, "nothing came"
    assert answer(frames)[0] == 0, frames[0]
    return read(frames[1:])


def end(reason: StreamEndReason = StreamEndReason.OK) -> tuple[str, int]:
    """A STREAM_END as `read` shows it."""
    return "end", int(reason)


def manifest(uid: int, *scopes: Mapping[str, object], default: Iterable[Mapping[str, object]] = ()) -> bytes:
    """The value of a SET_COLLECTIONS: the default scope with its collection and others, and more scopes."""
    first = DEFAULT | {"collections": [DEFAULT, *default]}
    return json.dumps({"uid": f"{uid:x}", "scopes": [first, *scopes]}).encode()


def collection(name: str, number: int, **more: object) -> dict[str, object]:
    """A collection in a manifest."""
    return {"name": name, "uid": f"{number:x}"} | more


def scope(name: str, number: int, *collections: Mapping[str, object]) -> dict[str, object]:
    """A scope in a manifest."""
    return {"name": name, "uid": f"{number:x}", "collections": list(collections)}


GARDEN = manifest(1, scope("s1", VEG_SCOPE, collection("veg", VEG)), default=[collection("fruit", FRUIT)])
"""Scope s1 (9) with veg (0xa), and fruit (8) in the default scope: events 1 (scope), 2 (veg), 3 (fruit)."""


def set_manifest(node: SimulatedNode, value: bytes, status: int = 0) -> None:
    """SET_COLLECTIONS."""
    found = node.admin.call(Opcode.SET_COLLECTIONS, value=value)
    assert found.status == status, found
    node.pump()


def garden(**options: object) -> SimulatedNode:
    """A node with `GARDEN`: seqnos 4, 6, 8 in fruit, 5, 7, 9 in veg, 10 in the default collection, of vbucket 1."""
    node = SimulatedNode(**options)  # type: ignore[arg-type]
    set_manifest(node, GARDEN)
    for index in range(3):
        node.set_doc(1, f"ap{index}", collection=FRUIT_KEY)
        node.set_doc(1, f"ca{index}", collection=VEG_KEY)
    node.set_doc(1, "plain")
    return node


def new_checkpoint(node: SimulatedNode, vbid: int = 1) -> None:
    """Begin a checkpoint: later streams read the existing rows from disk. Only releases before 7.6 have a command."""
    node.flush()
    node.vbucket(vbid).close_checkpoint()


LATER_S = 1 << 33
"""A time after every deletion."""


def purge(node: SimulatedNode, vbid: int = 1, *, before_seqno: int = 0) -> None:
    """COMPACT_DB with drop_deletes, or of all deletions up to a seqno."""
    before_time = LATER_S if before_seqno else 0
    extras = struct.pack(">QQBBHI", before_time, before_seqno, not before_seqno, 0, 0, 0)
    assert node.admin.call(Opcode.COMPACT_DB, vbid=vbid, extras=extras).status == 0
    node.pump()


def purged(**options: object) -> SimulatedNode:
    """A node whose vbucket 1 has seqnos 1 to 11; 7 to 10 were deletions of 1 to 4 and are purged."""
    node = SimulatedNode(**options)  # type: ignore[arg-type]
    node.fill(1, 6)
    for index in range(4):
        node.delete_doc(1, f"k{index}")
    node.set_doc(1, "last")
    node.flush()
    purge(node)
    new_checkpoint(node)
    return node


def branched(node: SimulatedNode, vbid: int = 1, *, before: int = 10, after: int = 5) -> tuple[int, int]:
    """Two branches: `before` documents, a failover, `after` documents; the older and the newer vbuuid."""
    node.fill(vbid, before)
    node.flush()
    node.set_vbucket(vbid, 2)
    node.set_vbucket(vbid, 1)
    node.fill(vbid, after, prefix="m")
    node.flush()
    log = node.failover_log(vbid).entries
    assert [entry.seqno for entry in log] == [before, 0]
    return log[1].vbuuid, log[0].vbuuid


def message(frame: Frame) -> object:
    """The typed message."""
    return decode_message(frame)


def drain(peer: Peer) -> list[object]:
    """The frames that came since the last call, as `read` shows them."""
    peer.node.pump()
    return read(peer.take())


def without_control(name: bytes) -> Callable[[Frame], int]:
    """The answers of a producer that does not know one control, for `ScriptedProducer.negotiate`."""
    return lambda frame: Status.EINVAL if frame.key == name else Status.SUCCESS


def stored(node: SimulatedNode, key: bytes, vbid: int = 1) -> Frame:
    """The newest version of a document as a new reader gets it, with its attributes and the time of its deletion."""
    flags = OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES
    reader = node.producer(b"stored-%d" % len(node.peers), flags)
    versions = [frame for frame in reader.stream(vbid) if frame.is_request and frame.key == key]
    reader.disconnect()
    return versions[-1]


def stored_mutation(node: SimulatedNode, key: bytes, vbid: int = 1) -> Mutation:
    """As `stored`, of a document that is there."""
    message = decode_message(stored(node, key, vbid))
    assert isinstance(message, Mutation)
    return message


def item_count(node: SimulatedNode, vbid: int = 1) -> int:
    """The documents of a vbucket."""
    return int(node.stats(f"vbucket-details {vbid}")[f"vb_{vbid}:num_items"])


def dcp_stat(node: SimulatedNode, name: str, connection: str = "reader") -> str:
    """A statistic of a DCP connection."""
    return node.stats("dcp")[f"eq_dcpq:{connection}:{name}"]


def dcp_names(node: SimulatedNode) -> list[str]:
    """The names of the DCP connections."""
    return sorted(key[8:-5] for key in node.stats("dcp") if key.startswith("eq_dcpq:") and key.endswith(":type"))


def is_plain(peer: Peer) -> bool:
    """Whether this is no DCP connection, whose user may read."""
    return peer.call(Opcode.DCP_GET_FAILOVER_LOG, vbid=1).status == Status.EINVAL


def set_parameter(node: SimulatedNode, name: bytes, value: bytes, group: int = 4) -> None:
    """SET_PARAM; the group 4 is about DCP."""
    answer = node.admin.call(Opcode.SET_PARAM, key=name, value=value, extras=group.to_bytes(4, "big"))
    assert answer.status == 0, answer
