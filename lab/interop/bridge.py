"""A bridge: vbuckets of one server are replicated to another, or handed over, by DCP.

    python -m lab.interop.bridge SOURCE TARGET [--bucket B] [--vbuckets 0-7] [--takeover] [--record FILE]

SOURCE and TARGET are data ports, as 127.0.0.1:11210. The bridge opens a connection of a producer to the source and one
of a consumer to the target. It sends ADD_STREAM to the target for each vbucket, and passes every other frame from one
to the other unread. So the consumer of one server speaks with the producer of another, as in a cluster, where the
manager of the nodes does the same. The last line is `bridge: <n> vbuckets, <m> messages`.

A replication ends when the target has what the source has; a takeover when each stream has ended. The vbuckets of the
target must be replicas (pending for a takeover), and are so if `--prepare` is given.

`--record` writes the conversation as lines of JSON: {"from": "source" | "target" | "bridge", "hex": frame}. Lines from
the bridge are ADD_STREAM requests; their answers are lines from the target.

Source: docs/dcp/documentation of kv_engine for the opens; the order of messages as recorded between two servers.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TextIO

from dcpstream.wire import Feature, Frame, FrameReader, Opcode, OpenFlag, Status, decode_frame, encode_request
from dcpstream.wire.codes import StreamFlag, code_name

FEATURES = (
    *(Feature.XATTR, Feature.XERROR, Feature.SELECT_BUCKET, Feature.SNAPPY, Feature.JSON, Feature.COLLECTIONS),
    *(Feature.SYNC_REPLICATION, Feature.MUTATION_SEQNO),
)
NAME = b"replication:source->target:bridge"
ADD_STREAM_OPAQUE = 0x0ADD0000
CHUNK_BYTES = 1 << 18
TIMEOUT_S = 60.0
"""Longest time without a frame from either side before the bridge gives up."""
POLL_S = 0.2
"""Pause between two looks at the target's seqnos."""
REPLICA, PENDING = b"\2", b"\3"


class BridgeError(Exception):
    """A server refused something that the bridge needs, or went silent; the message names it."""


