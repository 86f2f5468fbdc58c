"""A sender that behaves as a server does: the streams of a connection take turns of one or two messages.

    python -m lab.bench.server_turns VBUCKETS DOCUMENTS VALUE_BYTES

It prints its connection string and serves until its standard input ends. Our own node sends long runs of one stream. A
server of release 8.0 goes round over all streams that are ready: of 1 M documents in 64 vbuckets, 938,313 runs of a
stream came. The pieces have 4 to 64 KiB; those of a server depend on how busy it and its client are. The bytes are made
once; only the opaques differ between two connections. So the sender takes little of the processor while a client is
measured.

It serves whole streams, from 0 to the end, once a connection has asked for all that it wants: when nothing came for
`QUIET_S`. So Spark's tasks can share the vbuckets.
"""

from __future__ import annotations

import contextlib
import json
import random
import select
import socket
import sys
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from dcpstream.wire import Frame, Opcode, Status, encode_response
from dcpstream.wire.frames import HEADER_BYTES
from dcpstream.wire.messages.dcp import BufferAck
from dcpstream.wire.values import encode_failover_log, encode_vbucket_seqnos
from tests.kit.fake_node import FakeNode, config
from tests.kit.listener import Listener
from tests.kit.messages import LOG, marker, mutation, stream_end

TURN_MESSAGES = (1, 2)
"""Messages of a stream in one turn."""

PIECE_BYTES = (4 * 1024, 64 * 1024)
"""The smallest and the largest piece of one write."""

ERROR_MAP = b'{"version":2,"revision":1,"errors":{}}'
"""Clients of other languages ask for one."""

QUIET_S = 0.02
"""A connection that asked for streams and is silent for so long has asked for all."""

OPAQUE_AT = 12
RECEIVE_BYTES = 64 * 1024
_Numbers = npt.NDArray[np.int64]


def turns(vbuckets: int, documents: int, dice: random.Random) -> _Numbers:
    """The vbucket of each message in the order of sending. The last vbuckets may have one document less."""
    left = Counter({vbid: len(range(vbid, documents, vbuckets)) for vbid in range(vbuckets)})
    order: list[int] = []
    while left:
        for vbid in list(left):
            count = min(dice.choice(TURN_MESSAGES), left[vbid])
            order += [vbid] * count
            left[vbid] -= count
            if not left[vbid]:
                del left[vbid]
    return np.array(order, np.int64)


class Corpus:
    """The messages of all streams, in the order of sending.

    Args:
        vbuckets: of the bucket.
        documents: at least one for each vbucket.
        value_bytes: of each.

    Attributes:
        seqnos: vbucket → its high seqno.
    """

    def __init__(self, vbuckets: int, documents: int, value_bytes: int) -> None:
        dice = random.Random(20131130)
        self._order = turns(vbuckets, documents, dice)
        self.seqnos = dict(enumerate(np.bincount(self._order, minlength=vbuckets).tolist()))
        self._markers = _table(marker(0, 0, seqno, vbid=vbid) for vbid, seqno in self.seqnos.items())
        self._ends = _table(stream_end(0, vbid=vbid) for vbid in range(vbuckets))
        self._documents = self._rows(self._order, value_bytes)

    @staticmethod
    def _rows(order: _Numbers, value_bytes: int) -> npt.NDArray[np.uint8]:
        """The mutations, all of one length: copies of one, with their own vbucket, seqno, key and value."""
        count = len(order)
        numbers = np.arange(count)
        first = mutation(0, 1, key=b"flight-0000000", value=bytes(value_bytes))
        rows = np.tile(np.frombuffer(first, np.uint8), (count, 1))
        ranks = np.empty(count, np.int64)
        by_vbucket = np.argsort(order, kind="stable")
        counts = np.bincount(order)
        ranks[by_vbucket] = numbers - np.repeat(np.cumsum(counts) - counts, counts)
        rows[:, 6:8] = _big_endian(order, 2)
        rows[:, HEADER_BYTES : HEADER_BYTES + 8] = _big_endian(ranks + 1, 8)
        key_end = rows.shape[1] - value_bytes
        for place in range(7):
            rows[:, key_end - 1 - place] = ord("0") + numbers // 10**place % 10
        rows[:, key_end:] = np.random.default_rng(20131130).integers(0, 256, (count, value_bytes), np.uint8)
        return rows

    def messages(self, opaques: dict[int, int]) -> memoryview:
        """A copy of the messages of some vbuckets, with the opaques of a connection: markers, documents, ends."""
        known = np.full(len(self.seqnos), -1, np.int64)
        known[list(opaques)] = list(opaques.values())
        every = np.arange(len(self.seqnos))
        parts = []
        for rows, vbids in ((self._markers, every), (self._documents, self._order), (self._ends, every)):
            wanted = known[vbids] >= 0
            part = rows[wanted]
            part[:, OPAQUE_AT : OPAQUE_AT + 4] = _big_endian(known[vbids[wanted]], 4)
            parts.append(part.ravel())
        return memoryview(np.concatenate(parts).data)


