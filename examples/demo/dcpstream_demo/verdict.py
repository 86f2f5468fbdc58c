"""The judgement at the end of a run: the bucket against the tables.

Counts, a hash over all keys and values, and the first differences. The documents of the bucket are read with plain KV
reads, so that nothing of what is judged (change feed, decoder, Spark, table) takes part in the judgement.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

FIRST_DIFFERENCES = 10
"""Number of differences that are described; all are counted."""

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
        """Whether nothing differs. The hashes are computed independently of the comparison and must agree."""
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
    """The table of changes, replayed.

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
            vbucket, so within a key the seqnos give the order.
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


_CHANGE_COLUMNS = ("key", "value", "_change_type", "vbucket", "seqno")
READ_ROWS = 50_000
"""Rows converted to Python objects at a time."""

Show = Callable[[str, int, int], None]
"""Shows progress: name of the step, amount done, total."""


@dataclass(frozen=True, slots=True)
class Result:
    """The findings.

    Attributes:
        bucket_as_written: the bucket against what the loader has written.
        current: the bucket against the table `current`.
        replayed: the bucket against the table `changes`, replayed.
        change_count: data rows of `changes`.
        repeated_count: data rows that are there more than once.
        rollback_count: control rows of `changes`.
        documents: what `current` holds.
    """

    bucket_as_written: Comparison
    current: Comparison
    replayed: Comparison
    change_count: int
    repeated_count: int
    rollback_count: int
    documents: Mapping[bytes, bytes] = field(repr=False, default_factory=dict)

    @property
    def difference_count(self) -> int:
        """All differences of all comparisons."""
        return (
            self.bucket_as_written.difference_count
            + self.current.difference_count
            + self.replayed.difference_count
            + self.repeated_count
        )

    @property
    def is_exact(self) -> bool:
        """Whether nothing differs."""
        comparisons = (self.bucket_as_written, self.current, self.replayed)
        return self.difference_count == 0 and all(item.is_equal for item in comparisons)

    @property
    def verdict(self) -> str:
        """The last line."""
        word = "exact" if self.is_exact else "DIFFERENT"
        return (
            f"verdict: {word}, {self.current.right_count} documents, {self.change_count} changes, "
            f"{self.rollback_count} rollbacks, {self.difference_count} differences"
        )

    def lines(self) -> list[str]:
        """The findings, and the first differences."""
        lines = []
        for name, item, left, right in (
            ("bucket as written", self.bucket_as_written, "written", "bucket"),
            ("current = bucket", self.current, "bucket", "current"),
            ("changes, replayed", self.replayed, "bucket", "changes"),
        ):
            lines.append(
                f"{name:>18}: {item.left_count:,} and {item.right_count:,} documents, "
                f"sha256 {item.left_hash[:16]}… and {item.right_hash[:16]}…, {item.difference_count:,} differences"
            )
            lines += [f"{'':20}{difference.describe(left, right)}" for difference in item.first_differences]
        if self.repeated_count:
            lines.append(f"{'changes':>18}: {self.repeated_count:,} rows are there more than once")
        return lines


def judge(
    written: Mapping[bytes, bytes], bucket: Mapping[bytes, bytes], tables: Path, show: Show = lambda *_: None
) -> Result:
    """Compare everything with the bucket.

    Args:
        written: documents that the loader has written.
        bucket: documents read from the bucket.
        tables: directory of the tables `current` and `changes`.
        show: called with the progress.
    """
    current = read_current(tables / "current", show)
    history, rollbacks = read_changes(tables / "changes", show)
    pairs = ((written, bucket), (bucket, current), (bucket, history.documents))
    comparisons: list[Comparison] = []
    for left, right in pairs:
        show("compare", len(comparisons), len(pairs))
        comparisons.append(compare(left, right))
    show("compare", len(pairs), len(pairs))
    return Result(
        bucket_as_written=comparisons[0],
        current=comparisons[1],
        replayed=comparisons[2],
        change_count=history.row_count,
        repeated_count=history.repeated_count,
        rollback_count=rollbacks,
        documents=current,
    )


def read_current(path: Path, show: Show = lambda *_: None) -> dict[bytes, bytes]:
    """The documents in the table `current`, key → value."""
    from deltalake import DeltaTable

    dataset = DeltaTable(str(path)).to_pyarrow_dataset()
    total = int(dataset.count_rows())
    documents: dict[bytes, bytes] = {}
    rows = 0
    for batch in dataset.to_batches(columns=["key", "value"], batch_size=READ_ROWS):
        rows += batch.num_rows
        documents |= zip(_bytes(batch.column("key")), _bytes(batch.column("value")), strict=True)
        show("read current", rows, total)
    if rows != len(documents):
        # A dict hides two rows for one document, so they are added under a name of their own.
        documents[b"(rows that repeat a key)"] = str(rows - len(documents)).encode()
    return documents


def read_changes(path: Path, show: Show = lambda *_: None) -> tuple[HistoryCheck, int]:
    """The table `changes`, replayed, and the number of its control rows."""
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyarrow import compute

    dataset = DeltaTable(str(path)).to_pyarrow_dataset()
    # A file that delta-rs has written again after a deletion has views of strings. Arrow compares them with views only.
    is_control = compute.field("op").cast(pa.string()) == "rollback"
    rollbacks = int(dataset.count_rows(filter=is_control))
    total = int(dataset.count_rows()) - rollbacks

    def columns() -> Iterator[tuple[Sequence[bytes], Sequence[bytes | None], Sequence[int], Sequence[int]]]:
        rows = 0
        for batch in dataset.to_batches(columns=list(_CHANGE_COLUMNS), filter=~is_control, batch_size=READ_ROWS):
            kinds = batch.column("_change_type").to_pylist()
            values = _bytes(batch.column("value"))
            yield (
                _bytes(batch.column("key")),
                [None if kind == "delete" else value for kind, value in zip(kinds, values, strict=True)],
                batch.column("vbucket").to_pylist(),
                batch.column("seqno").to_pylist(),
            )
            rows += batch.num_rows
            show("read changes", rows, total)

    return check_history(columns()), rollbacks


def _bytes(column: object) -> list[bytes]:
    import pyarrow as pa

    assert isinstance(column, pa.Array)
    result: list[bytes] = column.cast(pa.binary()).to_pylist()
    return result
