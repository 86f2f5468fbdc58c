"""Frames out of captured connections, a recording out of their DCP streams, and packets out of frames."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

from dcpstream.errors import ConfigError, FrameError, WireError
from dcpstream.model import Manifest, StreamOffset
from dcpstream.recording import history
from dcpstream.recording.file import Header
from dcpstream.recording.history import DATA_OPCODES, Histories
from dcpstream.recording.pcap import PcapWriter
from dcpstream.recording.tcp import Conversation, Endpoint, PacketMaker
from dcpstream.wire import HEADER_BYTES, Feature, Frame, Magic, Opcode, Status, decode_frame
from dcpstream.wire.frames import MAGICS, MAX_FRAME_BYTES, frame_length, with_opaque
from dcpstream.wire.layout import Side
from dcpstream.wire.messages import REQUESTS
from dcpstream.wire.messages.dcp import RollbackResponse, SeqnoAdvanced, SnapshotMarker, SystemEvent
from dcpstream.wire.messages.kv import FeatureCode
from dcpstream.wire.system_events import VERSION_FLATBUFFERS, encode_stored_event, read_event, read_flatbuffer
from dcpstream.wire.values import decode_failover_log

CLIENT, SERVER = Endpoint("127.0.0.1", 40000), Endpoint("127.0.0.1", 11210)
"""The ends of a connection that is written, where the frames come from no connection."""

_TLS_HANDSHAKE = b"\x16\x03"

_OF_PRODUCER = frozenset(layout.opcode for layout in REQUESTS if layout.sent_by is Side.PRODUCER)
"""Requests that the server of a DCP connection sends, and its client does not."""

_SERVER_MAGICS = frozenset((Magic.SERVER_REQUEST,))


class CapturedFrame(NamedTuple):
    """One frame of a connection.

    Attributes:
        time_ns: when its last byte was captured.
        is_from_server: its direction.
        offset: its place in the bytes of its direction.
    """

    time_ns: int
    is_from_server: bool
    offset: int
    frame: Frame


def frames_of(conversation: Conversation) -> Iterator[CapturedFrame]:
    """The frames of a connection, in the order in which they were complete.

    A capture that began in the middle of the connection begins at the first packet that begins with a frame.

    Raises:
        FrameError: bytes that are no frame. ConfigError: the connection is encrypted.
    """
    buffers = bytearray(), bytearray()
    offsets = [0, 0]
    for time_ns, is_from_server, data in conversation.pieces:
        buffer = buffers[is_from_server]
        if not buffer and not offsets[is_from_server]:
            if data[:2] == _TLS_HANDSHAKE:
                message = f"{conversation.client} to {conversation.server} is encrypted (TLS) and cannot be read"
                raise ConfigError("FILE", "a capture", "a connection without TLS", message=message)
            if not _begins_with_a_frame(data):
                continue
        buffer += data
        while len(buffer) >= HEADER_BYTES:
            offset = offsets[is_from_server]
            try:
                size = frame_length(buffer, 0, MAX_FRAME_BYTES)
                if len(buffer) < size:
                    break
                frame = decode_frame(bytes(buffer[:size]))
            except FrameError as error:
                ends = conversation.client, conversation.server
                source, destination = reversed(ends) if is_from_server else ends
                raise FrameError(
                    f"{source} to {destination}: {error.reason}",
                    offset=offset,
                    header=error.header,
                    hint="The bytes are counted from the first frame of this direction. Is the port one of a node's "
                    "data? Choose with --ports",
                ) from error
            del buffer[:size]
            offsets[is_from_server] += size
            yield CapturedFrame(time_ns, is_from_server, offset, frame)


def _begins_with_a_frame(data: bytes) -> bool:
    if len(data) < HEADER_BYTES or data[0] not in MAGICS:
        return False
    try:
        frame_length(data, 0, MAX_FRAME_BYTES)
    except WireError:
        return False
    return True


def is_from_server(frame: Frame) -> bool:
    """The direction of a frame that comes from no connection, as that of a client's DCP connection."""
    if frame.magic in _SERVER_MAGICS:
        return True
    return (frame.opcode in _OF_PRODUCER) is frame.is_request


class FramesToPcap:
    """Writes frames as the packets of TCP connections."""

    def __init__(self, file: BinaryIO) -> None:
        self._writer = PcapWriter(file)
        self._makers: dict[tuple[Endpoint, Endpoint], PacketMaker] = {}

    def write(
        self,
        frame: bytes,
        time_ns: int,
        *,
        is_from_server: bool,
        client: Endpoint = CLIENT,
        server: Endpoint = SERVER,
    ) -> None:
        """Append a frame, as packets of its own."""
        maker = self._makers.get((client, server))
        if maker is None:
            maker = self._makers[client, server] = PacketMaker(client, server)
        for packet in maker.packets(frame, is_from_server=is_from_server):
            self._writer.write(packet, time_ns)


