"""The table of coverage by package."""

from __future__ import annotations

import pytest

from lab.tools.branch_coverage import package_of, table


@pytest.mark.parametrize(
    ("path", "package"),
    [
        ("packages/dcpstream/src/dcpstream/errors.py", "dcpstream"),
        ("packages/dcpstream/src/dcpstream/wire/layout.py", "dcpstream.wire"),
        ("packages/dcpstream-node/src/dcpstream_node/engine/session/fast.py", "dcpstream_node.engine"),
        ("packages/dcpstream-spark/src/pyspark_dcpstream.py", "pyspark_dcpstream"),
    ],
)
def test_a_file_counts_for_its_package(path: str, package: str) -> None:
    assert package_of(path) == package


def test_the_last_row_is_the_total() -> None:
    def report(lines: int, run: int, branches: int, taken: int) -> dict[str, dict[str, int]]:
        names = ("num_statements", "covered_lines", "num_branches", "covered_branches")
        return {"summary": dict(zip(names, (lines, run, branches, taken), strict=True))}

    rows = table(
        {
            "packages/a/src/a/x.py": report(10, 5, 2, 1),
            "packages/a/src/a/y.py": report(10, 10, 0, 0),
            "packages/b/src/b/z.py": report(2, 0, 2, 0),
        }
    )
    assert [row.split() for row in rows[1:]] == [
        ["a", "20", "15", "2", "1", "72.7%"],
        ["b", "2", "0", "2", "0", "0.0%"],
        ["total", "22", "15", "4", "1", "61.5%"],
    ]
