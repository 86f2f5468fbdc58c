"""What the key-value client answers with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dcpstream.errors import ConnectionLost


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