class Peer:
    """A connection to one server.

    Args:
        address: (host, port).
        name: "source" or "target", for messages.
        login: user and password.
        bucket: the bucket.
    """

    def __init__(self, address: tuple[str, int], name: str, login: tuple[str, str], bucket: str) -> None:
        self.name = name
        self.socket = socket.create_connection(address, TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = FrameReader()
        features = b"".join(struct.pack(">H", feature) for feature in FEATURES)
        user, password = login
        self.call(Opcode.HELLO, key=b"bridge", value=features)
        self.call(Opcode.SASL_AUTH, key=b"PLAIN", value=f"\0{user}\0{password}".encode())
        self.call(Opcode.SELECT_BUCKET, key=bucket.encode())

    def call(
        self, opcode: Opcode, *, key: bytes = b"", value: bytes = b"", extras: bytes = b"", vbid: int = 0
    ) -> Frame:
        """The answer to a request, which must be a success.

        Raises:
            BridgeError: it is none.
        """
        self.socket.sendall(encode_request(opcode, key=key, value=value, extras=extras, vbid=vbid))
        while (frame := self._reader.next_frame()) is None:
            if not self.receive():
                raise BridgeError(f"the {self.name} closed the connection instead of answering {opcode.name}")
        if frame.status != Status.SUCCESS:
            text = code_name(Status, frame.status)
            raise BridgeError(f"the {self.name} answered {opcode.name} of vb {vbid} with {text}: {frame.value!r}")
        return frame

    def receive(self) -> bool:
        """Wait for bytes; False if the other end has closed."""
        data = self.socket.recv(CHUNK_BYTES)
        self._reader.receive_data(data)
        return bool(data)

    def frames(self) -> Iterator[Frame]:
        """The whole frames that were received."""
        return self._reader.frames()

    def high_seqnos(self) -> dict[int, int]:
        """Vbucket → high seqno, of every vbucket that exists."""
        value = self.call(Opcode.GET_ALL_VB_SEQNOS).value
        return dict(struct.iter_unpack(">HQ", value))


@dataclass
class Outcome:
    """The result of a bridge.

    Attributes:
        messages: how often which opcode passed, by sender.
        added: vbucket → status of ADD_STREAM.
        ended: vbucket → reason of STREAM_END.
    """

    messages: Counter[tuple[str, str]] = field(default_factory=Counter)
    added: dict[int, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)


class Bridge:
    """One producer connection and one consumer connection, and everything that passes between them.

    Args:
        source: connection to the producer's server, logged in.
        target: connection to the consumer's server, logged in.
        record: where the conversation is written, or None.
    """

    def __init__(self, source: Peer, target: Peer, record: TextIO | None = None) -> None:
        self.outcome = Outcome()
        self._source, self._target, self._record = source, target, record
        # With xattrs and times of deletion, as replication between servers asks for.
        flags = OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES
        source.call(Opcode.DCP_OPEN, key=NAME, extras=struct.pack(">II", 0, flags))
        target.call(Opcode.DCP_OPEN, key=NAME, extras=struct.pack(">II", 0, 0))

    def add(self, vbid: int, flags: int = 0) -> None:
        """Send ADD_STREAM for a vbucket to the consumer; its answer comes with `turn`."""
        data = encode_request(
            Opcode.DCP_ADD_STREAM, extras=struct.pack(">I", flags), vbid=vbid, opaque=ADD_STREAM_OPAQUE + vbid
        )
        self._note("bridge", data)
        self._target.socket.sendall(data)

    def turn(self, timeout_s: float) -> bool:
        """Pass on what comes within a time; False if nothing came.

        Raises:
            BridgeError: a server closed its connection, or refused a stream.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._source.socket, selectors.EVENT_READ, (self._source, self._target))
            selector.register(self._target.socket, selectors.EVENT_READ, (self._target, self._source))
            ready = selector.select(timeout_s)
        for key, _ in ready:
            sender, receiver = key.data
            if not sender.receive():
                raise BridgeError(f"the {sender.name} closed its connection; {self._last()}")
            passed = [frame for frame in sender.frames() if self._is_passed_on(sender, frame)]
            receiver.socket.sendall(b"".join(frame.encode() for frame in passed))
        return bool(ready)

    def _is_passed_on(self, sender: Peer, frame: Frame) -> bool:
        self._note(sender.name, frame.encode())
        self.outcome.messages[sender.name, code_name(Opcode, frame.opcode)] += 1
        if frame.opcode == Opcode.DCP_ADD_STREAM and frame.is_response:
            self.outcome.added[frame.opaque - ADD_STREAM_OPAQUE] = frame.status
            return False
        if frame.opcode == Opcode.DCP_STREAM_END and frame.is_request:
            self.outcome.ended[frame.vbid] = int.from_bytes(frame.extras[:4], "big")
        return True

    def _note(self, sender: str, data: bytes) -> None:
        if self._record is not None:
            print(json.dumps({"from": sender, "hex": data.hex()}), file=self._record)

    def _last(self) -> str:
        shown = ", ".join(f"{count} {name} of the {who}" for (who, name), count in self.outcome.messages.items())
        return f"so far: {shown or 'nothing'}"


def replicate(bridge: Bridge, vbids: list[int], source: Peer, target: Peer) -> Outcome:
    """Replicate vbuckets until the target has what the source has now.

    Args:
        source, target: further connections, that are asked for seqnos.

    Raises:
        BridgeError: a stream was refused, or nothing came for `TIMEOUT_S`.
    """
    wanted = source.high_seqnos()
    for vbid in vbids:
        bridge.add(vbid)
    silent_since = time.monotonic()
    while True:
        if bridge.turn(POLL_S):
            silent_since = time.monotonic()
        else:
            have = target.high_seqnos()
            if all(have.get(vbid, -1) >= wanted.get(vbid, 0) for vbid in vbids):
                break
        _check(bridge.outcome, silent_since)
    return bridge.outcome


def take_over(bridge: Bridge, vbids: list[int]) -> Outcome:
    """Hand vbuckets over: afterwards they are active at the target and dead at the source.

    Raises:
        BridgeError: a stream was refused, or nothing came for `TIMEOUT_S`.
    """
    for vbid in vbids:
        bridge.add(vbid, int(StreamFlag.TAKEOVER))
    silent_since = time.monotonic()
    while not set(vbids) <= set(bridge.outcome.ended):
        if bridge.turn(POLL_S):
            silent_since = time.monotonic()
        _check(bridge.outcome, silent_since)
    return bridge.outcome


def _check(outcome: Outcome, silent_since: float) -> None:
    refused = {vbid: status for vbid, status in outcome.added.items() if status != Status.SUCCESS}
    if refused:
        vbid, status = next(iter(refused.items()))
        raise BridgeError(f"the target answered ADD_STREAM of vb {vbid} with {code_name(Status, status)}")
    if time.monotonic() > silent_since + TIMEOUT_S:
        raise BridgeError(f"no frame for {TIMEOUT_S:.0f} s; streams that ended: {sorted(outcome.ended)}")


def prepare(target: Peer, vbids: list[int], state: bytes) -> None:
    """Give vbuckets of the target a state, as empty ones."""
    for vbid in vbids:
        target.call(Opcode.SET_VBUCKET, extras=state, vbid=vbid)


def recorded(lines: Iterator[str]) -> Iterator[tuple[str, Frame]]:
    """The sender and frame of each line of a recorded conversation."""
    for line in lines:
        entry = json.loads(line)
        yield entry["from"], decode_frame(bytes.fromhex(entry["hex"]))


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host or "127.0.0.1", int(port)


def _numbers(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def main() -> int:
    """Replicate, or hand over, as the command line says."""
    parser = argparse.ArgumentParser(prog="bridge", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("source", type=_address)
    parser.add_argument("target", type=_address)
    parser.add_argument("--bucket", default="default")
    parser.add_argument("--user", default="Administrator")
    parser.add_argument("--password", default="password")
    parser.add_argument("--vbuckets", type=_numbers, default=_numbers("0-7"), help="as 0-7")
    parser.add_argument("--takeover", action="store_true", help="hand the vbuckets over")
    parser.add_argument("--prepare", action="store_true", help="make the target's vbuckets replicas, or pending")
    parser.add_argument("--record", type=argparse.FileType("w"), help="write the conversation into this file")
    options = parser.parse_args()

    def connect(address: tuple[str, int], name: str) -> Peer:
        return Peer(address, name, (options.user, options.password), options.bucket)

    try:
        source, target = connect(options.source, "source"), connect(options.target, "target")
        if options.prepare:
            prepare(target, options.vbuckets, PENDING if options.takeover else REPLICA)
        bridge = Bridge(connect(options.source, "source"), connect(options.target, "target"), options.record)
        if options.takeover:
            outcome = take_over(bridge, options.vbuckets)
        else:
            outcome = replicate(bridge, options.vbuckets, source, target)
    except (BridgeError, OSError) as error:
        print(f"bridge: {error}", file=sys.stderr)
        return 1
    for (sender, name), count in sorted(outcome.messages.items()):
        print(f"{sender:8} {name:28} {count:8}")
    print(f"bridge: {len(outcome.added)} vbuckets, {outcome.messages.total()} messages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
