"""Replays a recorded scenario on the producer machine: the administrator's writes go into lists, the client's frames
into a `ProducerConnection`, and what it answers is put beside what the real server answered."""

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from dcpstream.dcp.opening import Opening, read_open
from dcpstream.dcp.producer.connection import ProducerConnection
from dcpstream.dcp.refusals import Refusal, answer, refuse
from dcpstream.model import MAX_SEQNO, VbucketState
from dcpstream.wire import MarkerFlag, Opcode, Status, decode_frame, decode_message
from dcpstream.wire.release import RELEASES
from dcpstream.wire.values import decode_failover_log
from tests.kit.lists import ListSource, ListVBucket, frames_in
from tests.kit.recorded import is_whole_frame, server_transcript

DCP = range(0x50, 0x66)
LOG_OPCODES = (Opcode.DCP_STREAM_REQ, Opcode.DCP_GET_FAILOVER_LOG, Opcode.GET_FAILOVER_LOG)
NRU = 2


@dataclass
class Peer:
    """A recorded connection and our machine beside it."""

    features: frozenset = frozenset()
    machine: ProducerConnection | None = None
    sent: dict = field(default_factory=dict)
    recorded: list = field(default_factory=list)
    ours: list = field(default_factory=list)
    was_closed: bool = False


def is_json(value):
    try:
        json.loads(value)
    except ValueError:
        return False
    return True


class Replay:
    """One scenario; `peers` holds recorded and own frames of each DCP connection."""

    def __init__(self, scenario, release="7.2", vbucket_count=1024):
        lines = server_transcript(scenario, release)
        self.lines = [line for line in lines if line.event or is_whole_frame(line.frame)]
        self.release = RELEASES[release]
        self.source = ListSource(*(ListVBucket(vbid) for vbid in range(vbucket_count)))
        self.peers = defaultdict(Peer)
        self.revisions = defaultdict(int)
        self.highest_deleted = defaultdict(int)
        self.delete_times = self.find_delete_times()

    def find_delete_times(self):
        times = {}
        for line in self.lines:
            if line.direction == "s2c" and line.frame[1] == Opcode.DCP_DELETION and line.frame[4] == 21:
                frame = decode_frame(line.frame)
                message: Any = decode_message(frame)
                times[frame.vbid, frame.key] = message.delete_time
        return times

    def run(self):
        for line in self.lines:
            if line.event == "closed":
                self.peers[line.connection].was_closed = True
            elif line.direction == "c2s":
                self.from_client(line, self.peers[line.connection], decode_frame(line.frame))
            elif line.direction == "s2c":
                self.from_server(line, self.peers[line.connection], decode_frame(line.frame))
        return {name: peer for name, peer in self.peers.items() if peer.machine is not None}

    def from_client(self, line, peer, frame):
        peer.sent[frame.opaque, frame.opcode] = frame
        if frame.opcode not in DCP:
            return
        self.pump(peer, line.t)
        if frame.opcode == Opcode.DCP_OPEN and peer.machine is None:
            request = read_open(frame, self.release)
            if isinstance(request, Refusal):
                peer.ours.append(decode_frame(refuse(frame, request)))
            elif request.is_producer:
                peer.ours.append(decode_frame(answer(frame)))
                opening = Opening(request.name.decode(), request.flags, peer.features)
                peer.machine = ProducerConnection(opening, self.source, line.t, release=self.release)
        elif peer.machine is not None:
            if frame.opcode in (Opcode.DCP_STREAM_REQ, Opcode.DCP_GET_FAILOVER_LOG):
                self.learn_log(line, frame)
            peer.machine.handle(frame, line.t)
            self.pump(peer, line.t)

    def learn_log(self, line, frame):
        """The branches' names are the server's; take them from its next answer that has them."""
        for later in self.lines:
            if later.number > line.number and later.connection == line.connection and later.direction == "s2c":
                found = decode_frame(later.frame)
                if found.opaque == frame.opaque and found.opcode == frame.opcode:
                    if found.status == Status.SUCCESS and found.value:
                        self.source.vbuckets[frame.vbid].failover_log = decode_failover_log(found.value)
                    return

    def from_server(self, line, peer, frame):
        if frame.is_response and frame.opcode == Opcode.HELLO and frame.status == 0:
            codes = frame.value
            peer.features = frozenset(int.from_bytes(codes[at : at + 2], "big") for at in range(0, len(codes), 2))
        if frame.opcode in DCP and not (frame.opcode == Opcode.DCP_NOOP and frame.is_request):
            self.pump(peer, line.t)
            peer.recorded.append(frame)
        elif frame.is_response and not frame.status and (frame.opaque, frame.opcode) in peer.sent:
            self.apply(peer.sent[frame.opaque, frame.opcode], frame, line.t)

    def apply(self, request, response, now):
        """Change the bucket as a successful command of the administrator did."""
        vbucket = self.source.vbuckets.get(request.vbid)
        if request.opcode == Opcode.SET:
            flags, expiration = int.from_bytes(request.extras[:4], "big"), int.from_bytes(request.extras[4:8], "big")
            self.wrote(request, response, now, flags=flags, expiration=expiration)
        elif request.opcode == Opcode.DELETE:
            self.wrote(request, response, now, is_delete=True)
        elif request.opcode == Opcode.SET_VBUCKET:
            state = VbucketState(request.extras[0])
            if vbucket is None:
                self.source.vbuckets[request.vbid] = ListVBucket(request.vbid, state)
            elif vbucket.state is not state:
                vbucket.state = state
                vbucket.new_checkpoint()
        elif request.opcode == Opcode.DEL_VBUCKET:
            self.source.vbuckets.pop(request.vbid, None)
        elif request.opcode == Opcode.CREATE_CHECKPOINT:
            vbucket.new_checkpoint()
        elif request.opcode in LOG_OPCODES:
            vbucket.failover_log = decode_failover_log(response.value)

    def wrote(self, request, response, now, *, is_delete=False, **fields):
        vbucket = self.source.vbuckets[request.vbid]
        key = request.key[1:]
        # A new document's revision goes on from the highest one that was deleted in the vbucket.
        revision = self.revisions.get((id(vbucket), key), self.highest_deleted[id(vbucket)]) + 1
        fields["rev_seqno"] = self.revisions[id(vbucket), key] = revision
        if is_delete:
            self.highest_deleted[id(vbucket)] = max(self.highest_deleted[id(vbucket)], revision)
        if is_delete:
            time = self.delete_times.get((request.vbid, key), 0)
            seqno = vbucket.delete(key, delete_time=time)
            _, full_key, frame = vbucket.rows[-1]
            frame = frame[:16] + response.cas.to_bytes(8, "big") + frame[24:32]
            frame += fields["rev_seqno"].to_bytes(8, "big") + time.to_bytes(4, "big") + b"\0" + full_key
            vbucket.rows[-1] = (seqno, full_key, frame)
        else:
            datatype = 1 if is_json(request.value) else 0
            seqno = vbucket.set(key, request.value, datatype=datatype, cas=response.cas, nru=NRU, **fields)
        assert seqno == int.from_bytes(response.extras[8:16], "big"), "the lists do not follow the recording"
        for peer in self.peers.values():
            if peer.machine is not None:
                peer.machine.vbucket_changed(request.vbid, now)

    def pump(self, peer, now):
        while peer.machine is not None and (pieces := peer.machine.data_to_send(1 << 20, now)):
            peer.ours += frames_in(pieces)


