"""The judgement at the end of a run: bucket against tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dcpstream_demo.compare import Comparison, HistoryCheck, check_history, compare

_CHANGE_COLUMNS = ("key", "value", "_change_type", "vbucket", "seqno")
READ_ROWS = 50_000
"""Rows that are turned into Python objects at a time."""

Show = Callable[[str, int, int], None]
"""What is done, how far, of how much."""


@dataclass(frozen=True, slots=True)
class Result:
    """What was found.

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
        written: what the loader has written.
        bucket: what was read of the bucket.
        tables: where the tables `current` and `changes` are.
        show: called as it goes on.
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
        # Two rows for one document are a difference that a dict would hide: keep them apart under a name of their own.
        documents[b"(rows that repeat a key)"] = str(rows - len(documents)).encode()
    return documents


def read_changes(path: Path, show: Show = lambda *_: None) -> tuple[HistoryCheck, int]:
    """The table `changes`, replayed, and the number of its control rows."""
    from deltalake import DeltaTable
    from pyarrow import compute

    dataset = DeltaTable(str(path)).to_pyarrow_dataset()
    is_control = compute.field("op") == "rollback"
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
