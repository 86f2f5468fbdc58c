"""A small blocking key-value client: pipelined writes and reads in bulk, mutation tokens, persistence.

For loaders, checks and tests, not a replacement for the SDK: one connection a node, one thread, no timeouts per
operation but one for progress. Requests are built and answers are read many at a time, which is what makes it quick.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from types import TracebackType
from typing import NamedTuple

from dcpstream.client.kv.connection import Answered, KvConnection
from dcpstream.client.kv.pool import KvPool
from dcpstream.client.machine.nodes.cluster_map import manifest_of
from dcpstream.client.settings.options import CONNECT_TIMEOUT_S, access
from dcpstream.client.settings.tls import TlsOptions
from dcpstream.errors import ConfigError, ConnectionLost, DcpstreamError
from dcpstream.model import VbucketMap, vbucket_of_key
from dcpstream.wire import Opcode, Status, encode_request
from dcpstream.wire.keys import leb128_encode
from dcpstream.wire.status import status_error

WINDOW_OPS = 1000
"""Operations that are sent before answers are read: enough to hide the way to the node, few enough to buffer."""

WINDOW_BYTES = 1024 * 1024
"""Bytes of a window, unless one operation alone is larger."""

RETRIES_MAX = 100
"""Attempts of an operation that the node puts off; with the pauses between them about 20 s."""

RETRY_PAUSE_S = 0.2
"""Longest pause between such attempts."""

_HEADER = struct.Struct(">BBHBBHIIQ")
_SET_EXTRAS = struct.Struct(">II")
_SET_HEADER = struct.Struct(">BBHBBHIIQII")
_TOKEN = struct.Struct(">QQ")
_U64 = struct.Struct(">Q")
_U32 = struct.Struct(">I")
_OBSERVED = struct.Struct(">BHQQQ")
_OBSERVED_OLD = struct.Struct(">QQ")
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


class KvClient:
    """Documents of one collection.

    Args:
        connection_string: as for `Client`.
        username, password, bucket: of the bucket; no user and password with a client certificate.
        collection: "scope.collection" or "collection"; the default collection if None.
        connect_timeout_s: limit for the first connection, and for making others.
        tls, sasl_mechanism, network: as for `Client`.

    Raises:
        ConfigError, AuthenticationFailed, ConnectTimeout: when first used.
    """

    def __init__(
        self,
        connection_string: str,
        username: str = "",
        password: str = "",
        bucket: str = "default",
        *,
        collection: str | None = None,
        tls: TlsOptions | None = None,
        sasl_mechanism: str | None = None,
        network: str | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        given = access(
            connection_string,
            username=username,
            password=password,
            bucket=bucket,
            tls=tls,
            sasl_mechanism=sasl_mechanism,
            network=network,
        )
        self._links = KvPool(given, connect_timeout_s)
        self._collection = collection
        self._prefix: bytes | None = None

    @property
    def map(self) -> VbucketMap:
        """The cluster map."""
        return self._links.map

    def vbucket_of(self, key: Key) -> int:
        """The vbucket of a document."""
        return vbucket_of_key(_bytes(key), self._links.map.vbucket_count)

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
        link = self._links.any()
        link.send(encode_request(Opcode.STAT, key=group.encode()))
        result: dict[str, str] = {}
        while True:
            answer = link.answers(1)[0]
            link.check(answer, Opcode.STAT)
            if answer.status != Status.SUCCESS:
                raise status_error(answer.status, opcode=Opcode.STAT, context=f"group {group!r}")
            if not answer.key:
                return result
            result[answer.key.decode(errors="replace")] = answer.value.decode(errors="replace")

    def close(self) -> None:
        """Close all connections; a second time does nothing."""
        self._links.close()

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
            link = self._links.any()
            if not link.has_collections:
                if self._collection is not None:
                    raise ConfigError("collection", self._collection, "the node has no collections; leave it out")
                self._prefix = b""
            elif self._collection is None:
                self._prefix = b"\0"
            else:
                answer = link.ask(encode_request(Opcode.GET_COLLECTIONS_MANIFEST))
                self._prefix = leb128_encode(manifest_of(answer.value).resolve(self._collection).collection_id)
        return self._prefix

    def _run(self, operations: Iterator[_Operation]) -> Iterator[tuple[_Operation, Answered]]:
        """Each operation with its answer, in order; two windows are on the way at a time."""
        waiting: list[tuple[list[_Operation], list[tuple[KvConnection, list[int]]]]] = []
        is_clean = False
        try:
            while True:
                window = _window(operations)
                if window:
                    waiting.append((window, self._send(window)))
                if not waiting:
                    break
                if len(waiting) == 1 and window:
                    continue
                done = [waiting.pop(0)]
                answers = [self._read(*done[0])]
                if self._were_put_off(answers[0]):
                    # Nothing else may be on the way while single operations are repeated.
                    done += waiting
                    answers += [self._read(*rest) for rest in waiting]
                    waiting.clear()
                    self._repeat([operation for part, _ in done for operation in part], answers)
                for (part, _), part_answers in zip(done, answers, strict=True):
                    yield from zip(part, part_answers, strict=True)
            is_clean = True
        finally:
            if not is_clean:
                # Answers that nobody will read may be under way.
                self.close()

    def _send(self, window: list[_Operation]) -> list[tuple[KvConnection, list[int]]]:
        by_link: dict[KvConnection, list[int]] = {}
        for index, operation in enumerate(window):
            by_link.setdefault(self._links.of(operation.vbid), []).append(index)
        for link, indexes in by_link.items():
            link.send(b"".join([window[index].request for index in indexes]))
        return list(by_link.items())

    def _read(self, window: list[_Operation], sent: list[tuple[KvConnection, list[int]]]) -> list[Answered]:
        answers: list[Answered | None] = [None] * len(window)
        for link, indexes in sent:
            for index, answer in zip(indexes, link.answers(len(indexes)), strict=True):
                if answer.opcode != window[index].opcode:
                    link.check(answer, window[index].opcode)
                answers[index] = answer
        return [answer for answer in answers if answer is not None]

    @staticmethod
    def _were_put_off(answers: list[Answered]) -> bool:
        return any(answer.status in _LATER for answer in answers)

    def _repeat(self, operations: list[_Operation], windows: list[list[Answered]]) -> None:
        """Repeat what was put off, one by one and in order, each with the later operations on its key.

        The later ones may have been carried out already; without repeating them the older one would win.
        """
        keys: set[bytes] = set()
        number = 0
        for answers in windows:
            for index, answer in enumerate(answers):
                operation = operations[number]
                number += 1
                if answer.status in _LATER:
                    keys.add(operation.key)
                if operation.key in keys:
                    answers[index] = self._insist(operation)

    def _insist(self, operation: _Operation) -> Answered:
        """One operation, tried until it is not put off any more, or too often."""
        for attempt in range(RETRIES_MAX):
            link = self._links.of(operation.vbid)
            answer = link.exchange(operation.request)
            if answer.status not in _LATER:
                return answer
            if answer.status == Status.NOT_MY_VBUCKET and not self._links.take_map(answer.value, link.address):
                self._links.take_map(link.ask(encode_request(Opcode.GET_CLUSTER_CONFIG)).value, link.address)
            link.pause(min(RETRY_PAUSE_S, 0.01 * 2**attempt))
        raise _refused(operation, answer)


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


def _refused(operation: _Operation, answer: Answered) -> DcpstreamError:
    why = f": {answer.reason}" if answer.reason else ""
    context = f"key {operation.key[:100]!r}{why}"
    return status_error(answer.status, opcode=operation.opcode, vbid=operation.vbid, context=context)
