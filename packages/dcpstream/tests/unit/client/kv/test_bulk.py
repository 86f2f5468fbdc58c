"""Requests of many documents, and their answers: the kernel and plain Python yield the same."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream.client.kv import client
from dcpstream.client.kv.bulk import Answered, Item, Operation, Take, cut_answers, fault_in, reads_of, writes_of
from dcpstream.client.kv.client import Document, KvClient, MutationToken
from dcpstream.client.machine.connection.handshake import MAX_REASON_BYTES
from dcpstream.errors import DcpstreamError, StatusError
from dcpstream.runtime import kernel
from dcpstream.wire import Frame, Magic, Opcode, Status, encode_response
from tests.kit.cases import each_case
from tests.kit.fake_node import FakeNode, config
from tests.kit.listener import Listener

NAMES = st.one_of(st.text(max_size=20), st.binary(max_size=20))
ITEMS = st.lists(st.tuples(NAMES, st.one_of(st.none(), st.text(max_size=300), st.binary(max_size=300))), max_size=60)
ANSWERS = st.builds(
    Frame,
    magic=st.sampled_from([Magic.RESPONSE, Magic.RESPONSE, Magic.FLEX_RESPONSE]),
    opcode=st.sampled_from([Opcode.GET, Opcode.SET, Opcode.DELETE, Opcode.STAT]),
    datatype=st.integers(0, 255),
    vbid=st.sampled_from([*Status, 0xFFFF]),
    opaque=st.integers(0, 2**32 - 1),
    cas=st.integers(0, 2**64 - 1),
    extras=st.sampled_from([b"", bytes(4), b"flag", bytes(range(16)), b"\xff" * 16, bytes(17)]),
    key=st.binary(max_size=30),
    value=st.binary(max_size=60),
)


@pytest.fixture(scope="module")
def native() -> ModuleType:
    if kernel.native is None:
        pytest.skip(f"no native kernel here: {kernel.description}")
    return kernel.native


def both(native: ModuleType, call: Callable[[], Any]) -> Any:
    """The result of the kernel, which is that of plain Python, as are the types of its parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "native", None)
        plain = _outcome(call)
        patch.setattr(kernel, "native", native)
        found = _outcome(call)
    assert found == plain
    assert _types(found) == _types(plain)
    return found


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (DcpstreamError, ValueError, TypeError, AttributeError, struct.error) as error:
        return type(error)


def _types(value: Any) -> Any:
    return (type(value), [_types(part) for part in value]) if isinstance(value, list | tuple) else type(value)


def windows(take: Take, most: int = 7, most_bytes: int = 900) -> list[list[Operation]]:
    result = []
    while window := take(most, most_bytes):
        result.append(window)
    return result


@given(items=ITEMS, vbuckets=st.sampled_from([1, 3, 64, 1000, 1024]), prefix=st.sampled_from([b"", b"\0", b"\xac\x02"]))
def test_requests(native: ModuleType, items: list[Any], vbuckets: int, prefix: bytes) -> None:
    both(native, lambda: windows(writes_of(items, vbuckets, prefix, 7, 2**32 - 1)))
    both(native, lambda: windows(reads_of([key for key, _ in items], vbuckets, prefix)))


def test_windows_end_at_their_bytes(native: ModuleType) -> None:
    items = [("a", bytes(600)), ("b", bytes(600)), ("c", bytes(5000)), ("d", None), ("e", b"")]
    found = both(native, lambda: windows(writes_of(iter(items), 4, b"\0", 0, 0)))
    assert [len(window) for window in found] == [2, 1, 2]


@each_case(
    "items",
    [
        [("a", b""), 7],
        [("a", b"", b"")],
        [("a",)],
        [(7, b"")],
        [("a", 7)],
        [("a", bytearray(3))],
        [("\ud800", b"")],
        [("a", "\ud800")],
        [("k" * 0x10000, b"")],
        ["ab"],
        [["a", b"b"]],
    ],
)
def test_items_that_are_no_documents(native: ModuleType, items: list[Any]) -> None:
    both(native, lambda: windows(writes_of(items, 4, b"\0", 0, 0)))
    both(native, lambda: windows(reads_of([item[0] for item in items if isinstance(item, tuple)], 4, b"\0")))


