"""Requests of many documents at once, and answers cut from received bytes: in C with the native kernel.

Each function that the kernel has makes one window, or one receive, in one call. The plain code beside it is the
definition of what is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeAlias

from dcpstream.client.machine.connection.handshake import reason_in
from dcpstream.model import vbucket_of_key
from dcpstream.runtime import kernel
from dcpstream.wire import HEADER, HEADER_BYTES, MAX_FRAME_BYTES, Frame, Magic, Opcode
from dcpstream.wire.messages.kv import Delete, Get, Set

Key: TypeAlias = str | bytes
Item: TypeAlias = tuple[Key, bytes | str | None]

MAX_KEY_FIELD = 0xFFFF
"""Longest key that the header of a request can announce. A node takes shorter ones only."""

_PLAIN, _FLEXIBLE = int(Magic.RESPONSE), int(Magic.FLEX_RESPONSE)  # plain numbers for the loop over answers


class Operation(NamedTuple):
    """A request: its opcode, its vbucket, its key with the collection's prefix, all its bytes, and the caller's tag."""

    opcode: int
    vbid: int
    key: bytes
    request: bytes
    tag: int = 0


class Answered(NamedTuple):
    """The parts of an answer."""

    status: int
    datatype: int
    cas: int
    extras: bytes
    value: bytes
    key: bytes = b""
    opcode: int = 0
    opaque: int = 0

    @property
    def reason(self) -> str:
        """The reason of a refusal in the node's words; empty if there is none."""
        return reason_in(self.value)

    def to_frame(self) -> Frame:
        """The answer as a frame."""
        return Frame(
            Magic.RESPONSE,
            self.opcode,
            self.datatype,
            self.status,
            cas=self.cas,
            extras=self.extras,
            key=self.key,
            value=self.value,
        )


Take: TypeAlias = Callable[[int, int], list[Operation]]
"""The next operations, empty at the end: at most so many, and no more once they have so many bytes."""


def taken_from(operations: Iterator[Operation]) -> Take:
    """Operations that are made one at a time."""

    def take(most: int, most_bytes: int) -> list[Operation]:
        result: list[Operation] = []
        size = 0
        for operation in islice(operations, most):
            result.append(operation)
            size += len(operation.request)
            if size >= most_bytes:
                break
        return result

    return take


def writes_of(items: Iterable[Item], vbuckets: int, prefix: bytes, flags: int, expiry: int) -> Take:
    """Writes of documents; a value None deletes.

    Args:
        items: (key, value).
        vbuckets: of the bucket.
        prefix: of the keys on the wire: the collection's number.
        flags, expiry: of each document written.
    """
    extras = Set.layout.extras.pack(flags, expiry)
    if kernel.native is not None:
        return partial(kernel.native.writes, Operation, iter(items), vbuckets, prefix, extras)
    return taken_from(_writes(items, vbuckets, prefix, extras))


def _writes(items: Iterable[Item], vbuckets: int, prefix: bytes, extras: bytes) -> Iterator[Operation]:
    # The structs of the message table, without the call of `pack`: 0.4 µs instead of 1.1 µs for each request.
    head, request = HEADER.pack, int(Set.layout.magic)
    write, delete = int(Opcode.SET), int(Delete.layout.opcode)
    for key, value in items:
        name = _name(key, prefix)
        vbid, wire_key = vbucket_of_key(name, vbuckets), prefix + name
        size = len(wire_key)
        if value is None:
            yield Operation(delete, vbid, wire_key, head(request, delete, size, 0, 0, vbid, size, 0, 0) + wire_key)
        else:
            body = value if isinstance(value, bytes) else value.encode()
            start = head(request, write, size, len(extras), 0, vbid, len(extras) + size + len(body), 0, 0)
            yield Operation(write, vbid, wire_key, b"".join((start, extras, wire_key, body)))


def reads_of(keys: Iterable[Key], vbuckets: int, prefix: bytes) -> Take:
    """Reads of documents; the arguments are those of `writes_of`."""
    if kernel.native is not None:
        return partial(kernel.native.reads, Operation, iter(keys), vbuckets, prefix)
    return taken_from(_reads(keys, vbuckets, prefix))


def _reads(keys: Iterable[Key], vbuckets: int, prefix: bytes) -> Iterator[Operation]:
    head, request, get = HEADER.pack, int(Get.layout.magic), int(Opcode.GET)
    for key in keys:
        name = _name(key, prefix)
        vbid, wire_key = vbucket_of_key(name, vbuckets), prefix + name
        size = len(wire_key)
        yield Operation(get, vbid, wire_key, head(request, get, size, 0, 0, vbid, size, 0, 0) + wire_key)


def _name(key: Key, prefix: bytes) -> bytes:
    name = key if isinstance(key, bytes) else key.encode()
    if len(prefix) + len(name) > MAX_KEY_FIELD:
        raise ValueError(f"a key of {len(name)} bytes: at most {MAX_KEY_FIELD - len(prefix)} fit into a request")
    return name


def cut_answers(buffer: bytearray, most: int) -> tuple[list[Answered], int]:
    """The whole answers at the beginning of received bytes, at most so many, and the bytes that they take.

    It stops before a header that is none of an answer; `fault_in` describes it.
    """
    if kernel.native is not None:
        found: tuple[list[Answered], int] = kernel.native.answers(Answered, buffer, most)
        return found
    result: list[Answered] = []
    at, stop = 0, len(buffer)
    unpack = HEADER.unpack_from
    while len(result) < most and stop - at >= HEADER_BYTES:
        magic, opcode, key_length, extras_length, datatype, status, body, opaque, cas = unpack(buffer, at)
        framing = 0
        if magic == _FLEXIBLE:
            framing, key_length = key_length >> 8, key_length & 0xFF
        elif magic != _PLAIN:
            break
        end = at + HEADER_BYTES + body
        if end > stop or body > MAX_FRAME_BYTES or framing + extras_length + key_length > body:
            break
        extras_at = at + HEADER_BYTES + framing
        key_at = extras_at + extras_length
        value_at = key_at + key_length
        result.append(
            Answered(
                status,
                datatype,
                cas,
                bytes(buffer[extras_at:key_at]),
                bytes(buffer[value_at:end]),
                bytes(buffer[key_at:value_at]),
                opcode,
                opaque,
            )
        )
        at = end
    return result, at


def fault_in(buffer: bytearray) -> str:
    """The fault of a header that is none of an answer; empty for an answer, and for less than a header."""
    if len(buffer) < HEADER_BYTES:
        return ""
    magic, _, key_length, extras_length, _, _, body, _, _ = HEADER.unpack_from(buffer)
    framing = 0
    if magic == _FLEXIBLE:
        framing, key_length = key_length >> 8, key_length & 0xFF
    elif magic != _PLAIN:
        return f"a frame with magic 0x{magic:02x} as an answer"
    if body > MAX_FRAME_BYTES or framing + extras_length + key_length > body:
        return f"an answer with a body of {body} bytes that cannot be"
    return ""
