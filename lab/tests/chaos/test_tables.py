"""The reader of Spark's file sink takes the files of each batch from its log."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lab.chaos.tables import rows_of_files


def test_files_by_batch_also_when_the_log_is_compacted(tmp_path: Path) -> None:
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    paths = []
    for number in range(3):
        file = tmp_path / f"part {number}.parquet"
        row = {"op": "mutation", "vbucket": 1, "seqno": number, "scope": "s", "collection": "c", "key": "k"}
        pq.write_table(pa.Table.from_pylist([{**row, "value": b"\xff", "xattrs": None}]), file)
        paths.append(json.dumps({"path": file.as_uri(), "size": 1}))
    (tmp_path / "part of a failed attempt.parquet").write_bytes(b"")
    (log / "8").write_text(f"v1\n{paths[0]}")
    (log / "9.compact").write_text(f"v1\n{paths[0]}\n{paths[1]}")
    (log / "10").write_text(f"v1\n{paths[2]}")
    (log / ".10.crc").write_bytes(b"")
    assert [(row.batch, row.seqno) for row in rows_of_files(tmp_path)] == [(8, 0), (9, 1), (10, 2)]
