"""A small blocking key-value client: pipelined writes and reads in bulk, mutation tokens, persistence.

For loaders, checks and tests, not a replacement for the SDK: one connection a node, one thread, no timeouts per
operation but one for progress. Requests are built and answers are read many at a time, which is what makes it quick.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from types import TracebackType
from typing import NamedTuple

from dcpstream.client import connection_string as connection_strings
from dcpstream.client.handshake import Handshake, Login
from dcpstream.client.topology import parse_config
from dcpstream.errors import (
    ConfigError,
    ConnectionLost,
    ConnectTimeout,
    DcpstreamError,
    DeadConnection,
    NotMyVbucket,
    RemoteProtocolError,
)
from dcpstream.model import Manifest, NodeAddress, VbucketMap, vbucket_of_key
from dcpstream.runtime import Clock, Random, SystemClock, SystemRandom
from dcpstream.wire import Feature, Frame, FrameReader, Opcode, Status, encode_request, leb128_encode
from dcpstream.wire.status import status_error

WINDOW_OPS = 1000
"""Operations that are sent before answers are read: enough to hide the way to the node, few enough to buffer."""

WINDOW_BYTES = 1024 * 1024
"""Bytes of a window, unless one operation alone is larger."""

CONNECT_TIMEOUT_S = 10.0
"""Limit for making a connection with authentication."""

ANSWER_TIMEOUT_S = 30.0
"""How long a node may be silent while it owes answers."""

RETRIES_MAX = 100
"""Attempts of an operation that the node puts off; with the pauses between them about 20 s."""

RETRY_PAUSE_S = 0.2
"""Longest pause between such attempts."""

RECEIVE_BYTES = 256 * 1024

_HEADER = struct.Struct(">BBHBBHIIQ")
_SET_EXTRAS = struct.Struct(">II")
_SET_HEADER = struct.Struct(">BBHBBHIIQII")
_ANSWER = struct.Struct(">BBHBBHI")
_TOKEN = struct.Struct(">QQ")
_U64 = struct.Struct(">Q")
_U32 = struct.Struct(">I")
_OBSERVED = struct.Struct(">BHQQQ")
_OBSERVED_OLD = struct.Struct(">QQ")
_HEADER_BYTES = 24
_LATER = frozenset((Status.TMPFAIL, Status.ENOMEM, Status.BUSY, Status.LOCKED, Status.NOT_MY_VBUCKET))

Key = str | bytes


class MutationToken(NamedTuple):
    """Which change a write became: vbucket, branch, seqno, and the document's new CAS."""

    vbid: int
    vbuuid: int
    seqno: int
    cas: int


class Document(NamedTuple):
    """A document as it was read."""

    value: bytes
    flags: int
    cas: int
    datatype: int


class ObservedSeqno(NamedTuple):
    """What a node has of a vbucket's branch.

    `persisted_seqno` survives a crash. If the branch that was asked for is no longer the newest, `vbuuid` is
    the newest, `old_vbuuid` the one asked for and `old_high_seqno` the last seqno that is left of it; else these two
    are 0.
    """

    vbid: int
    vbuuid: int
    persisted_seqno: int
    current_seqno: int
    old_vbuuid: int = 0
    old_high_seqno: int = 0


class BulkInterrupted(ConnectionLost):
    """The connection was lost in the middle of a bulk operation.

    Attributes:
        results: what was answered before, in the order of the operations; None where nothing is known: such an
            operation may have been carried out or not.
    """

    def __init__(self, message: str, results: Sequence[object], *, cause: BaseException | None = None) -> None:
        super().__init__(message, cause=cause)
        self.results = results


class _Operation(NamedTuple):
    opcode: int
    vbid: int
    key: bytes
    request: bytes


class _Answered(NamedTuple):
    status: int
    datatype: int
    cas: int
    extras: bytes
    value: bytes
    key: bytes = b""


