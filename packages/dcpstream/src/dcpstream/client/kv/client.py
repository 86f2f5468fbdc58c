"""A small blocking key-value client: pipelined writes and reads in bulk, mutation tokens, persistence.

For loaders, checks and tests, not a replacement for the SDK: one connection per node, one thread, one timeout for
progress instead of one per operation. It builds requests and reads answers many at a time, which makes it fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from dcpstream.client.kv.bulk import Answered, Item, Key, Operation, reads_of, writes_of
from dcpstream.client.kv.connection import KvConnection
from dcpstream.client.kv.pool import KvPool
from dcpstream.client.kv.windows import Windows
from dcpstream.client.machine.nodes.cluster_map import manifest_of
from dcpstream.client.settings.client_options import CLIENT_DEFAULTS, ClientOptions
from dcpstream.client.settings.options import access
from dcpstream.client.settings.secrets import Secret
from dcpstream.client.spans import describe_call, documents_span
from dcpstream.errors import ConfigError, ConnectionLost, DcpstreamError
from dcpstream.model import NodeAddress, VbucketMap, vbucket_of_key
from dcpstream.runtime import kernel
from dcpstream.wire import Opcode, Status
from dcpstream.wire.keys import leb128_encode
from dcpstream.wire.layout import decode_message
from dcpstream.wire.messages.kv import (
    GetCollectionsManifest,
    GetResponse,
    ObserveSeqno,
    ObserveSeqnoFailoverResponse,
    ObserveSeqnoResponse,
    SetResponse,
    Stat,
)
from dcpstream.wire.status import status_error

_TOKEN, _FLAGS = SetResponse.layout.extras, GetResponse.layout.extras


_Result = TypeVar("_Result")


class MutationToken(NamedTuple):
    """The place of a write in history: vbucket, branch, seqno, and the document's new CAS."""

    vbid: int
    vbuuid: int
    seqno: int
    cas: int


class Document(NamedTuple):
    """A document that was read."""

    value: bytes
    flags: int
    cas: int
    datatype: int


class ObservedSeqno(NamedTuple):
    """The seqnos of a vbucket's branch on a node.

    `persisted_seqno` survives a crash. If the requested branch is no longer the newest, `vbuuid` is the newest,
    `old_vbuuid` the requested one and `old_high_seqno` its last seqno; otherwise these two are 0.
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
        results: the answers before, in the order of the operations; None for an operation without an answer, which
            the node may have carried out or not.
    """

    def __init__(self, message: str, results: Sequence[object], *, cause: BaseException | None = None) -> None:
        super().__init__(message, cause=cause)
        self.results = results


