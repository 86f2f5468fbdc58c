"""Streams of bytes out of captured packets.

A capture sees packets twice, in another order, or not at all. `conversations` puts the bytes of each direction in
order. Bytes that the capture lacks end a direction there, because frames cannot be found again behind them; the
conversation says so.

Source: RFC 791, 8200, 9293; the link types of tcpdump.org.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import NamedTuple

from dcpstream.errors import ConfigError
from dcpstream_node.recording.pcap import Packet

MAX_AHEAD_BYTES = 64 * 1024 * 1024
"""Bytes of a direction that wait for a missing packet: more than any receive window of TCP."""

_TCP, _SYN, _ACK = 6, 2, 16
_LINK_BYTES = {0: 4, 1: 14, 12: 0, 14: 0, 101: 0, 108: 4, 113: 16, 228: 0, 229: 0, 276: 20}
"""Link type → bytes before the IP header: loopback, Ethernet, raw IP, Linux' "any" device."""
_ETHERNET = 1
_VLAN_TAGS = frozenset((b"\x81\x00", b"\x88\xa8"))
_IPV6_EXTENSIONS = frozenset((0, 43, 60))
_SEQUENCE = 1 << 32


class Endpoint(NamedTuple):
    """An address and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        """host:port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Segment(NamedTuple):
    """One TCP segment; `missing` bytes of its data were not captured."""

    packet: int
    time_ns: int
    source: Endpoint
    destination: Endpoint
    sequence: int
    flags: int
    data: bytes
    missing: int


class Piece(NamedTuple):
    """Bytes of one direction, in order."""

    time_ns: int
    is_from_server: bool
    data: bytes


@dataclass(slots=True, eq=False)
class _Direction:
    """The bytes of one direction; `expected` is the sequence number of the next one."""

    expected: int | None = None
    waiting: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    is_over: bool = False

    def take(self, segment: Segment) -> Iterator[tuple[int, bytes]]:
        """(time, bytes) that are in order now."""
        if segment.flags & _SYN:
            self.expected = (segment.sequence + 1) % _SEQUENCE
            return
        if not segment.data or self.is_over:
            return
        if self.expected is None:
            self.expected = segment.sequence
        if len(self.waiting.get(segment.sequence, (0, b""))[1]) < len(segment.data):
            self.waiting[segment.sequence] = segment.time_ns, segment.data
        while (found := self._next()) is not None:
            yield segment.time_ns, found
        if sum(len(data) for _, data in self.waiting.values()) > MAX_AHEAD_BYTES:
            self.is_over = True

    def _next(self) -> bytes | None:
        """The next bytes, without those that were seen before."""
        assert self.expected is not None
        for sequence, (_, data) in list(self.waiting.items()):
            ahead = _distance(self.expected, sequence)
            if ahead > 0:
                continue
            del self.waiting[sequence]
            if -ahead < len(data):
                found = data[-ahead:]
                self.expected = (self.expected + len(found)) % _SEQUENCE
                return found
        return None

    @property
    def gap(self) -> int:
        """Bytes that are missing before those that wait."""
        if not self.waiting or self.expected is None:
            return 0
        return min(_distance(self.expected, sequence) for sequence in self.waiting)


@dataclass(slots=True, eq=False)
class Conversation:
    """One TCP connection.

    Attributes:
        client, server: its ends; the server has the port that was asked for.
        pieces: bytes in order of their arrival.
    """

    client: Endpoint
    server: Endpoint
    pieces: list[Piece] = field(default_factory=list)
    _directions: tuple[_Direction, _Direction] = field(default_factory=lambda: (_Direction(), _Direction()))

    def take(self, segment: Segment) -> None:
        """Take a segment of either direction."""
        is_from_server = segment.source == self.server
        self.pieces += [
            Piece(time_ns, is_from_server, data) for time_ns, data in self._directions[is_from_server].take(segment)
        ]

    @property
    def problems(self) -> list[str]:
        """The gaps of the capture, as sentences."""
        ends = (self.client, self.server)
        return [
            f"{ends[number]} to {ends[1 - number]}: the capture lacks {one.gap} bytes; what came after them is left out"
            for number, one in enumerate(self._directions)
            if one.gap
        ]