class KvClient:
    """Documents of one collection.

    Args:
        connection_string: as for `Client`.
        username, password, bucket: of the bucket.
        collection: "scope.collection" or "collection"; the default collection if None.
        connect_timeout_s: limit for the first connection, and for making others.

    Raises:
        ConfigError, AuthenticationFailed, ConnectTimeout: when first used.
    """

    def __init__(
        self,
        connection_string: str,
        username: str,
        password: str,
        bucket: str,
        *,
        collection: str | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self._parsed = connection_strings.parse(connection_string)
        self._login = Login(username, password, bucket)
        self._collection = collection
        self._connect_timeout_s = connect_timeout_s
        self._clock: Clock = SystemClock()
        self._random: Random = SystemRandom()
        self._map: VbucketMap | None = None
        self._links: dict[str, _Link] = {}
        self._prefix: bytes | None = None
        self._repeated: set[bytes] = set()

    @property
    def map(self) -> VbucketMap:
        """The cluster map."""
        if self._map is None:
            self._connect_any()
        assert self._map is not None
        return self._map

    def vbucket_of(self, key: Key) -> int:
        """The vbucket of a document."""
        return vbucket_of_key(_bytes(key), self.map.vbucket_count)

    def set(self, key: Key, value: bytes | str, *, flags: int = 0, expiry: int = 0) -> MutationToken:
        """Write one document."""
        return self.set_many([(key, value)], flags=flags, expiry=expiry)[0]

    def get(self, key: Key) -> Document | None:
        """Read one document; None if there is none."""
        return self.get_many([key])[0]

    def delete(self, key: Key) -> MutationToken | None:
        """Delete one document; None if there is none."""
        return self.delete_many([key])[0]

    def set_many(
        self, items: Iterable[tuple[Key, bytes | str]], *, flags: int = 0, expiry: int = 0
    ) -> list[MutationToken]:
        """Write documents, in order; see `mutate_many`."""
        tokens = self.mutate_many(items, flags=flags, expiry=expiry)
        return [token for token in tokens if token is not None]

    def delete_many(self, keys: Iterable[Key]) -> list[MutationToken | None]:
        """Delete documents, in order; see `mutate_many`."""
        return self.mutate_many((key, None) for key in keys)

    def mutate_many(
        self, items: Iterable[tuple[Key, bytes | str | None]], *, flags: int = 0, expiry: int = 0
    ) -> list[MutationToken | None]:
        """Write documents (or delete them: value None), many on the way at once, the changes of a key in order.

        Args:
            items: (key, value); the value as bytes or text.
            flags: u32 stored with each document.
            expiry: seconds, or a time; 0 for none.

        Returns: a token for each item; None for the deletion of a document that is not there.

        Raises:
            BulkInterrupted: the connection was lost; tells what was answered. The next call connects again.
            StatusError: the node refuses an operation.
        """
        extras = _SET_EXTRAS.pack(flags, expiry)
        results: list[MutationToken | None] = []
        count, prefix = self.map.vbucket_count, self._key_prefix()

        def operations() -> Iterator[_Operation]:
            for key, value in items:
                name = key if isinstance(key, bytes) else key.encode()
                vbid = vbucket_of_key(name, count)
                wire_key = prefix + name
                size = len(wire_key)
                if value is None:
                    header = _HEADER.pack(0x80, 0x04, size, 0, 0, vbid, size, 0, 0)
                    yield _Operation(0x04, vbid, wire_key, header + wire_key)
                else:
                    body = value if isinstance(value, bytes) else value.encode()
                    header = _HEADER.pack(0x80, 0x01, size, 8, 0, vbid, 8 + size + len(body), 0, 0)
                    yield _Operation(0x01, vbid, wire_key, b"".join((header, extras, wire_key, body)))

        try:
            for operation, answer in self._run(operations()):
                if answer.status == Status.SUCCESS:
                    vbuuid, seqno = _TOKEN.unpack(answer.extras) if len(answer.extras) == _TOKEN.size else (0, 0)
                    results.append(MutationToken(operation.vbid, vbuuid, seqno, answer.cas))
                elif answer.status == Status.KEY_ENOENT and operation.opcode == Opcode.DELETE:
                    results.append(None)
                else:
                    raise _refused(operation, answer)
        except ConnectionLost as error:
            raise BulkInterrupted(
                f"{error}; {len(results)} writes were answered before", results, cause=error
            ) from error
        return results

    def get_many(self, keys: Iterable[Key]) -> list[Document | None]:
        """Read documents, many on the way at once; None where there is none."""
        count, prefix = self.map.vbucket_count, self._key_prefix()
        results: list[Document | None] = []

        def operations() -> Iterator[_Operation]:
            for key in keys:
                name = _bytes(key)
                vbid, wire_key = vbucket_of_key(name, count), prefix + name
                size = len(wire_key)
                header = _HEADER.pack(0x80, 0x00, size, 0, 0, vbid, size, 0, 0)
                yield _Operation(0x00, vbid, wire_key, header + wire_key)

        for operation, answer in self._run(operations()):
            if answer.status == Status.SUCCESS:
                flags = _U32.unpack(answer.extras)[0] if len(answer.extras) == _U32.size else 0
                results.append(Document(answer.value, flags, answer.cas, answer.datatype))
            elif answer.status == Status.KEY_ENOENT:
                results.append(None)
            else:
                raise _refused(operation, answer)
        return results

    def observe_seqno(self, vbid: int, vbuuid: int) -> ObservedSeqno:
        """How much of a branch the vbucket's node holds, and how much of that survives a crash.

        Raises:
            KeyNotFound: the node does not know the branch.
        """
        return self.observe_seqnos([(vbid, vbuuid)])[0]

    def observe_seqnos(self, branches: Iterable[tuple[int, int]]) -> list[ObservedSeqno]:
        """`observe_seqno` for many (vbucket, vbuuid) at once."""
        operations = (
            _Operation(
                Opcode.OBSERVE_SEQNO,
                vbid,
                b"",
                encode_request(Opcode.OBSERVE_SEQNO, vbid=vbid, value=_U64.pack(vbuuid)),
            )
            for vbid, vbuuid in branches
        )
        results = []
        for operation, answer in self._run(operations):
            if answer.status != Status.SUCCESS or len(answer.value) < _OBSERVED.size:
                raise _refused(operation, answer)
            kind, vbid, newest, persisted, current = _OBSERVED.unpack_from(answer.value)
            old = _OBSERVED_OLD.unpack_from(answer.value, _OBSERVED.size) if kind == 1 else (0, 0)
            results.append(ObservedSeqno(vbid, newest, persisted, current, *old))
        return results

    def stats(self, group: str = "") -> dict[str, str]:
        """A node's statistics of a group ("vbucket", "dcp", …); of several nodes, of the one connected to first.

        Raises:
            KeyNotFound: the node does not know the group.
        """
        link = next(iter(self._links.values()), None) or self._connect_any()
        link.send(encode_request(Opcode.STAT, key=group.encode()))
        result: dict[str, str] = {}
        while True:
            answer = link.answers(1)[0]
            if answer.status != Status.SUCCESS:
                raise status_error(answer.status, opcode=Opcode.STAT, context=f"group {group!r}")
            if not answer.key:
                return result
            result[answer.key.decode(errors="replace")] = answer.value.decode(errors="replace")

    def close(self) -> None:
        """Close all connections; a second time does nothing."""
        for link in self._links.values():
            link.close()
        self._links.clear()

    def __enter__(self) -> KvClient:
        """The client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _key_prefix(self) -> bytes:
        if self._prefix is None:
            link = next(iter(self._links.values()), None) or self._connect_any()
            if not link.has_collections:
                if self._collection is not None:
                    raise ConfigError("collection", self._collection, "the node has no collections; leave it out")
                self._prefix = b""
            elif self._collection is None:
                self._prefix = b"\0"
            else:
                answer = link.ask(encode_request(Opcode.GET_COLLECTIONS_MANIFEST))
                manifest = Manifest.from_json(json.loads(answer.value))
                self._prefix = leb128_encode(manifest.resolve(self._collection).collection_id)
        return self._prefix

    def _run(self, operations: Iterator[_Operation]) -> Iterator[tuple[_Operation, _Answered]]:
        """Each operation with its answer, in order; two windows are on the way at a time."""
        self._repeated.clear()
        previous: list[tuple[_Link, list[int]]] = []
        previous_window: list[_Operation] = []
        try:
            while True:
                window = _window(operations)
                sent = self._send(window)
                if previous_window:
                    yield from self._collect(previous_window, previous)
                if not window:
                    return
                previous, previous_window = sent, window
        except ConnectionLost:
            self.close()
            raise
        except GeneratorExit:
            # Answers that nobody will read are under way.
            self.close()
            raise

    def _send(self, window: list[_Operation]) -> list[tuple[_Link, list[int]]]:
        by_link: dict[_Link, list[int]] = {}
        for index, operation in enumerate(window):
            by_link.setdefault(self._link_for(operation.vbid), []).append(index)
        for link, indexes in by_link.items():
            link.send(b"".join([window[index].request for index in indexes]))
        return list(by_link.items())

    def _collect(
        self, window: list[_Operation], sent: list[tuple[_Link, list[int]]]
    ) -> Iterator[tuple[_Operation, _Answered]]:
        answers: list[_Answered | None] = [None] * len(window)
        again: list[int] = []
        for link, indexes in sent:
            for index, answer in zip(indexes, link.answers(len(indexes)), strict=True):
                answers[index] = answer
                # What was put off in the window before was repeated after this one was sent: its keys' later writes
                # must be repeated too, or the older one would win.
                if answer.status in _LATER or window[index].key in self._repeated:
                    again.append(index)
                    if answer.status == Status.NOT_MY_VBUCKET:
                        self._take_map(answer.value, link.address)
        self._repeated = {window[index].key for index in again}
        if again:
            self._again(window, answers, sorted(again))
        for operation, done in zip(window, answers, strict=True):
            assert done is not None
            yield operation, done

    def _again(self, window: list[_Operation], answers: list[_Answered | None], again: list[int]) -> None:
        """Repeat operations that were put off, each with the later ones on its key, one by one and in order."""
        first = {window[index].key: index for index in reversed(again)}
        for index, operation in enumerate(window):
            if index < first.get(operation.key, len(window)):
                continue
            for attempt in range(RETRIES_MAX):
                link = self._link_for(operation.vbid)
                answer = link.exchange(operation.request)
                answers[index] = answer
                if answer.status not in _LATER:
                    break
                if answer.status == Status.NOT_MY_VBUCKET and not self._take_map(answer.value, link.address):
                    self._take_map(link.ask(encode_request(Opcode.GET_CLUSTER_CONFIG)).value, link.address)
                link.pause(min(RETRY_PAUSE_S, 0.01 * 2**attempt))

    def _take_map(self, text: bytes, origin: NodeAddress) -> bool:
        if not text:
            return False
        try:
            found = parse_config(text, origin, self._parsed.network, self._parsed.seeds)
        except RemoteProtocolError:
            return False
        if self._map is None or found.version > self._map.version:
            self._map = found
            return True
        return False

    def _link_for(self, vbid: int) -> _Link:
        address = self.map.active_node(vbid)
        if address is None:
            raise NotMyVbucket(f"no node has vbucket {vbid} active", status=Status.NOT_MY_VBUCKET, vbid=vbid)
        return self._links.get(str(address)) or self._connect(address)

    def _connect_any(self) -> _Link:
        errors = []
        for address in dict.fromkeys((*self._parsed.seeds, *(self._map.nodes if self._map is not None else ()))):
            try:
                return self._connect(address)
            except ConnectTimeout as error:
                errors.append(str(error))
        raise ConnectTimeout(
            f"no node could be reached: {'; '.join(errors)}. Is it running, and is this its data port?"
        )

    def _connect(self, address: NodeAddress) -> _Link:
        link = _Link(address, self._connect_timeout_s, self._clock)
        try:
            config = link.shake_hands(
                Handshake(self._login, address, self._random.getrandbits(192).to_bytes(24, "big"))
            )
        except BaseException:
            link.close()
            raise
        self._links[str(address)] = link
        self._take_map(config, address)
        return link


class _Link:
    """One connection to a node."""

    def __init__(self, address: NodeAddress, connect_timeout_s: float, clock: Clock) -> None:
        self.address = address
        self.has_collections = False
        self._deadline = clock.monotonic() + connect_timeout_s
        self._clock = clock
        self._received = bytearray()
        try:
            self._socket = socket.create_connection((address.host, address.kv_port), timeout=connect_timeout_s)
        except OSError as error:
            raise ConnectTimeout(f"cannot connect to {address}: {error.strerror or error}", cause=error) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def shake_hands(self, handshake: Handshake) -> bytes:
        """Do the handshake; returns the cluster map's JSON."""
        reader = FrameReader()
        self.send(handshake.start())
        while not handshake.is_done:
            if self._clock.monotonic() >= self._deadline:
                raise ConnectTimeout(f"{self.address} did not let us in in time")
            try:
                reader.receive_data(self._receive())
                frames = list(reader.frames())
            except DeadConnection as error:
                raise ConnectTimeout(f"{self.address} did not let us in in time", cause=error) from error
            except DcpstreamError as error:
                if isinstance(error, ConnectionLost):
                    raise
                raise RemoteProtocolError(
                    f"{self.address} does not speak this protocol; is it the data port? ({error})"
                ) from error
            for frame in frames:
                self.send(handshake.receive(frame))
        self.has_collections = Feature.COLLECTIONS in handshake.granted
        self._socket.settimeout(ANSWER_TIMEOUT_S)
        return handshake.config

    def send(self, data: bytes) -> None:
        """Send all of it."""
        if not data:
            return
        try:
            self._socket.sendall(data)
        except TimeoutError as error:
            raise DeadConnection(f"{self.address} takes no more data", cause=error) from error
        except OSError as error:
            raise ConnectionLost(f"{self.address}: {error.strerror or error}", cause=error) from error

    def ask(self, request: bytes) -> Frame:
        """One request that must succeed; nothing else may be on the way."""
        answer = self.exchange(request)
        frame = Frame(0x81, request[1], value=answer.value)
        if answer.status != Status.SUCCESS:
            raise status_error(answer.status, opcode=request[1])
        return frame

    def exchange(self, request: bytes) -> _Answered:
        """Send one request; its answer."""
        self.send(request)
        return self.answers(1)[0]

    def answers(self, count: int) -> list[_Answered]:
        """The next answers, which come in the order of the requests."""
        buffer = self._received
        result: list[_Answered] = []
        at = 0
        unpack = _ANSWER.unpack_from
        for _ in range(count):
            while len(buffer) - at < _HEADER_BYTES:
                del buffer[:at]
                at = 0
                buffer += self._receive()
            magic, _, key_length, extras_length, datatype, status, body = unpack(buffer, at)
            end = at + _HEADER_BYTES + body
            while len(buffer) < end:
                del buffer[:at]
                end -= at
                at = 0
                buffer += self._receive()
            framing = 0
            if magic == 0x18:
                framing, key_length = key_length >> 8, key_length & 0xFF
            elif magic != 0x81:
                raise RemoteProtocolError(f"{self.address} sent a frame with magic 0x{magic:02x} as an answer")
            extras_at = at + _HEADER_BYTES + framing
            key_at = extras_at + extras_length
            value_at = key_at + key_length
            result.append(
                _Answered(
                    status,
                    datatype,
                    _U64.unpack_from(buffer, at + 16)[0],
                    bytes(buffer[extras_at:key_at]),
                    bytes(buffer[value_at:end]) if value_at < end else b"",
                    bytes(buffer[key_at:value_at]) if key_length else b"",
                )
            )
            at = end
        del buffer[:at]
        return result

    def pause(self, seconds: float) -> None:
        """Wait, on the socket: there is nothing to read."""
        self._socket.settimeout(seconds)
        try:
            data = self._socket.recv(1, socket.MSG_PEEK)
            if not data:
                raise ConnectionLost(f"{self.address} closed the connection")
        except TimeoutError:
            pass
        finally:
            self._socket.settimeout(ANSWER_TIMEOUT_S)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _receive(self) -> bytes:
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except TimeoutError as error:
            raise DeadConnection(f"{self.address} did not answer in time", cause=error) from error
        except OSError as error:
            raise ConnectionLost(f"{self.address}: {error.strerror or error}", cause=error) from error
        if not data:
            raise ConnectionLost(f"{self.address} closed the connection")
        return data


def _bytes(key: Key) -> bytes:
    return key if isinstance(key, bytes) else key.encode()


def _window(operations: Iterator[_Operation]) -> list[_Operation]:
    result: list[_Operation] = []
    size = 0
    for operation in islice(operations, WINDOW_OPS):
        result.append(operation)
        size += len(operation.request)
        if size >= WINDOW_BYTES:
            break
    return result


def _refused(operation: _Operation, answer: _Answered) -> DcpstreamError:
    return status_error(
        answer.status, opcode=operation.opcode, vbid=operation.vbid, context=f"key {operation.key[:100]!r}"
    )
