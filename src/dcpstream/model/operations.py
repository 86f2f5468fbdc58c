"""What a row of a change feed can say: the values of `op`, the same for every reader."""

from __future__ import annotations

from enum import StrEnum


class Op(StrEnum):
    """The kind of a row.

    The first three are changes of documents. All others are control rows: they have no key, and `value` is JSON.
    """

    MUTATION = "mutation"
    DELETION = "deletion"
    EXPIRATION = "expiration"
    ROLLBACK = "rollback"
    """The vbucket's history went back: rows above `to_seqno` are void."""
    COLLECTION_CREATED = "collection_created"
    COLLECTION_DROPPED = "collection_dropped"
    """The collection is gone with all documents that it had in this vbucket."""
    COLLECTION_FLUSHED = "collection_flushed"
    """The collection is there and empty: its documents in this vbucket are gone."""
    COLLECTION_MODIFIED = "collection_modified"
    """A setting of the collection changed; its documents stay."""
    SCOPE_CREATED = "scope_created"
    SCOPE_DROPPED = "scope_dropped"
    """The scope is gone; each of its collections was told before."""

    @property
    def is_control(self) -> bool:
        """Whether such a row is no change of a document."""
        return self not in _DOCUMENT_OPS

    @property
    def empties_collection(self) -> bool:
        """Whether older rows of the row's collection and vbucket (at or below its seqno) are gone."""
        return self in _EMPTYING_OPS


_DOCUMENT_OPS = frozenset((Op.MUTATION, Op.DELETION, Op.EXPIRATION))
# A collection that begins has no documents yet: older rows of its name are of an earlier collection of that name.
_EMPTYING_OPS = frozenset((Op.COLLECTION_CREATED, Op.COLLECTION_DROPPED, Op.COLLECTION_FLUSHED))
