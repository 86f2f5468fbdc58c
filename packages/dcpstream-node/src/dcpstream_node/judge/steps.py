"""From a transcript to comparable steps.

A step is one frame from the server, one STAT answer as a whole, or the server closing a connection. Its literal part
must be equal; its roles (CAS, vbuuid, opaque, uid of a manifest) must correspond one to one; its times must lie equally
far from the start of their runs.
"""

from __future__ import annotations

import json
import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import cramjam

from dcpstream_node.judge.packets import HEADER_BYTES, Op, Packet, op_name, status_name
from dcpstream_node.judge.transcript import Line, line_bytes

DISK, CHECKPOINT, ACK = 0x02, 0x04, 0x08
DOCUMENTS = {Op.DCP_MUTATION, Op.DCP_DELETION, Op.DCP_EXPIRATION}
ITEMS = DOCUMENTS | {Op.DCP_SYSTEM_EVENT}
NOOP_SCENARIOS = ("s18", "s36")
DATATYPE_SNAPPY = 2
SERVER_REQUEST = 0x82
DURATION = b"\x02"
MANIFEST_UID_BYTES = 8
FLATBUFFERS = b"\x02"
"""The version of a system event whose value is a FlatBuffer; earlier ones begin with the uid of the manifest."""
SCOPE_BEGINS, SCOPE_ENDS, COLLECTION_ENDS = 3, 4, 1
FLAT_FIELDS = {SCOPE_BEGINS: (8, 4, 0), SCOPE_ENDS: (8, 4, 1), COLLECTION_ENDS: (8, 4, 4, 1)}
"""Bytes of each field of an event's FlatBuffer, 0 for a text; the first field is the uid of the manifest."""
FLAT_COLLECTION = (8, 4, 4, 1, 4, 0, 1, 8, 1, 8)
"""The same for the other events, which describe a whole collection."""
# In 8.0 the bucket of s33 stays.
LEFT_BUCKET = b"b2"
LOG_OPS = {Op.DCP_STREAM_REQ, Op.DCP_GET_FAILOVER_LOG, Op.GET_FAILOVER_LOG}
TIME_FIELDS = {"expiry", "delete_time"}
# The consumer of 7.2 asks for this always, that of 8.0 for its share of the quota,
# and again when consumers come and go.
BUFFER_SIZE, BUFFER_SIZE_72 = b"connection_buffer_size", b"52428800"
# Cursors and connections other than the scenario's own come and go.
VOLATILE_STATS = (re.compile(r"^eq_dcpq:(?!stats-)"), re.compile(r"cursor"), re.compile(r"^ep_dcp_dead_conn_count$"))


@dataclass
class Step:
    """One thing the server did on a connection."""

    conn: str
    kind: str
    literal: tuple[Any, ...]
    text: str
    request: str = ""
    request_hex: str = ""
    roles: list[tuple[str, int]] = field(default_factory=list)
    times: list[tuple[str, int]] = field(default_factory=list)
    frame: Packet | None = None
    optional: bool = False
    setup: bool = False
    joined_end: int = 0

    @property
    def packet(self) -> Packet:
        """The frame of a step that has one."""
        assert self.frame is not None, self.kind
        return self.frame


@dataclass
class Transcript:
    """The steps of a run by connection, and when the run began."""

    name: str
    started: int
    steps: dict[str, list[Step]]
    aborted: str = ""
    release: str = "7.2"


