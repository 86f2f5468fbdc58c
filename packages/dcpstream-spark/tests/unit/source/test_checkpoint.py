"""The newest offset of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dcpstream.errors import StoreError
from dcpstream.model import StreamOffset
from dcpstream_spark.source.checkpoint import NOTHING_LOGGED, newest_logged
from dcpstream_spark.source.offsets import SourceOffset


def offset(bucket: str, seqno: int) -> dict[str, Any]:
    positions = {0: StreamOffset(7, seqno, seqno, seqno)}
    data: dict[str, Any] = SourceOffset.starting_at(bucket, None, positions).to_json()
    return data


def log(path: Path, batch: str, *sources: Any, version: str = "v1") -> None:
    (path / "offsets").mkdir(exist_ok=True)
    texts = [source if isinstance(source, str) else json.dumps(source) for source in sources]
    (path / "offsets" / batch).write_text("\n".join([version, '{"batchWatermarkMs":0}', *texts]))


def test_the_newest_batch_counts(tmp_path: Path) -> None:
    assert newest_logged(str(tmp_path), "b") is NOTHING_LOGGED
    log(tmp_path, ".0.crc")
    assert newest_logged(str(tmp_path), "b") is NOTHING_LOGGED
    for batch, seqno in (("9", 9), ("10", 10), (".11.uuid.tmp", 11)):
        log(tmp_path, batch, offset("b", seqno))
    assert newest_logged(str(tmp_path), "b") == offset("b", 10)


@pytest.mark.parametrize(
    ("sources", "is_found"),
    [
        ([offset("b", 1)], True),
        (["-", '{"logOffset":3}', "7", "[]", offset("other", 3), offset("b", 1)], True),
        ([offset("b", 1), offset("b", 2)], False),
        (["-"], False),
        ([], False),
    ],
)
def test_other_sources_of_the_query_are_left_alone(tmp_path: Path, sources: list[Any], is_found: bool) -> None:
    log(tmp_path, "0", *sources)
    assert newest_logged(str(tmp_path), "b") == (offset("b", 1) if is_found else None)


def test_another_layout_says_nothing(tmp_path: Path) -> None:
    log(tmp_path, "0", offset("b", 1), version="v2")
    assert newest_logged(str(tmp_path), "b") is None


def test_a_checkpoint_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_bytes(b"v1")
    with pytest.raises(StoreError, match="newest offsets"):
        newest_logged(str(tmp_path), "b")
