"""The demo's two uses of the KV client: writing for the loader, reading everything for the comparison."""

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
    """Where the bucket is, and who asks."""

    connection_string: str
    username: str
    password: str
    bucket: str

    def connect(self) -> KvClient:
        """A client; connects when first used."""
        return KvClient(self.connection_string, self.username, self.password, self.bucket)


class LoaderBucket:
    """What the loader needs, on a KV client; see `dcpstream_demo.loader.Bucket`."""

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
        """Of each branch the last seqno that a crash cannot take any more."""
        try:
            observed = self._client.observe_seqnos(branches)
        except KeyNotFound:
            return [self._persisted(vbid, vbuuid) for vbid, vbuuid in branches]
        return [item.old_high_seqno if item.old_vbuuid else item.persisted_seqno for item in observed]

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _delete_with_token(self, key: bytes) -> MutationToken:
        """Delete what does not exist: a try whose answer was lost has deleted it.

        That deletion may still be lost too, and without a token nobody could tell; so make one that has a token.
        """
        token = self._client.mutate_many([(key, b"{}"), (key, None)])[1]
        assert token is not None
        return token

    def _persisted(self, vbid: int, vbuuid: int) -> int:
        try:
            item = self._client.observe_seqno(vbid, vbuuid)
        except KeyNotFound:
            return 0  # nothing is left of a branch that the node does not know
        return item.old_high_seqno if item.old_vbuuid else item.persisted_seqno


def read_documents(
    access: Access, keys: Iterable[bytes], on_progress: Callable[[int], None] = lambda count: None
) -> dict[bytes, bytes]:
    """All documents of the bucket, by plain reads.

    Args:
        keys: all that were ever written; may hold keys of documents that do not exist.
        on_progress: called with the number of keys that were asked for until now.
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
            # The node counts its documents itself: one whose key nobody knows would be a difference that no read shows.
            documents[b"(documents under other keys)"] = str(unknown).encode()
    return documents