def _table(messages: Iterable[bytes]) -> npt.NDArray[np.uint8]:
    """Messages of one length, one a row."""
    listed = list(messages)
    return np.frombuffer(b"".join(listed), np.uint8).reshape(len(listed), -1)


def _big_endian(numbers: _Numbers, width: int) -> npt.NDArray[np.uint8]:
    return numbers.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 8 - width :]


class Connection(FakeNode):
    """One connection: its handshake, its streams, and its window.

    Attributes:
        opaques: vbucket → opaque of its stream, of the streams that wait to be sent.
        window_bytes: the client's buffer; 0 for none.
        sent_bytes, acked_bytes: sent and acknowledged so far.
    """

    def __init__(self, corpus: Corpus, port: int) -> None:
        known = json.loads(config(len(corpus.seqnos), ports=(port,)))
        for node in known["nodesExt"]:
            node["hostname"] = "127.0.0.1"  # java-dcp-client wants one
        super().__init__(cluster_map=json.dumps(known).encode())
        self._corpus = corpus
        self.opaques: dict[int, int] = {}
        self.window_bytes = self.sent_bytes = self.acked_bytes = 0

    def _answer(self, frame: Frame) -> bytes:
        value = b""
        match frame.opcode:
            case Opcode.DCP_BUFFER_ACK:
                self.acked_bytes += BufferAck.unpack(frame)[0]
                return b""
            case Opcode.DCP_STREAM_REQ:
                self.opaques[frame.vbid] = frame.opaque
                value = encode_failover_log(LOG)
            case Opcode.GET_ALL_VB_SEQNOS:
                value = encode_vbucket_seqnos(self._corpus.seqnos.items())
            case Opcode.DCP_GET_FAILOVER_LOG:
                value = encode_failover_log(LOG)
            case Opcode.HELLO:
                wanted = {frame.value[at : at + 2] for at in range(0, len(frame.value), 2)}
                value = b"".join(code for code in (one.to_bytes(2, "big") for one in self.granted) if code in wanted)
            case Opcode.GET_ERROR_MAP:
                value = ERROR_MAP
            case Opcode.DCP_CLOSE_STREAM | Opcode.DCP_NOOP:
                pass
            case _:
                if frame.opcode == Opcode.DCP_CONTROL and frame.key == b"connection_buffer_size":
                    self.window_bytes = int(frame.value)
                unknown = encode_response(frame.opcode, status=Status.UNKNOWN_COMMAND, opaque=frame.opaque)
                return super()._answer(frame) or (b"" if frame.is_response else unknown)
        return encode_response(frame.opcode, opaque=frame.opaque, value=value)

    def serve(self, client: socket.socket) -> None:
        """Answer until the client closes."""
        while data := client.recv(RECEIVE_BYTES):
            client.sendall(self.receive(data))
            while self.opaques and not select.select([client], [], [], QUIET_S)[0]:
                wanted, self.opaques = self.opaques, {}  # requests that come while it sends are for the next round
                self._send(client, wanted)

    def _send(self, client: socket.socket, opaques: dict[int, int]) -> None:
        """Send the streams, as the window opens. A piece may end in a frame, so answers wait until all is sent."""
        answers = b""
        for piece in _pieces(self._corpus.messages(opaques)):
            while self.window_bytes and self.sent_bytes - self.acked_bytes >= self.window_bytes:
                data = client.recv(RECEIVE_BYTES)
                if not data:
                    return
                answers += self.receive(data)
            client.sendall(piece)
            self.sent_bytes += len(piece)
        client.sendall(answers)


def _pieces(data: memoryview) -> Iterator[memoryview]:
    dice = random.Random(1)
    at = 0
    while at < len(data):
        size = dice.randrange(*PIECE_BYTES)
        yield data[at : at + size]
        at += size


def main() -> None:
    """Serve until the standard input ends."""
    corpus = Corpus(*map(int, sys.argv[1:]))

    def serve(client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            Connection(corpus, listener.port).serve(client)

    listener = Listener(serve)
    print(f"couchbase://127.0.0.1:{listener.port}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
