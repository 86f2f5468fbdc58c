"""Captures for tests: packets made of frames, in a pcap file of raw IP."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from ipaddress import ip_address
from typing import BinaryIO, NamedTuple

RAW_IP = 101
MAX_PACKET_BYTES = 65_535


class Endpoint(NamedTuple):
    host: str
    port: int


CLIENT, SERVER = Endpoint("127.0.0.1", 40000), Endpoint("127.0.0.1", 11210)
_TCP, _PUSH, _ACK = 6, 8, 16
_SEQUENCE = 1 << 32


class PcapWriter:
    """Writes packets of raw IP with times in nanoseconds."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        file.write(struct.pack(">IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, MAX_PACKET_BYTES, RAW_IP))

    def write(self, packet: bytes, time_ns: int) -> None:
        """Append a packet."""
        seconds, rest = divmod(time_ns, 1_000_000_000)
        self._file.write(struct.pack(">IIII", seconds & 0xFFFFFFFF, rest, len(packet), len(packet)) + packet)


class PacketMaker:
    """Makes IP packets of the bytes that two ends send each other."""

    ROOM = MAX_PACKET_BYTES - 40

    def __init__(self, client: Endpoint, server: Endpoint) -> None:
        self._ends = client, server
        self._sequences = [1, 1]

    def packets(self, data: bytes, *, is_from_server: bool) -> Iterator[bytes]:
        """The packets of some bytes, the last with PUSH."""
        for at in range(0, len(data), self.ROOM):
            part = data[at : at + self.ROOM]
            yield self._packet(part, is_from_server, is_last=at + len(part) == len(data))

    def _packet(self, data: bytes, sender: int, *, is_last: bool) -> bytes:
        source, destination = self._ends[sender], self._ends[1 - sender]
        flags = _ACK | (_PUSH if is_last else 0)
        sequence, acknowledged = self._sequences[sender], self._sequences[1 - sender]
        self._sequences[sender] = (sequence + len(data)) % _SEQUENCE
        tcp = struct.pack(
            ">HHIIBBHHH", source.port, destination.port, sequence, acknowledged, 5 << 4, flags, 65_535, 0, 0
        )
        addresses = ip_address(source.host).packed + ip_address(destination.host).packed
        if len(addresses) == 8:
            return struct.pack(">BBHHHBBH", 0x45, 0, 40 + len(data), 0, 0, 64, _TCP, 0) + addresses + tcp + data
        return struct.pack(">IHBB", 6 << 28, 20 + len(data), _TCP, 64) + addresses + tcp + data


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
