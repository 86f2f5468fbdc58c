"""The result of a commit, as the table formats report it."""

from __future__ import annotations

from dcpstream_spark.tables.table_formats import MergeCounts, merge_counts_of
from tests.kit.cases import each_case

NEW_FILE_OF_DELETES = {
    "added-records": "10",
    "added-position-deletes": "45",
    "removed-position-deletes": "30",
    "spark.merge-into.num-target-rows-deleted": "5",
    "spark.merge-into.num-target-rows-updated": "10",
}
"""The second MERGE into a table of Iceberg 1.12: 10 rows replaced, 5 deleted. The file lists 30 older deletes, too."""

WITH_INSERTED_ROWS = {
    "added-records": "70",
    "added-position-deletes": "30",
    "spark.merge-into.num-target-rows-deleted": "10",
    "spark.merge-into.num-target-rows-updated": "20",
}


def without_counts(summary: dict[str, str], **others: str) -> dict[str, str]:
    return {name: text for name, text in summary.items() if not name.startswith("spark.")} | others


@each_case(
    ("summary", "expected"),
    [
        (NEW_FILE_OF_DELETES, MergeCounts(written=10, removed=5)),
        (WITH_INSERTED_ROWS, MergeCounts(written=70, removed=10)),
        (without_counts(NEW_FILE_OF_DELETES), MergeCounts(written=10, removed=5)),
        (without_counts(WITH_INSERTED_ROWS), MergeCounts(written=70, removed=0)),
        (
            without_counts(NEW_FILE_OF_DELETES, **{"spark.merge-into.num-target-rows-deleted": "-1"}),
            MergeCounts(written=10, removed=5),
        ),
    ],
)
def test_replaced_rows_are_not_removed(summary: dict[str, str], expected: MergeCounts) -> None:
    assert merge_counts_of(summary) == expected
