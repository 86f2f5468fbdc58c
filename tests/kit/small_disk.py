"""A file system of a few megabytes that a test fills, for code that writes with libraries of several languages."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dcpstream.errors import StoreError
from tests.kit.tables import APP, Bench, Expected, assert_exact, change, pipeline_of, rollback, table_of

DISK_BYTES = 32 * 1024 * 1024


class SmallDisk:
    """A file system in memory that a ballast file fills to the last byte."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self, *_: object) -> None:
        """Leave no room."""
        block = b"\0" * 65536
        with self._ballast.open("ab", buffering=0) as file:
            while block:
                try:
                    file.write(block)
                except OSError:
                    block = block[: len(block) // 2]

    def free(self) -> None:
        """Make room again."""
        self._ballast.unlink()


@contextmanager
def small_disk(path: Path) -> Iterator[SmallDisk]:
    """A new file system at a path that does not exist yet. The test is skipped where none can be mounted."""
    path.mkdir()
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    options = f"size={DISK_BYTES},uid={os.getuid()},mode=700"
    try:
        subprocess.run(
            [*sudo, "mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no small file system can be mounted here, which needs root or sudo without a password: {error}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run([*sudo, "umount", "--lazy", str(path)], check=True)


def on_a_full(disk: SmallDisk, method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, called after the disk was filled."""

    def call(*args: Any, **kwargs: Any) -> Any:
        disk.fill()
        return method(*args, **kwargs)

    return call


def play_full_disk(
    disk: SmallDisk, bench: Bench, moment: str, *, folds_in_background: bool, is_restarted: bool
) -> None:
    """A batch that meets a full disk at a method of its engine, and is written when there is room again."""
    expected = Expected()
    batches = [[change(f"k{n}", 10 * batch + n, f"{batch}") for n in range(1, 8)] for batch in range(3)]
    if moment == "take_back":
        batches[1].insert(0, rollback(0, 5))
    pipeline = pipeline_of(bench, fold_rows_min=0, folds_in_background=folds_in_background)
    pipeline.apply_batch(APP, 0, bench.frame(table_of(batches[0])))
    pipeline.fold()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline.engine, moment, on_a_full(disk, getattr(pipeline.engine, moment)))
        with pytest.raises(StoreError, match=r"a disk is full.*No space left.*Make room"):  # noqa: PT012
            pipeline.apply_batch(APP, 1, bench.frame(table_of(batches[1])))
            pipeline.fold()
    disk.free()
    if is_restarted:
        pipeline.stop()
        pipeline = pipeline_of(bench, fold_rows_min=0, folds_in_background=folds_in_background)
    for batch, rows in enumerate(batches):
        expected.apply(batch, rows)
        if batch:
            pipeline.apply_batch(APP, batch, bench.frame(table_of(rows)))
    pipeline.fold()
    assert_exact(bench, pipeline, expected, is_folded=True)
    pipeline.stop()
