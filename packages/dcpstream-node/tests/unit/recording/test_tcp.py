"""Bytes in order, whatever the capture saw of the packets."""

from __future__ import annotations

import random
import struct
from ipaddress import ip_address

import pytest

from dcpstream.errors import ConfigError
from dcpstream_node.recording.pcap import Packet
from dcpstream_node.recording.tcp import Conversation, Endpoint, conversations, segment_in
from tests.kit.cases import each_case
from tests.kit.pcap import PacketMaker

CLIENT, SERVER = Endpoint("10.0.0.1", 40000), Endpoint("10.0.0.2", 11210)
SYN, ACK = 2, 16


def packet(
    data: bytes = b"",
    sequence: int = 1,
    flags: int = ACK,
    source: Endpoint = CLIENT,
    destination: Endpoint = SERVER,
    number: int = 1,
) -> Packet:
    tcp = struct.pack(">HHIIBBHHH", source.port, destination.port, sequence % 2**32, 0, 5 << 4, flags, 0, 0, 0) + data
    addresses = ip_address(source.host).packed + ip_address(destination.host).packed
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0) + addresses
    return Packet(number, number * 1000, 101, ip + tcp, 20 + len(tcp))


def bytes_of(conversation: Conversation, *, is_from_server: bool = False) -> bytes:
    return b"".join(piece.data for piece in conversation.pieces if piece.is_from_server is is_from_server)


def only(packets: list[Packet]) -> Conversation:
    [found] = conversations(packets, {11210})
    return found


def test_packets_in_any_order_twice_and_overlapping() -> None:
    whole = bytes(range(256)) * 8
    for seed in range(40):
        chance = random.Random(seed)
        start = chance.choice([1, 2**32 - 700, 2**31 - 5])  # also numbers that wrap
        parts, at = [], 0
        while at < len(whole):
            begin = max(0, at - chance.randrange(40))  # a retransmission is not cut where the first one was
            end = min(len(whole), at + chance.randrange(1, 300))
            parts.append(packet(whole[begin:end], start + 1 + begin))
            at = end
        parts += chance.sample(parts, len(parts) // 3)
        chance.shuffle(parts)
        found = only([packet(flags=SYN, sequence=start), *parts])
        assert bytes_of(found) == whole, seed
        assert found.problems == []


def test_a_missing_packet_ends_its_direction_alone() -> None:
    found = only(
        [
            packet(b"abc", 10),
            packet(b"after", 20),
            packet(b"answer", 5, source=SERVER, destination=CLIENT),
        ]
    )
    assert bytes_of(found) == b"abc"
    assert bytes_of(found, is_from_server=True) == b"answer"
    [problem] = found.problems
    assert problem.startswith("10.0.0.1:40000 to 10.0.0.2:11210: the capture lacks 7 bytes")


def test_connections_are_distinguished() -> None:
    other = Endpoint("10.0.0.3", 40000)
    found = conversations(
        [
            packet(flags=SYN, sequence=0),
            packet(b"one", 1),
            packet(b"two", 1, source=other),
            packet(flags=SYN, sequence=500),  # the client uses its port again
            packet(b"three", 501),
            packet(b"unknown", 1, source=Endpoint("10.0.0.1", 9), destination=Endpoint("10.0.0.2", 80)),
        ],
        {11210},
    )
    assert [(str(one.client), bytes_of(one)) for one in found] == [
        ("10.0.0.1:40000", b"one"),
        ("10.0.0.3:40000", b"two"),
        ("10.0.0.1:40000", b"three"),
    ]


def test_a_packet_that_was_cut_is_an_error() -> None:
    whole = packet(b"a long one", number=17)
    with pytest.raises(ConfigError, match=r"packet 17 was cut .* 4 bytes of it are missing.*tcpdump -s 0"):
        only([whole._replace(data=whole.data[:-4])])


def test_a_port_that_nobody_uses_is_reported_with_the_others() -> None:
    with pytest.raises(ConfigError, match="no connection to port 8091; it has 11210, 40000"):
        conversations([packet(b"x")], {8091})


LINKS = {
    "Ethernet": (1, bytes(12) + b"\x08\x00", b"padding"),
    "Ethernet with a tag": (1, bytes(12) + b"\x81\x00\0\7\x08\x00", b""),
    "loopback": (0, b"\2\0\0\0", b""),
    "any device": (113, bytes(14) + b"\x08\x00", b""),
    "any device, second version": (276, b"\x08\x00" + bytes(18), b""),
    "raw": (101, b"", b""),
}


@each_case("name", LINKS)
def test_link_types(name: str) -> None:
    link, before, after = LINKS[name]
    raw = packet(b"data", 7)
    found = segment_in(raw._replace(link=link, data=before + raw.data + after, wire_bytes=99))
    assert found is not None
    assert (found.source, found.destination, found.sequence, found.data, found.missing) == (
        CLIENT,
        SERVER,
        7,
        b"data",
        0,
    )


def test_other_packets_are_left_out() -> None:
    raw = packet(b"data")
    udp = raw.data[:9] + b"\x11" + raw.data[10:]
    fragment = raw.data[:6] + b"\x20\x00" + raw.data[8:]
    for data in (udp, fragment, raw.data[:30], b"", b"\0" * 60):
        assert segment_in(raw._replace(data=data)) is None
    with pytest.raises(ConfigError, match="link type 999"):
        segment_in(raw._replace(link=999))


@each_case("ends", [(CLIENT, SERVER), (Endpoint("::1", 40000), Endpoint("::1", 11210))])
def test_packets_that_are_made_can_be_read(ends: tuple[Endpoint, Endpoint]) -> None:
    maker = PacketMaker(*ends)
    large = bytes(range(256)) * 1000
    made = [*maker.packets(b"request", is_from_server=False), *maker.packets(large, is_from_server=True)]
    made += maker.packets(b"more", is_from_server=False)
    found = only([Packet(number, 1, 101, data, len(data)) for number, data in enumerate(made)])
    assert (found.client, found.server) == ends
    assert bytes_of(found) == b"requestmore"
    assert bytes_of(found, is_from_server=True) == large


def test_ipv6_with_an_extension() -> None:
    [data] = PacketMaker(Endpoint("::1", 40000), Endpoint("::2", 11210)).packets(b"data", is_from_server=False)
    longer = struct.pack(">IHBB", 6 << 28, 8 + len(data) - 40, 60, 64) + data[8:40] + b"\6\0" + bytes(6) + data[40:]
    found = segment_in(Packet(1, 0, 101, longer, len(longer)))
    assert found is not None
    assert (found.data, str(found.destination)) == (b"data", "[::2]:11210")
