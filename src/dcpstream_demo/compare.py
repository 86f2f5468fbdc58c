"""Is the table equal to the bucket? Counts, a hash over all keys and values, and the first differences.

The bucket's side is read with plain KV reads, so that nothing of what is judged (change feed, decoder, Spark, table)
takes part in the judgement.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

FIRST_DIFFERENCES = 10
"""How many differences are described; all are counted."""

_LENGTHS = struct.Struct(">IQ")


@dataclass(frozen=True, slots=True)
class Difference:
    """A key whose value differs; None where it does not exist."""

    key: bytes
    left: bytes | None
    right: bytes | None

    def describe(self, left_name: str, right_name: str) -> str:
        """One line for people."""
        return (
            f"{self.key.decode(errors='replace')}: {left_name} {_shown(self.left)}, {right_name} {_shown(self.right)}"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sets of documents, compared key by key.

    Attributes:
        left_count, right_count: documents on either side.
        left_hash, right_hash: `content_hash` of either side.
        difference_count: keys whose values differ, or that one side lacks.
        first_differences: the first of them in order of the key.
    """

    left_count: int
    right_count: int
    left_hash: str
    right_hash: str
    difference_count: int
    first_differences: tuple[Difference, ...] = field(default=())

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs. The hashes are taken apart from the comparison, and must say the same."""
        return not self.difference_count and self.left_hash == self.right_hash and self.left_count == self.right_count


def compare(left: Mapping[bytes, bytes], right: Mapping[bytes, bytes], limit: int = FIRST_DIFFERENCES) -> Comparison:
    """Compare two sets of documents, key → value."""
    different = sorted(
        [key for key, value in left.items() if right.get(key) != value] + [key for key in right if key not in left]
    )
    return Comparison(
        left_count=len(left),
        right_count=len(right),
        left_hash=content_hash(left),
        right_hash=content_hash(right),
        difference_count=len(different),
        first_differences=tuple(Difference(key, left.get(key), right.get(key)) for key in different[:limit]),
    )


def content_hash(documents: Mapping[bytes, bytes]) -> str:
    """SHA-256 over all documents in order of the key: lengths (u32, u64, big-endian), key, value."""
    digest = hashlib.sha256()
    for key in sorted(documents):
        value = documents[key]
        digest.update(_LENGTHS.pack(len(key), len(value)))
        digest.update(key)
        digest.update(value)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class HistoryCheck:
    """What the table of changes is, by itself.

    Attributes:
        row_count: changes in it (control rows are not counted).
        repeated_count: rows that are there more than once.
        documents: the newest change of each key, deletions left out: the bucket, if the table is complete.
    """

    row_count: int
    repeated_count: int
    documents: Mapping[bytes, bytes]


def check_history(
    rows: Iterator[tuple[Sequence[bytes], Sequence[bytes | None], Sequence[int], Sequence[int]]],
) -> HistoryCheck:
    """Replay the table of changes.

    Args:
        rows: batches of columns, in any order: keys, values (None for a deletion), vbuckets, seqnos. A key stays in its
            vbucket, so within a key the seqnos tell the order.
    """
    newest: dict[bytes, tuple[int, bytes | None]] = {}
    seen: set[int] = set()
    row_count = 0
    for keys, values, vbuckets, seqnos in rows:
        for key, value, vbucket, seqno in zip(keys, values, vbuckets, seqnos, strict=True):
            row_count += 1
            seen.add(vbucket << 64 | seqno)
            known = newest.get(key)
            if known is None or seqno > known[0]:
                newest[key] = (seqno, value)
    documents = {key: value for key, (_, value) in newest.items() if value is not None}
    return HistoryCheck(row_count, row_count - len(seen), documents)


def _shown(value: bytes | None, limit: int = 160) -> str:
    if value is None:
        return "has no such document"
    text = value.decode(errors="replace")
    return text if len(text) <= limit else f"{text[:limit]}…"
