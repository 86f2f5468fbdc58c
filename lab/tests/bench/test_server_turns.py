"""The sender that takes turns as a server does."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections import Counter
from itertools import groupby

from dcpstream.client import Client, ClientOptions, StreamOptions
from dcpstream.wire import FrameReader, Opcode, encode_request
from dcpstream.wire.messages.dcp import BufferAck
from lab.bench.client import LOGIN, sender_process
from lab.bench.server_turns import TURN_MESSAGES, Connection, Corpus, turns
from lab.tools.patience import patient
from tests.kit.recorded import split_frames


def test_turns_are_short_while_there_are_other_streams() -> None:
    order = turns(8, 403, random.Random(1)).tolist()
    assert Counter(order) == {vbid: 51 if vbid < 3 else 50 for vbid in range(8)}
    lengths = [len(list(run)) for _, run in groupby(order[:300])]
    assert set(lengths) == set(TURN_MESSAGES)


def test_each_stream_is_whole_and_in_order() -> None:
    corpus = Corpus(3, 100, 10)
    opaques = {0: 7, 1: 300, 2: 70_000}
    frames = split_frames(bytes(corpus.messages(opaques)))
    keys = set()
    for vbid, high in corpus.seqnos.items():
        mine = [frame for frame in frames if int.from_bytes(frame[12:16]) == opaques[vbid]]
        assert {int.from_bytes(frame[6:8]) for frame in mine} == {vbid}
        assert [frame[1] for frame in (mine[0], mine[-1])] == [Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_STREAM_END]
        assert [int.from_bytes(frame[24:32]) for frame in mine[1:-1]] == list(range(1, high + 1))
        keys |= {frame[55 : 55 + 15] for frame in mine[1:-1]}
    assert keys == {b"\0flight-%07d" % number for number in range(100)}


def test_connections_share_the_vbuckets() -> None:
    corpus = Corpus(3, 100, 10)
    frames = split_frames(bytes(corpus.messages({1: 9})))
    assert {int.from_bytes(frame[6:8]) for frame in frames} == {1}
    assert {int.from_bytes(frame[12:16]) for frame in frames} == {9}
    assert len(frames) == corpus.seqnos[1] + 2


def test_requests_while_it_sends_are_served_afterwards() -> None:
    corpus = Corpus(3, 300, 100)
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with contextlib.suppress(OSError):  # closed at the end of the test
            Connection(corpus, 1).serve(theirs)

    with ours, theirs:
        sender = threading.Thread(target=serve, daemon=True)
        sender.start()
        window = encode_request(Opcode.DCP_CONTROL, key=b"connection_buffer_size", value=b"1024")
        ours.sendall(window + encode_request(Opcode.DCP_STREAM_REQ, opaque=1))
        reader, rows, later = FrameReader(), Counter[int](), [1, 2]
        ours.settimeout(patient(10.0))
        while sum(rows.values()) < len(corpus.seqnos) * 102:
            data = ours.recv(65536)
            assert data
            reader.receive_data(data)
            rows.update(frame.vbid for frame in reader.frames() if not frame.is_response)
            while rows and later:
                ours.sendall(encode_request(Opcode.DCP_STREAM_REQ, opaque=1, vbid=later.pop()))
            ours.sendall(BufferAck.pack(len(data)))
        assert rows == dict.fromkeys(range(3), 102)
        ours.close()
        sender.join(patient(10.0))


def test_the_client_reads_it() -> None:
    with (
        sender_process("-m", "lab.bench.server_turns", "4", "500", "64") as connection_string,
        Client(connection_string, **LOGIN, options=ClientOptions(buffer_bytes=64 * 1024)) as client,
    ):
        changes = list(client.changes(StreamOptions(end="latest")))
    assert Counter(change.vbid for change in changes) == dict.fromkeys(range(4), 125)
    assert len({change.key for change in changes}) == 500
