"""Files of captured packets, pcap and pcapng. What is in a packet is `tcp`'s matter.

Source: IETF draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from dcpstream.errors import ConfigError

_PCAP_MAGICS = {
    b"\xa1\xb2\xc3\xd4": (">", 1_000),
    b"\xd4\xc3\xb2\xa1": ("<", 1_000),
    b"\xa1\xb2\x3c\x4d": (">", 1),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
}
"""First bytes → (byte order, nanoseconds of a unit of the times' second part)."""

_SECTION, _INTERFACE, _SIMPLE, _ENHANCED = 0x0A0D0D0A, 1, 3, 6
_SECTION_BYTES = b"\x0a\x0d\x0d\x0a"
_ORDER_MAGIC = 0x1A2B3C4D
_TIME_RESOLUTION = 9
"""The option of an interface that says the unit of its times."""


class Packet(NamedTuple):
    """One packet.

    Attributes:
        number: from 1.
        time_ns: when it was captured, in nanoseconds since 1970; 0 if the file does not say.
        link: the link type: how the packet begins.
        data: what was captured of it.
        wire_bytes: how long it was.
    """

    number: int
    time_ns: int
    link: int
    data: bytes
    wire_bytes: int


class _Interface(NamedTuple):
    link: int
    units_per_second: int


def is_capture(start: bytes) -> bool:
    """Whether a file that begins so holds packets."""
    return start[:4] in _PCAP_MAGICS or start[:4] == _SECTION_BYTES


def packets(data: bytes) -> Iterator[Packet]:
    """The packets of a pcap or pcapng file; an incomplete last one is left out.

    Raises: ConfigError: it is no such file, or a damaged one.
    """
    if data[:4] == _SECTION_BYTES:
        yield from _pcapng(data)
    elif data[:4] in _PCAP_MAGICS:
        yield from _pcap(data)
    else:
        raise _unreadable("it begins like neither pcap nor pcapng")


def _pcap(data: bytes) -> Iterator[Packet]:
    order, unit_ns = _PCAP_MAGICS[data[:4]]
    if len(data) < 24:
        raise _unreadable("its header is cut")
    link = struct.unpack_from(f"{order}I", data, 20)[0] & 0xFFFF
    head = struct.Struct(f"{order}IIII")
    at, number = 24, 0
    while at + head.size <= len(data):
        seconds, part, captured, wire_bytes = head.unpack_from(data, at)
        at += head.size
        if captured > len(data) - at:
            return
        number += 1
        yield Packet(number, seconds * 1_000_000_000 + part * unit_ns, link, data[at : at + captured], wire_bytes)
        at += captured


def _pcapng(data: bytes) -> Iterator[Packet]:
    at, number, order = 0, 0, "<"
    interfaces: list[_Interface] = []
    while at + 12 <= len(data):
        if data[at : at + 4] == _SECTION_BYTES:
            order = "<" if struct.unpack_from("<I", data, at + 8)[0] == _ORDER_MAGIC else ">"
            interfaces = []
        kind, size = struct.unpack_from(f"{order}II", data, at)
        if size < 12 or size % 4:
            raise _unreadable(f"the block at byte {at} has {size} bytes")
        if at + size > len(data):
            return
        body = data[at + 8 : at + size - 4]
        at += size
        try:
            if kind == _INTERFACE:
                interfaces.append(_interface(body, order))
            elif kind == _ENHANCED:
                which, high, low, captured, wire_bytes = struct.unpack_from(f"{order}5I", body)
                number += 1
                interface = interfaces[which]
                time_ns = ((high << 32) | low) * 1_000_000_000 // interface.units_per_second
                yield Packet(number, time_ns, interface.link, body[20 : 20 + captured], wire_bytes)
            elif kind == _SIMPLE:
                (wire_bytes,) = struct.unpack_from(f"{order}I", body)
                number += 1
                yield Packet(number, 0, interfaces[0].link, body[4 : 4 + wire_bytes], wire_bytes)
        except (struct.error, IndexError) as error:
            raise _unreadable(f"the block before byte {at} is damaged ({error})") from None


def _interface(body: bytes, order: str) -> _Interface:
    (link,) = struct.unpack_from(f"{order}H", body)
    at, units = 8, 1_000_000
    while at + 4 <= len(body):
        code, size = struct.unpack_from(f"{order}HH", body, at)
        if code == 0:
            break
        if code == _TIME_RESOLUTION and size:
            exponent = body[at + 4]
            units = 2 ** (exponent & 0x7F) if exponent & 0x80 else 10**exponent
        at += 4 + (size + 3) // 4 * 4
    return _Interface(link, units)


def _unreadable(why: str) -> ConfigError:
    message = f"the file holds no packets that can be read: {why}"
    return ConfigError("FILE", "a capture", "pcap or pcapng", message=message)