def test_items_that_raise(native: ModuleType) -> None:
    def items() -> Iterator[tuple[str, bytes]]:
        yield "a", b""
        raise TypeError

    assert both(native, lambda: windows(writes_of(items(), 4, b"\0", 0, 0))) is TypeError


@each_case(("flags", "expiry"), [(-1, 0), (2**32, 0), (0, 2**32)])
def test_numbers_that_do_not_fit(native: ModuleType, flags: int, expiry: int) -> None:
    assert both(native, lambda: writes_of([], 4, b"", flags, expiry)) is struct.error


@given(frames=st.lists(ANSWERS, max_size=8), most=st.integers(0, 9), broken=st.binary(max_size=30))
def test_answers_at_every_split(native: ModuleType, frames: list[Frame], most: int, broken: bytes) -> None:
    data = b"".join(frame.encode() for frame in frames) + broken
    whole = both(native, lambda: cut_answers(bytearray(data), most))
    for end in range(len(data)):
        answers, used = both(native, partial(cut_answers, bytearray(data[:end]), most))
        assert answers == whole[0][: len(answers)]
        assert used <= end


@each_case(
    ("head", "fault"),
    [
        (b"\x80" + bytes(23), "magic 0x80"),
        (b"\x82" + bytes(23), "magic 0x82"),
        (b"\x81\x01\0\1" + bytes(20), "a body of 0 bytes"),
        (b"\x18\x01\1\0" + bytes(20), "a body of 0 bytes"),
        (b"\x81\x01\0\0\1" + bytes(19), "a body of 0 bytes"),
        (b"\x81\x01" + bytes(6) + b"\xff" * 4 + bytes(12), "a body of 4294967295 bytes"),
    ],
)
def test_headers_of_no_answer(native: ModuleType, head: bytes, fault: str) -> None:
    sound = encode_response(Opcode.SET)
    answers, used = both(native, lambda: cut_answers(bytearray(sound + head), 9))
    assert (len(answers), used) == (1, len(sound))
    assert fault in fault_in(bytearray(head))
    assert not fault_in(bytearray(head[:-1]))


@given(frames=st.lists(ANSWERS, max_size=8), data=st.data())
def test_results(native: ModuleType, frames: list[Frame], data: st.DataObject) -> None:
    answers, _ = cut_answers(bytearray(b"".join(frame.encode() for frame in frames)), len(frames))
    answers = [answer._replace(status=data.draw(st.sampled_from([0, 0, 0, 1, answer.status]))) for answer in answers]
    writes = [Operation(data.draw(st.sampled_from([1, 4])), 3, b"key", b"") for _ in answers]
    reads = [Operation(0, 3, b"key", b"") for _ in answers]
    both(native, lambda: client._results(MutationToken, client._token, writes, answers))
    both(native, lambda: client._results(Document, client._document, reads, answers))


def test_the_kernel_trusts_none_of_its_arguments(native: ModuleType) -> None:
    sound = Answered(0, 0, 0, b"", b"")
    operation = Operation(1, 0, b"", b"")
    for arguments in [
        (list, [operation], [sound]),
        (MutationToken, [()], [sound]),
        (MutationToken, [operation], [(0, 0, 0, "", b"", b"", 0, 0)]),
        (MutationToken, [operation], [None]),
        (MutationToken, [Operation("set", 0, b"", b"")], [sound]),  # type: ignore[arg-type]
    ]:
        with pytest.raises(TypeError):
            native.results(*arguments)
    for vbuckets in (0, 0x8000):
        with pytest.raises(ValueError, match="vbuckets"):
            native.writes(Operation, iter([]), vbuckets, b"", b"", 1, 1)
    for call in (lambda: native.writes(dict, iter([]), 1, b"", b"", 1, 1), lambda: native.answers(7, b"", 1)):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(ValueError, match="no iterator"):
        native.reads(Operation, [], 1, b"", 1, 1)


