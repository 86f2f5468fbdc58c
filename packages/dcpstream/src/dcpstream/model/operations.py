"""The kinds of rows in a change feed: the values of `op`, the same for every reader."""

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
    """The vbucket's history was rolled back: rows above `to_seqno` are void."""
    COLLECTION_CREATED = "collection_created"
    COLLECTION_DROPPED = "collection_dropped"
    """The collection and all of its documents in this vbucket are deleted."""
    COLLECTION_FLUSHED = "collection_flushed"
    """The collection exists, and all of its documents in this vbucket are deleted."""
    COLLECTION_EXCLUDED = "collection_excluded"
    """The reader no longer reads the collection, so its rows would go out of date. The collection may still exist."""
    COLLECTION_MODIFIED = "collection_modified"
    """A setting of the collection changed; its documents stay."""
    SCOPE_CREATED = "scope_created"
    SCOPE_DROPPED = "scope_dropped"
    """The scope is deleted, after a row for each of its collections."""
    HISTORY_GAP = "history_gap"
    """A reader of every version begins where the bucket has no older versions any more: some may be missing."""

    SNAPSHOT = "snapshot"
    """A mark: a reader has all rows of the vbucket up to here; the mark says whether they are a whole snapshot."""

    @property
    def is_control(self) -> bool:
        """Whether the row is a control row, not a change of a document."""
        return self not in _DOCUMENT_OPS

    @property
    def empties_collection(self) -> bool:
        """Whether older rows of its collection and vbucket (at or below its seqno) are void."""
        return self in _EMPTYING_OPS


_DOCUMENT_OPS = frozenset((Op.MUTATION, Op.DELETION, Op.EXPIRATION))
# A new collection has no documents; older rows of its name belong to an earlier collection of that name.
_EMPTYING_OPS = frozenset((Op.COLLECTION_CREATED, Op.COLLECTION_DROPPED, Op.COLLECTION_FLUSHED, Op.COLLECTION_EXCLUDED))