def conversations(packets: Iterable[Packet], ports: Collection[int]) -> list[Conversation]:
    """The TCP connections to these ports, in the order of their first packets.

    Raises: ConfigError: there is none, a packet was cut when it was captured, or the link type is not known.
    """
    found: list[Conversation] = []
    present: dict[tuple[Endpoint, Endpoint], Conversation] = {}
    seen: set[int] = set()
    for packet in packets:
        segment = segment_in(packet)
        if segment is None:
            continue
        seen |= {segment.source.port, segment.destination.port}
        is_to_server = segment.destination.port in ports
        if not is_to_server and segment.source.port not in ports:
            continue
        if segment.missing:
            message = (
                f"packet {segment.packet} was cut when it was captured: {segment.missing} bytes of it are missing. "
                "Capture whole packets (tcpdump -s 0)"
            )
            raise ConfigError("FILE", "a capture", "whole packets", message=message)
        ends = (segment.source, segment.destination) if is_to_server else (segment.destination, segment.source)
        is_new = segment.flags & (_SYN | _ACK) == _SYN and ends in present and bool(present[ends].pieces)
        if ends not in present or is_new:
            present[ends] = Conversation(*ends)
            found.append(present[ends])
        present[ends].take(segment)
    if not found:
        others = ", ".join(map(str, sorted(seen)[:20])) or "no TCP at all"
        message = f"the capture has no connection to port {_listed(ports)}; it has {others}. Choose with --ports"
        raise ConfigError("--ports", _listed(ports), "a port of the capture", message=message)
    return found


def segment_in(packet: Packet) -> Segment | None:
    """The TCP segment in a packet; None for another packet, or a fragment of one.

    Raises: ConfigError: the link type is not known.
    """
    at = _LINK_BYTES.get(packet.link)
    if at is None:
        message = f"packets of link type {packet.link} cannot be read. Capture Ethernet, a loopback device, or raw IP"
        raise ConfigError("FILE", "a capture", "Ethernet, loopback or raw IP", message=message)
    data = packet.data
    if packet.link == _ETHERNET:
        while data[at - 2 : at] in _VLAN_TAGS:
            at += 4
    try:
        version = data[at] >> 4
        if version == 4:
            size, fragment = struct.unpack_from(">H", data, at + 2)[0], struct.unpack_from(">H", data, at + 6)[0]
            protocol, begin = data[at + 9], at + (data[at] & 15) * 4
            hosts = data[at + 12 : at + 16], data[at + 16 : at + 20]
            if fragment & 0x3FFF:
                return None
        elif version == 6:
            size, protocol, begin = struct.unpack_from(">H", data, at + 4)[0] + 40, data[at + 6], at + 40
            hosts = data[at + 8 : at + 24], data[at + 24 : at + 40]
            while protocol in _IPV6_EXTENSIONS:
                protocol, begin = data[begin], begin + (data[begin + 1] + 1) * 8
        else:
            return None
        if protocol != _TCP:
            return None
        source, destination, sequence, _, offset, flags = struct.unpack_from(">HHIIBB", data, begin)
    except (struct.error, IndexError):
        return None
    begin += (offset >> 4) * 4
    end = at + size
    if size in (0, 40 * (version == 6)):
        end = packet.wire_bytes  # the network card cut it into packets later
    payload = data[begin:end]
    missing = max(end - begin - len(payload), 0)
    return Segment(
        packet.number,
        packet.time_ns,
        Endpoint(str(ip_address(hosts[0])), source),
        Endpoint(str(ip_address(hosts[1])), destination),
        sequence,
        flags,
        payload,
        missing,
    )


def _distance(start: int, end: int) -> int:
    """Distance of one sequence number ahead of another; negative if it lies behind."""
    ahead = (end - start) % _SEQUENCE
    return ahead - _SEQUENCE if ahead >= _SEQUENCE // 2 else ahead


def _listed(ports: Collection[int]) -> str:
    return ", ".join(map(str, sorted(ports)))