class KvClient:
    """Documents of one collection.

    Args:
        connection_string: as for `Client`.
        username, password, bucket: of the bucket; no user and password with a client certificate or a token.
        collection: "scope.collection" or "collection"; the default collection if None.
        options: of the client.

    Raises:
        ConfigError, AuthenticationFailed, ConnectTimeout: when first used.
    """

    def __init__(
        self,
        connection_string: str,
        username: str = "",
        password: Secret = "",
        bucket: str = "default",
        *,
        collection: str | None = None,
        options: ClientOptions = CLIENT_DEFAULTS,
    ) -> None:
        given = access(connection_string, username, password, bucket, options)
        self._bucket, self._seeds = bucket, given.parsed.seeds
        self._pool = KvPool(given)
        self._windows = Windows(self._pool)
        self._collection = collection
        self._prefix: bytes | None = None

    @property
    def map(self) -> VbucketMap:
        """The cluster map."""
        return self._pool.map

    def vbucket_of(self, key: Key) -> int:
        """The vbucket of a document."""
        return vbucket_of_key(_bytes(key), self._pool.map.vbucket_count)

    def set(self, key: Key, value: bytes | str, *, flags: int = 0, expiry: int = 0) -> MutationToken:
        """Write one document."""
        return self.set_many([(key, value)], flags=flags, expiry=expiry)[0]

    def get(self, key: Key) -> Document | None:
        """Read one document; None if it does not exist."""
        return self.get_many([key])[0]

    def delete(self, key: Key) -> MutationToken | None:
        """Delete one document; None if it does not exist."""
        return self.delete_many([key])[0]

    def set_many(
        self, items: Iterable[tuple[Key, bytes | str]], *, flags: int = 0, expiry: int = 0
    ) -> list[MutationToken]:
        """Write documents, in order; see `mutate_many`."""
        tokens = self._mutate("set", items, flags, expiry)
        return [token for token in tokens if token is not None]

    def delete_many(self, keys: Iterable[Key]) -> list[MutationToken | None]:
        """Delete documents, in order; see `mutate_many`."""
        return self._mutate("delete", ((key, None) for key in keys), 0, 0)

    def mutate_many(self, items: Iterable[Item], *, flags: int = 0, expiry: int = 0) -> list[MutationToken | None]:
        """Write documents (or delete them: value None), many in flight at once, the changes of a key in order.

        Args:
            items: (key, value); the value as bytes or text.
            flags: u32 stored with each document.
            expiry: seconds, or a time; 0 for none.

        Returns: a token for each item; None for the deletion of a document that does not exist.

        Raises:
            BulkInterrupted: the connection was lost; holds the answers so far. The next call connects again.
            StatusError: the node refuses an operation.
        """
        return self._mutate("mutate", items, flags, expiry)

    def _mutate(self, name: str, items: Iterable[Item], flags: int, expiry: int) -> list[MutationToken | None]:
        results: list[MutationToken | None] = []
        with self._call(name, results):
            take = writes_of(items, self.map.vbucket_count, self._key_prefix(), flags, expiry)
            try:
                for operations, answers in self._windows.run(take):
                    results += _results(MutationToken, _token, operations, answers)
            except ConnectionLost as error:
                raise BulkInterrupted(
                    f"{error}; {len(results)} writes were answered before", results, cause=error
                ) from error
        return results

    def get_many(self, keys: Iterable[Key]) -> list[Document | None]:
        """Read documents, many in flight at once; None for a document that does not exist."""
        results: list[Document | None] = []
        with self._call("get", results):
            take = reads_of(keys, self.map.vbucket_count, self._key_prefix())
            for operations, answers in self._windows.run(take):
                results += _results(Document, _document, operations, answers)
        return results

    def observe_seqno(self, vbid: int, vbuuid: int) -> ObservedSeqno:
        """The seqnos of a branch that the vbucket's node holds, and that survive a crash.

        Raises:
            KeyNotFound: the node does not know the branch.
        """
        return self.observe_seqnos([(vbid, vbuuid)])[0]

    def observe_seqnos(self, branches: Iterable[tuple[int, int]]) -> list[ObservedSeqno]:
        """`observe_seqno` for many (vbucket, vbuuid) at once."""
        operations = (
            Operation(Opcode.OBSERVE_SEQNO, vbid, b"", ObserveSeqno.pack(vbuuid, vbid=vbid))
            for vbid, vbuuid in branches
        )
        results = []
        for operation, answer in self._windows.one_by_one(operations):
            if answer.status != Status.SUCCESS:
                raise _refused(operation, answer)
            match decode_message(answer.to_frame()):
                case ObserveSeqnoResponse() as found:
                    old = (0, 0)
                case ObserveSeqnoFailoverResponse() as found:
                    old = (found.old_vbuuid, found.last_seqno)
                case _:
                    raise _refused(operation, answer)
            results.append(
                ObservedSeqno(found.observed_vbid, found.vbuuid, found.persisted_seqno, found.current_seqno, *old)
            )
        return results

    def stats(self, group: str = "") -> dict[str, str]:
        """A node's statistics of a group ("vbucket", "dcp", …); of several nodes, of the one connected to first.

        Raises:
            KeyNotFound: the node does not know the group.
        """
        return self._stats(self._pool.any(), group)

    def stats_by_node(self, group: str = "") -> dict[NodeAddress, dict[str, str]]:
        """The statistics of a group, of each node that has active vbuckets.

        Raises:
            KeyNotFound: a node does not know the group. ConnectionLost: a node cannot be reached.
        """
        nodes = self.map.vbuckets_by_node()
        return {address: self._stats(self._pool.of(vbids[0]), group) for address, vbids in nodes.items()}

    def _stats(self, connection: KvConnection, group: str) -> dict[str, str]:
        connection.send(Stat.pack(key=group.encode()))
        result: dict[str, str] = {}
        while True:
            answer = connection.answers(1)[0]
            connection.check(answer, Opcode.STAT)
            connection.check_login(answer)
            if answer.status != Status.SUCCESS:
                raise status_error(answer.status, opcode=Opcode.STAT, context=f"group {group!r}")
            if not answer.key:
                return result
            result[answer.key.decode(errors="replace")] = answer.value.decode(errors="replace")

    def close(self) -> None:
        """Close all connections; a second time does nothing."""
        self._pool.close()

    def __enter__(self) -> KvClient:
        """The client itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close."""
        self.close()

    @contextmanager
    def _call(self, operation: str, results: Sized) -> Iterator[None]:
        """The span of a call, and what the servers' releases say about its error."""
        with documents_span(operation, self._bucket, self._collection, self._seeds) as one:
            try:
                yield
            except DcpstreamError as error:
                self._pool.releases.explain(error)
                raise
            describe_call(one, len(results), self._pool.releases)

    def _key_prefix(self) -> bytes:
        if self._prefix is None:
            connection = self._pool.any()
            if not connection.has_collections:
                if self._collection is not None:
                    raise ConfigError("collection", self._collection, "the node has no collections; leave it out")
                self._prefix = b""
            elif self._collection is None:
                self._prefix = b"\0"
            else:
                answer = connection.ask(GetCollectionsManifest.pack())
                self._prefix = leb128_encode(manifest_of(answer.value).resolve(self._collection).collection_id)
        return self._prefix