def comparable(frames):
    """Frames of a connection in a form in which the timing of live snapshots does not show.

    How many live changes come in one memory snapshot depends on timing; so later memory markers of a stream are joined
    (their flags stay) and versions that a later one supersedes are dropped, as long as nothing else is in between.
    """
    out: list[Any] = []
    live: dict[Any, int] = {}
    for frame in frames:
        message: Any = decode_message(frame)
        stream = (frame.vbid, frame.opaque)
        if frame.is_request and frame.opcode == Opcode.DCP_SNAPSHOT_MARKER and len(frame.extras) == 20:
            is_memory = message.flags & ~MarkerFlag.CHECKPOINT == MarkerFlag.MEMORY
            if is_memory and stream in live:
                out.append(("live", frame.vbid, frame.opaque, message.flags)) if out[-1][0] != "item" else None
                continue
            if is_memory:
                live[stream] = len(out)
        if frame.is_request and frame.opcode in (Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION):
            begin = live.get(stream, MAX_SEQNO)
            out = [row for at, row in enumerate(out) if at <= begin or row[:3] != ("item", stream, frame.key)]
            out.append(("item", stream, frame.key, frame.encode()))
            continue
        if frame.is_response and frame.value[:1] == b"{":
            document = json.loads(frame.value)
            has_context = bool(document.get("error", {}).get("context"))
            out.append(("refusal", frame.opcode, frame.status, frame.opaque, frame.datatype, has_context))
            continue
        out.append(("frame", frame.encode()))
    return out
