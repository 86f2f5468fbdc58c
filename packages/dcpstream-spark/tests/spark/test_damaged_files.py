"""A pipeline whose files were damaged: it says so, or its tables come out exact. They are never wrong in silence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dcpstream_spark import Pipeline
from tests.kit.spark import Bucket, current_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NAMES = [f"k{number}" for number in range(60)]


def _flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :] if data else b"\0"


DAMAGES: dict[str, Callable[[bytes], bytes] | None] = {
    "removed": None,
    "emptied": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "flipped": _flipped,
}


def ends_of(folder: Path) -> list[Path]:
    """The oldest and the newest file of each kind in each folder, by their relative paths."""
    groups: dict[tuple[Path, str], list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            groups.setdefault((path.parent, path.suffix), []).append(path)
    kept = {path for group in groups.values() for path in (group[0], group[-1])}
    return sorted(path.relative_to(folder) for path in kept)


def pipeline_of(spark: SparkSession, bucket: Bucket, tables: Path, engine: str) -> Pipeline:
    options = {**bucket.options, "maxOffsetsPerTrigger": "40"}
    return Pipeline(spark, tables, options, engine=engine, fold_rows_min=30)


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("engine", ["delta-rs", "delta"])
@pytest.mark.parametrize("part", ["checkpoint", "changes", "current"])
def test_a_damaged_file_is_reported_or_changes_nothing(
    spark: SparkSession, bucket: Bucket, tmp_path: Path, engine: str, part: str
) -> None:
    whole = tmp_path / "whole"
    for turn in range(2):
        bucket.set(**dict.fromkeys(NAMES, f"{turn}"))
        pipeline_of(spark, bucket, whole, engine).run(until="available")
    bucket.set(k1="new", more="new")
    bucket.delete("k2")
    expected = bucket.documents([*NAMES, "more"])
    wrong = []
    for path in ends_of(whole / part):
        for name, damage in DAMAGES.items():
            tables = tmp_path / "damaged"
            shutil.copytree(whole, tables)
            place = tables / part / path
            data = place.read_bytes()
            if damage is None:
                place.unlink()
            else:
                place.write_bytes(damage(data))
            try:
                again = pipeline_of(spark, bucket, tables, engine)
                again.run(until="available")
                outcome = "exact" if current_of(again) == expected else "WRONG"
            except Exception as error:  # noqa: BLE001 - whatever it is, it was told
                outcome = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:150]}"
            print(f"{engine} {part}/{path} {name}: {outcome}")
            if outcome == "WRONG":
                wrong.append(f"{path} {name}")
            shutil.rmtree(tables)
    assert not wrong