def _results(
    kind: type[_Result],
    make: Callable[[Operation, Answered], _Result | None],
    operations: list[Operation],
    answers: list[Answered],
) -> list[_Result | None]:
    """The tokens or documents of answers, by the kernel up to the first that it leaves to `make`."""
    done: list[_Result | None] = []
    if kernel.native is not None:
        done = kernel.native.results(kind, operations, answers)
    at = len(done)
    return done + list(map(make, operations[at:], answers[at:]))


def _token(operation: Operation, answer: Answered) -> MutationToken | None:
    if answer.status == Status.SUCCESS:
        vbuuid, seqno = _TOKEN.unpack(answer.extras) if len(answer.extras) == _TOKEN.size else (0, 0)
        return MutationToken(operation.vbid, vbuuid, seqno, answer.cas)
    if answer.status == Status.KEY_ENOENT and operation.opcode == Opcode.DELETE:
        return None
    raise _refused(operation, answer)


def _document(operation: Operation, answer: Answered) -> Document | None:
    if answer.status == Status.SUCCESS:
        flags = _FLAGS.unpack(answer.extras)[0] if len(answer.extras) == _FLAGS.size else 0
        return Document(answer.value, flags, answer.cas, answer.datatype)
    if answer.status == Status.KEY_ENOENT:
        return None
    raise _refused(operation, answer)


def _bytes(key: Key) -> bytes:
    return key if isinstance(key, bytes) else key.encode()


def _refused(operation: Operation, answer: Answered) -> DcpstreamError:
    why = f": {answer.reason}" if answer.reason else ""
    context = f"key {operation.key[:100]!r}{why}"
    return status_error(answer.status, opcode=operation.opcode, vbid=operation.vbid, context=context)
