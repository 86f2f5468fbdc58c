"""Files of captured packets, in all their forms."""

from __future__ import annotations

import struct

import pytest

from dcpstream.errors import ConfigError
from dcpstream_node.recording.pcap import Packet, is_capture, packets
from tests.kit.cases import each_case

TIME_NS = 1_700_000_000_123_456_789


@each_case("order", [">", "<"])
@each_case(("magic", "unit_ns"), [(0xA1B2C3D4, 1_000), (0xA1B23C4D, 1)])
def test_pcap(order: str, magic: int, unit_ns: int) -> None:
    head = struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, 9, 1)
    seconds, part = divmod(TIME_NS, 10**9)
    file = head + struct.pack(f"{order}IIII", seconds, part // unit_ns, 3, 5) + b"abc"
    time_ns = TIME_NS // unit_ns * unit_ns
    assert is_capture(file)
    assert list(packets(file)) == [Packet(1, time_ns, 1, b"abc", 5)]
    assert list(packets(file + b"\0" * 15)) == list(packets(file))  # a packet that was still being written
    assert list(packets(file[:-1])) == []


def block(order: str, kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    size = struct.pack(f"{order}I", len(body) + 12)
    return struct.pack(f"{order}I", kind) + size + body + size


@each_case("order", [">", "<"])
def test_pcapng(order: str) -> None:
    section = block(order, 0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1))
    micro = block(order, 1, struct.pack(f"{order}HHI", 1, 0, 0))
    nano = block(order, 1, struct.pack(f"{order}HHI", 101, 0, 0) + struct.pack(f"{order}HHBxxx", 9, 1, 9))
    binary = block(order, 1, struct.pack(f"{order}HHI", 113, 0, 0) + struct.pack(f"{order}HHBxxx", 9, 1, 0x80 | 10))

    def enhanced(interface: int, units: int) -> bytes:
        return block(order, 6, struct.pack(f"{order}5I", interface, units >> 32, units & 0xFFFFFFFF, 3, 7) + b"abc")

    file = section + micro + nano + binary + block(order, 99, b"unknown!")
    file += enhanced(0, TIME_NS // 1000) + enhanced(1, TIME_NS) + enhanced(2, 3 * 1024 + 512)
    file += block(order, 3, struct.pack(f"{order}I", 4) + b"abcd")
    found = list(packets(file))
    assert found == [
        Packet(1, TIME_NS // 1000 * 1000, 1, b"abc", 7),
        Packet(2, TIME_NS, 101, b"abc", 7),
        Packet(3, 3_500_000_000, 113, b"abc", 7),
        Packet(4, 0, 1, b"abcd", 4),
    ]
    assert list(packets(file[:-1])) == found[:3]
    with pytest.raises(ConfigError, match="is damaged"):
        list(packets(section + enhanced(0, 1)))
    with pytest.raises(ConfigError, match="has 4 bytes"):
        list(packets(section + struct.pack(f"{order}III", 1, 4, 4)))


def test_what_is_no_capture_is_refused() -> None:
    assert not is_capture(b"\x80\x01")
    for data in (b"", b"text", b"\xa1\xb2\xc3\xd4short"):
        with pytest.raises(ConfigError, match="no packets that can be read"):
            list(packets(data))