class _Store(FakeNode):
    """A node with documents that refuses some of the requests at first.

    Args:
        refused: statuses of the first requests of documents, and what comes with them.
    """

    def __init__(self, port: int, refused: list[tuple[int, bytes]]) -> None:
        super().__init__(cluster_map=config(ports=(port,)), answer=self._carry_out)
        self._refused = refused
        self._documents: dict[bytes, tuple[bytes, bytes]] = {}
        self._seqno = 0

    def _carry_out(self, frame: Frame) -> bytes:
        parts: dict[str, Any] = {}
        if self._refused:
            status, parts["value"] = self._refused.pop(0)
        elif frame.opcode == Opcode.SET:
            status = 0
            self._seqno += 1
            self._documents[frame.key] = frame.extras[:4], frame.value
            parts = {"extras": struct.pack(">QQ", 99, self._seqno), "cas": self._seqno}
        elif frame.key not in self._documents:
            status = Status.KEY_ENOENT
        elif frame.opcode == Opcode.DELETE:
            status = 0
            del self._documents[frame.key]
        else:
            status = 0
            parts = {"extras": self._documents[frame.key][0], "value": self._documents[frame.key][1], "datatype": 1}
        return encode_response(frame.opcode, status=status, opaque=frame.opaque, **parts)


def served(refused: list[tuple[int, bytes]], use: Callable[[KvClient], Any], piece: int) -> Any:
    """The result of using a client whose node sends its answers in pieces."""

    def serve(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        node = _Store(listener.port, list(refused))
        while data := connection.recv(65536):
            answers = node.receive(data)
            for at in range(0, len(answers), piece):
                connection.sendall(answers[at : at + piece])

    listener = Listener(serve)
    try:
        with KvClient(f"couchbase://127.0.0.1:{listener.port}", "Administrator", "password") as kv:
            return use(kv)
    finally:
        listener.close()


@pytest.mark.parametrize("piece", [1, 7, 65536])
def test_a_client_over_a_socket(native: ModuleType, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr("dcpstream.client.kv.windows.FIRST_PAUSE_S", 0.0)

    def use(kv: KvClient) -> Any:
        items: list[Item] = [("a", b"1"), ("b", "2"), ("a", None), ("none", None), ("c", b"x" * 1000)]
        return kv.mutate_many(items, flags=9), kv.get_many(["a", b"b", "c"])

    refused = [(0, b""), (int(Status.TMPFAIL), b""), (int(Status.NOT_MY_VBUCKET), b"")]
    tokens, documents = both(native, lambda: served(refused, use, piece))
    assert [token and token.vbuuid for token in tokens] == [0, 99, None, None, 99]
    assert [document and document[:2] for document in documents] == [None, (b"2", 9), (b"x" * 1000, 9)]


def test_a_refusal_is_an_error_with_the_words_of_the_node() -> None:
    with pytest.raises(StatusError, match="the disk is full"):
        served([(int(Status.E2BIG), b'{"error":{"context":"the disk is full"}}')], lambda kv: kv.set("a", b""), 99)


def answered(value: bytes) -> Answered:
    return Answered(Status.TMPFAIL, 1, 0, b"", value)


def test_a_refusal_says_why_in_the_words_of_the_node() -> None:
    assert answered(b'{"error":{"context":"the disk is full"}}').reason == "the disk is full"


@each_case(
    "value",
    [
        b"",
        b"full",
        b"[]",
        b"{}",
        b'{"error":1}',
        b'{"error":{"context":7}}',
        b"\xff",
        b"[" * MAX_REASON_BYTES,
        b'{"error":{"context":"%s"}}' % (b"x" * MAX_REASON_BYTES),
    ],
)
def test_a_body_that_gives_no_reason(value: bytes) -> None:
    assert answered(value).reason == ""