class Reader:
    """Turns the lines of one transcript into steps."""

    def __init__(self, name: str, lines: Iterable[Line]) -> None:
        self.name = name
        self.keeps_noop = name.startswith(NOOP_SCENARIOS)
        self.vbuckets: set[int] = set()
        self.opaques: dict[str, set[int]] = defaultdict(set)
        self.requests: dict[str, tuple[str, str]] = {}
        self.steps: dict[str, list[Step]] = defaultdict(list)
        self.polls: dict[str, str | None] = {}
        self.started = 0
        self.aborted = ""
        self.release = "7.2"
        self.acks: dict[str, str] = {}
        self.shares: set[str] = set()
        for line in lines:
            self.read(line)
        for conn, text in self.acks.items():
            self.steps[conn].append(Step(conn, "acks", ("BUFFER_ACK",), text))

    def read(self, line: Line) -> None:
        """Take one line."""
        event = line.get("event")
        if event == "start":
            self.started = line["unix"]
            self.release = line.get("release", "7.2")
        elif event == "aborted":
            self.aborted = line["note"]
        elif event == "connect":
            self.steps[line["conn"]] = []
        elif event == "closed":
            text = "server closed the connection"
            self.add(line, Step(line["conn"], "closed", ("closed",), text))
        elif line["dir"] == "c2s":
            self.read_request(line)
        elif line["dir"] == "s2c":
            self.read_frame(line)

    def read_request(self, line: Line) -> None:
        """Remember what the client sent; what comes next is shown with it."""
        conn = line["conn"]
        self.requests[conn] = line["note"], line["hex"]
        raw = line_bytes(line)
        if len(raw) < HEADER_BYTES:
            return
        while len(raw) >= HEADER_BYTES:
            size = HEADER_BYTES + struct.unpack(">I", raw[8:12])[0]
            self.remember(conn, Packet.parse(raw[:size]))
            raw = raw[size:]

    def remember(self, conn: str, frame: Packet) -> None:
        """Opaques the client chose, vbuckets it set up."""
        self.opaques[conn].add(frame.opaque)
        if frame.op == Op.SET_VBUCKET:
            self.vbuckets.add(frame.vbucket)

    def read_frame(self, line: Line) -> None:
        """Take one frame of the server."""
        frame = Packet.parse(line_bytes(line))
        if frame.op == Op.STAT and frame.is_response:
            self.read_stat(line, frame)
            return
        if frame.op == Op.DCP_BUFFER_ACK and not frame.is_response:
            self.acks[line["conn"]] = "BUFFER_ACK at some time, of some size"
            return
        if line.get("optional") and frame.op == Op.COLLECTIONS_GET_MANIFEST:
            return  # only to know the uid, which depends on what ran before
        if is_buffer_share(frame):
            if line["conn"] in self.shares:
                return
            self.shares.add(line["conn"])
        step = self.frame_step(line["conn"], frame)
        is_noop = frame.op == Op.DCP_NOOP and not frame.is_response
        if is_noop and (not self.keeps_noop or self.repeats_noop(line["conn"])):
            return
        self.add(line, step)

    def repeats_noop(self, conn: str) -> bool:
        """Whether the step before was a NOOP too."""
        before = self.steps[conn][-1:]
        return bool(before) and is_noop_request(before[0])

    def read_stat(self, line: Line, frame: Packet) -> None:
        """STAT answers become one step with the names of the keys."""
        if line.get("optional"):
            return
        conn = line["conn"]
        steps = self.steps[conn]
        if frame.key and frame.status == 0:
            if not steps or steps[-1].kind != "stat open":
                self.add(line, Step(conn, "stat open", (), ""))
            steps[-1].literal += (stat_key(frame.key),)
            return
        if not steps or steps[-1].kind != "stat open":
            self.add(line, Step(conn, "stat open", (), ""))
        finish_stat(steps[-1], frame)

    def add(self, line: Line, step: Step) -> None:
        """Append a step; of repeated attempts only the last one stays."""
        step.request, step.request_hex = self.requests.get(step.conn, ("", ""))
        step.optional = bool(line.get("optional"))
        step.setup = bool(line.get("setup"))
        poll = line.get("poll")
        steps = self.steps[step.conn]
        if poll and self.polls.get(step.conn) == poll and steps:
            steps.pop()
        self.polls[step.conn] = poll
        steps.append(step)

    def frame_step(self, conn: str, frame: Packet) -> Step:
        """A frame, taken apart by what must be equal and what may differ."""
        step = Step(conn, "frame", (), frame.describe(), frame=frame)
        known = frame.opaque in self.opaques[conn]
        step.roles.append(("opaque", frame.opaque))
        step.roles.append(("cas", frame.cas))
        extras = self.read_extras(step, frame)
        value = self.read_value(step, frame)
        step.literal = (
            op_name(frame.op),
            direction(frame),
            frame.vbucket,
            "asked" if known else "own opaque",
            "cas" if frame.cas else "no cas",
            frame.datatype,
            plain_framing(frame),
            extras,
            frame.key,
            value,
        )
        return step

    def read_extras(self, step: Step, frame: Packet) -> Any:
        """The literal part of the extras; roles and times go to the step."""
        if frame.is_response:
            return read_response_extras(step, frame)
        fields = frame.extras_fields()
        if not fields:
            return frame.extras
        if "vbuuid" in fields:
            step.roles.append(("vbuuid", fields.pop("vbuuid")))
        for name in TIME_FIELDS & set(fields):
            step.times.append((name, fields[name]))
            fields[name] = bool(fields[name])
        return tuple(sorted(fields.items()))

    def read_value(self, step: Step, frame: Packet) -> Any:
        """The literal part of the value."""
        if frame.is_response and frame.status == 0:
            if frame.op in LOG_OPS:
                return read_failover_log(step, frame.value)
            if frame.op == Op.GET_ALL_VB_SEQNOS:
                return self.own_seqnos(frame.value)
            if frame.op == Op.VERSION:
                return bool(frame.value)
            if frame.op == Op.LIST_BUCKETS:
                return tuple(sorted(set(frame.value.split()) - {LEFT_BUCKET}))
        value = plain_value(frame)
        if frame.op != Op.DCP_SYSTEM_EVENT or frame.is_response:
            return value
        if frame.extras[-1:] == FLATBUFFERS:
            # A field that is 0 is left out, so the place of the others depends on the uid.
            uid, *fields = flat_fields(int(frame.extras_fields()["event"]), value)
            value = tuple(fields)
        else:
            uid, value = int.from_bytes(value[:MANIFEST_UID_BYTES], "big"), value[MANIFEST_UID_BYTES:]
        step.roles.append(("manifest", uid))
        return value

    def own_seqnos(self, value: bytes) -> tuple[tuple[int, int], ...]:
        """Seqnos of the vbuckets that this scenario set up."""
        pairs = struct.iter_unpack(">HQ", value[: len(value) // 10 * 10])
        return tuple(pair for pair in pairs if pair[0] in self.vbuckets)


def direction(frame: Packet) -> str:
    """Response, request of a peer, or request of a server in duplex mode."""
    if frame.is_response:
        return "response"
    return "server request" if frame.magic == SERVER_REQUEST else "request"


def plain_framing(frame: Packet) -> bytes:
    """The framing bytes; of the server's duration only that it is there."""
    if frame.is_response and frame.framing[:1] == DURATION:
        return DURATION + frame.framing[3:]
    return frame.framing


def is_buffer_share(frame: Packet) -> bool:
    """Whether a consumer of 8.0 asks for its share of the buffers."""
    wanted = frame.op == Op.DCP_CONTROL and frame.key == BUFFER_SIZE
    return wanted and not frame.is_response and frame.value != BUFFER_SIZE_72


def is_noop_request(step: Step) -> bool:
    """Whether the server asks whether we are there."""
    frame = step.frame
    return frame is not None and frame.op == Op.DCP_NOOP and not frame.is_response


def stat_key(key: bytes) -> str:
    """The name of a stat, without its numbers."""
    return re.sub(r"\d+", "N", key.decode(errors="replace"))


def finish_stat(step: Step, frame: Packet) -> None:
    """A STAT answer is complete."""
    keys = {key for key in step.literal if not is_volatile(key)}
    status = status_name(frame.status)
    step.kind = "stat"
    step.literal = (status, tuple(sorted(keys)))
    step.text = f"STAT answer {status}, {len(keys)} names"


def is_volatile(key: str) -> bool:
    """Whether a stat may be there or not."""
    return any(pattern.search(key) for pattern in VOLATILE_STATS)


def read_response_extras(step: Step, frame: Packet) -> Any:
    """Mutation tokens, the stream's opaque, the times of GET_META."""
    extras = frame.extras
    if frame.op == Op.DCP_ADD_STREAM and len(extras) == 4:
        step.roles.append(("opaque", struct.unpack(">I", extras)[0]))
        return "stream opaque"
    if frame.op == Op.GET_META and len(extras) >= 20:
        deleted, flags, expiry, seqno = struct.unpack(">IIIQ", extras[:20])
        step.times.append(("expiry", expiry))
        return (deleted, flags, bool(expiry), seqno, extras[20:])
    if len(extras) == 16:
        vbuuid, seqno = struct.unpack(">QQ", extras)
        step.roles.append(("vbuuid", vbuuid))
        return ("token", seqno)
    return extras


def read_failover_log(step: Step, value: bytes) -> tuple[int, ...]:
    """The seqnos; the uuids are roles."""
    entries = list(struct.iter_unpack(">QQ", value[: len(value) // 16 * 16]))
    for vbuuid, _ in entries:
        step.roles.append(("vbuuid", vbuuid))
    return tuple(seqno for _, seqno in entries)


def flat_fields(event: int, value: bytes) -> list[Any]:
    """The fields of a system event's FlatBuffer, the uid of its manifest first: numbers and texts."""

    def number(at: int, size: int) -> int:
        return int.from_bytes(value[at : at + size], "little")

    table = number(0, 4)
    places = table - int.from_bytes(value[table : table + 4], "little", signed=True)
    fields: list[Any] = []
    for index, size in enumerate(FLAT_FIELDS.get(event, FLAT_COLLECTION)):
        at = 4 + 2 * index
        offset = number(places + at, 2) if at < number(places, 2) else 0
        if size or not offset:
            fields.append(number(table + offset, size) if offset else 0)
        else:
            start = table + offset + number(table + offset, 4)
            fields.append(value[start + 4 : start + 4 + number(start, 4)])
    return fields


def plain_value(frame: Packet) -> Any:
    """Values as they are; JSON of answers parsed, snappy inflated."""
    value = frame.value
    if is_buffer_share(frame):
        return value.isdigit()
    if frame.datatype & DATATYPE_SNAPPY:
        value = inflate(value)
    if frame.is_response and value[:1] == b"{":
        return plain_json(value)
    return value


def plain_json(value: bytes) -> str | bytes:
    """JSON in one form; of an error's texts only which there are."""
    try:
        document = json.loads(value)
    except ValueError:
        return value
    error = document.get("error")
    if isinstance(error, dict):
        error.pop("ref", None)
        document["error"] = {name: name == "context" or error[name] for name in error}
    if document == {"error": {}}:
        return b""
    return json.dumps(document, sort_keys=True)


def inflate(data: bytes) -> bytes:
    """Snappy; bytes that are not snappy stay as they are."""
    try:
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError:
        return data


def read_steps(name: str, lines: Iterable[Line]) -> Transcript:
    """The steps of a transcript."""
    reader = Reader(name, lines)
    return Transcript(name, reader.started, dict(reader.steps), reader.aborted, reader.release)


# One snapshot of live changes may be split into several markers, by timing.


def marker_fields(step: Step) -> dict[str, Any]:
    """The fields of a snapshot marker; of other steps none."""
    frame = step.frame
    if frame is None or frame.is_response or frame.op != Op.DCP_SNAPSHOT_MARKER:
        return {}
    return frame.extras_fields()


def is_live_marker(step: Step) -> bool:
    """Whether a marker announces changes from memory."""
    fields = marker_fields(step)
    return bool(fields) and not fields["flags"] & (DISK | ACK)


def is_item(step: Step) -> bool:
    """Whether a step is a document of a stream."""
    frame = step.frame
    return frame is not None and not frame.is_response and frame.op in ITEMS


def same_stream(first: Step, second: Step) -> bool:
    """Whether two steps belong to one stream."""
    one, two = first.packet, second.packet
    return (one.vbucket, one.opaque) == (two.vbucket, two.opaque)


def split_groups(steps: Iterable[Step]) -> list[list[Step]]:
    """Groups: a live marker with its items, or any other single step."""
    groups: list[list[Step]] = []
    for step in steps:
        last = groups[-1] if groups else None
        if last and is_live_marker(last[0]) and is_item(step) and same_stream(last[0], step):
            last.append(step)
            continue
        groups.append([step])
    return groups


def snapshot_end(group: Sequence[Step]) -> int:
    """The end of a group's snapshot, or of the last one joined to it."""
    return group[0].joined_end or int(marker_fields(group[0])["end"])


def is_sound(group: Sequence[Step]) -> bool:
    """Whether a marker's items lie within it, and the last one ends it."""
    seqnos = [step.packet.extras_fields().get("by_seqno", 0) for step in group[1:]]
    if not seqnos or seqnos != sorted(seqnos):
        return False
    start = marker_fields(group[0])["start"]
    return bool(start <= seqnos[0]) and seqnos[-1] == snapshot_end(group)


def may_join(first: Sequence[Step], second: Sequence[Step]) -> bool:
    """Whether two groups are parts of one sequence of live changes."""
    if not (is_live_marker(first[0]) and is_live_marker(second[0])):
        return False
    if not (same_stream(first[0], second[0]) and is_sound(first) and is_sound(second)):
        return False
    one, two = marker_fields(first[0]), marker_fields(second[0])
    same_flags = two["flags"] in (one["flags"], one["flags"] & ~CHECKPOINT)
    return same_flags and snapshot_end(first) < two["start"]


def joined_live(steps: Iterable[Step]) -> list[Step]:
    """The same steps with live snapshots joined and older versions dropped."""
    joined: list[tuple[list[Step], bool]] = []
    first_seen = set()
    for group in split_groups(steps):
        frame = group[0].frame
        stream = (frame.vbucket, frame.opaque) if frame else None
        live = is_live_marker(group[0])
        if joined and live and stream in first_seen and joined[-1][1] and may_join(joined[-1][0], group):
            joined[-1] = (join(joined[-1][0], group), True)
            continue
        joined.append((group, live and stream in first_seen))
        if live:
            first_seen.add(stream)
    return [step for group, later in joined for step in settle(group, later)]


def join(first: Sequence[Step], second: Sequence[Step]) -> list[Step]:
    """One group of two, with the first one's marker and the second one's end."""
    head = replace(first[0], joined_end=snapshot_end(second))
    return [head, *first[1:], *second[1:]]


def item_identity(step: Step) -> bytes:
    """The key of the items that a newer version supersedes; system events are never superseded."""
    frame = step.packet
    return frame.key if frame.op in DOCUMENTS else frame.raw


def settle(group: list[Step], later: bool) -> list[Step]:
    """A later live group without its start and without superseded versions."""
    if not later:
        return group
    latest = {item_identity(step): step for step in group[1:]}
    items = [step for step in group[1:] if latest[item_identity(step)] is step]
    fields = marker_fields(group[0]) | {"end": snapshot_end(group)}
    del fields["start"]
    vbucket = group[0].packet.vbucket
    literal = ("live marker", vbucket, tuple(sorted(fields.items())))
    return [replace(group[0], literal=literal), *items]
