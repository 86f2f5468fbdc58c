"""Tables of delta-rs on a disk that becomes full. `tests/spark/test_full_disk.py` does the same with Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.small_disk import play_full_disk, small_disk
from tests.kit.tables import DeltaRsBench


@pytest.mark.parametrize(
    ("moment", "folds_in_background", "is_restarted"),
    [
        pytest.param(
            moment, background, not background, marks=() if background == (moment == "fold") else pytest.mark.slow
        )
        for moment in ("append", "fold", "take_back")
        for background in (False, True)
    ],
)
def test_a_batch_is_written_when_there_is_room_again(
    tmp_path: Path, moment: str, folds_in_background: bool, is_restarted: bool
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        bench = DeltaRsBench(disk.path)
        play_full_disk(disk, bench, moment, folds_in_background=folds_in_background, is_restarted=is_restarted)