@dataclass(slots=True)
class Source:
    """What the connections of a capture say about their bucket."""

    bucket: str = "default"
    uuid: str = ""
    vbuckets: int = 1
    manifest: Manifest = Manifest.DEFAULT
    has_map: bool = False

    @property
    def header(self) -> Header:
        """The header of the recording."""
        return Header(self.bucket, self.uuid, self.vbuckets, self.manifest)

    def take(self, frame: Frame) -> None:
        """Learn from a frame."""
        if frame.opcode == Opcode.SELECT_BUCKET and frame.is_request:
            self.bucket = frame.key.decode(errors="replace")
        elif frame.opcode == Opcode.GET_CLUSTER_CONFIG and frame.is_response and not frame.status:
            self._take_map(frame.value)
        elif frame.opcode == Opcode.GET_COLLECTIONS_MANIFEST and frame.is_response and not frame.status:
            self.manifest = Manifest.from_json(json.loads(frame.value))
        elif frame.opcode == Opcode.DCP_STREAM_REQ and frame.is_request and not self.has_map:
            while self.vbuckets <= frame.vbid:
                self.vbuckets *= 2

    def _take_map(self, value: bytes) -> None:
        config: dict[str, Any] = json.loads(value)
        chains = config.get("vBucketServerMap", {}).get("vBucketMap")
        if chains:
            self.vbuckets, self.has_map = len(chains), True
            self.bucket, self.uuid = config.get("name", self.bucket), config.get("uuid", self.uuid)


@dataclass(slots=True)
class StreamsOf:
    """The DCP streams of one connection, as frames of a recording.

    Attributes:
        histories: of all connections: a vbucket may move from one to another.
    """

    histories: Histories
    _has_collections: bool = True
    _asked: dict[int, tuple[int, StreamOffset]] = field(default_factory=dict)

    def recorded(self, captured: CapturedFrame) -> bytes:
        """What a recording has of a frame; nothing for one that belongs to no stream, or was recorded before."""
        frame = captured.frame
        if frame.opcode == Opcode.HELLO and frame.is_response:
            codes = {item.code for item in FeatureCode.iter_unpack(frame.value)}
            self._has_collections = Feature.COLLECTIONS in codes
        elif frame.opcode == Opcode.DCP_STREAM_REQ:
            data = self._stream_request(frame)
            self.histories.take(data)
            return data
        elif captured.is_from_server and frame.is_request and frame.opcode in _OF_PRODUCER:
            data = self._message(frame)
            self.histories.take(data)
            return data
        return b""

    def _stream_request(self, frame: Frame) -> bytes:
        if frame.is_request:
            self._asked[frame.opaque] = frame.vbid, history.position_in(frame)
            return b""
        vbid, at = self._asked.pop(frame.opaque, (None, StreamOffset.ZERO))
        if vbid is None:
            return b""
        one = self.histories.of(vbid)
        if frame.status == Status.ROLLBACK:
            seqno = RollbackResponse.unpack(frame)[0]
            return history.rolled_back(vbid, seqno) if seqno < one.seqno else b""
        if frame.status != Status.SUCCESS:
            return b""
        log = decode_failover_log(frame.value)
        if one.log == log and at.seqno <= one.seqno:
            return b""  # opened again: what is recorded already comes again, and is left out
        return history.opened(vbid, at if at.seqno >= one.seqno else one.offset, log)

    def _message(self, frame: Frame) -> bytes:
        one, vbid = self.histories.of(frame.vbid), frame.vbid
        if one.log is None:
            return b""
        if frame.opcode == Opcode.DCP_SNAPSHOT_MARKER:
            whole = frame.extras if len(frame.extras) == SnapshotMarker.layout.extras_bytes else frame.value
            start, end, _ = SnapshotMarker.layout.extras.unpack_from(whole)
            return history.marker(vbid, start, end) if end > one.seqno else b""
        if frame.opcode in DATA_OPCODES or frame.opcode in (Opcode.DCP_SYSTEM_EVENT, Opcode.DCP_SEQNO_ADVANCED):
            seqno = int.from_bytes(frame.extras[:8], "big")
            if seqno <= one.seqno:
                return b""
            if frame.opcode == Opcode.DCP_SEQNO_ADVANCED:
                return history.advanced(vbid, SeqnoAdvanced.unpack(frame)[0])
            if frame.opcode == Opcode.DCP_SYSTEM_EVENT:
                return self._event(frame, seqno)
            return history.message(frame, has_collections=self._has_collections)
        return b""

    @staticmethod
    def _event(frame: Frame, seqno: int) -> bytes:
        _, kind, version = SystemEvent.unpack(frame)
        event = (
            read_flatbuffer(kind, frame.value)
            if version == VERSION_FLATBUFFERS
            else read_event(frame.extras, frame.key, frame.value)
        )
        return with_opaque(encode_stored_event(event, vbid=frame.vbid, by_seqno=seqno), frame.vbid)


def recorded(conversations: Iterable[Conversation]) -> tuple[Header, list[tuple[int, bytes]]]:
    """The header of a recording of captured connections, and its blocks as (time, frames).

    Prepares and aborts are left out, as of every recording. A stream that was opened before the capture began is left
    out, too: its branch is not known.

    Raises:
        ConfigError: there is no DCP stream.
        FrameError: see `frames_of`.
    """
    source, histories = Source(), Histories()
    found: list[tuple[CapturedFrame, StreamsOf]] = []
    for conversation in conversations:
        streams = StreamsOf(histories)
        found += [(captured, streams) for captured in frames_of(conversation)]
    found.sort(key=lambda item: item[0].time_ns)  # stable: those of one connection keep their order
    blocks: list[tuple[int, bytes]] = []
    for captured, streams in found:
        source.take(captured.frame)
        data = streams.recorded(captured)
        if data and blocks and blocks[-1][0] == captured.time_ns:
            blocks[-1] = captured.time_ns, blocks[-1][1] + data
        elif data:
            blocks.append((captured.time_ns, data))
    if not blocks:
        message = "the capture has no DCP stream that was opened in it"
        raise ConfigError("FILE", "a capture", "DCP streams from their beginning", message=message)
    return source.header, blocks
