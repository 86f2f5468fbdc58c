"""The KV client for the loader, which writes, and for the comparison, which reads all documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from dcpstream.client.kv.client import KvClient, MutationToken
from dcpstream.errors import KeyNotFound
from dcpstream_demo.flights import Change
from dcpstream_demo.loader import Token

READ_AT_ONCE = 20_000
"""Keys that are read between two reports of progress."""


@dataclass(frozen=True, slots=True)
class Access:
    """Address of the bucket, and the login."""

    connection_string: str
    username: str
    password: str
    bucket: str

    def connect(self) -> KvClient:
        """A client; connects when first used."""
        return KvClient(self.connection_string, self.username, self.password, self.bucket)


class LoaderBucket:
    """`dcpstream_demo.loader.Bucket` on a KV client."""

    def __init__(self, access: Access) -> None:
        self._client = access.connect()
        try:
            _ = self._client.map  # connects now, so that a node that is away is noticed here
        except BaseException:
            self._client.close()
            raise

    def write(self, changes: Sequence[Change]) -> Sequence[Token]:
        """Write all, in order."""
        answers = self._client.mutate_many((change.key, change.value) for change in changes)
        return [
            Token(*(answer or self._delete_with_token(change.key))[:3])
            for change, answer in zip(changes, answers, strict=True)
        ]

    def persisted(self, branches: Sequence[tuple[int, int]]) -> Sequence[int]:
        """The last seqno of each branch that a crash can no longer lose."""
        try:
            observed = self._client.observe_seqnos(branches)
        except KeyNotFound:
            return [self._persisted(vbid, vbuuid) for vbid, vbuuid in branches]
        return [item.old_high_seqno if item.old_vbuuid else item.persisted_seqno for item in observed]

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _delete_with_token(self, key: bytes) -> MutationToken:
        """Delete a document that is already deleted, by a request whose answer was lost.

        That deletion may still be lost, and has no token to check it by. So write the document and delete it again.
        """
        token = self._client.mutate_many([(key, b"{}"), (key, None)])[1]
        assert token is not None
        return token

    def _persisted(self, vbid: int, vbuuid: int) -> int:
        try:
            item = self._client.observe_seqno(vbid, vbuuid)
        except KeyNotFound:
            return 0  # the node does not know the branch: nothing of it has survived
        return item.old_high_seqno if item.old_vbuuid else item.persisted_seqno


def read_documents(
    access: Access, keys: Iterable[bytes], on_progress: Callable[[int], None] = lambda count: None
) -> dict[bytes, bytes]:
    """All documents of the bucket, by plain reads.

    Args:
        keys: all that were ever written; keys of documents that do not exist are allowed.
        on_progress: called with the number of keys requested so far.
    """
    documents: dict[bytes, bytes] = {}
    asked = 0
    rest = iter(keys)
    with access.connect() as client:
        while window := list(islice(rest, READ_AT_ONCE)):
            for key, document in zip(window, client.get_many(window), strict=True):
                if document is not None:
                    documents[key] = document.value
            asked += len(window)
            on_progress(asked)
        if unknown := int(client.stats()["curr_items"]) - len(documents):
            # The node's own count shows documents under keys that were never written; no read would find them.
            documents[b"(documents under other keys)"] = str(unknown).encode()
    return documents
