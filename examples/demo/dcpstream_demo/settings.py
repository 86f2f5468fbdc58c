"""The settings of one run, and the paths of its files."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from dcpstream.errors import ConfigError

BUCKET = "flights"
USERNAME = "demo"

VBUCKETS = 64
"""Enough that every part works on many at once, few enough that rollbacks can be printed."""

RATE = 10_000
"""Changes per second: a million of them then last as long as a few starts of Spark and some dozen batches."""

STALL_TIMEOUT_S = 600.0
"""Longest wait without any progress. A process that has ended is noticed at once, so only one that hangs takes so long;
on two cores with a load of 20, the start of Spark and its first query alone take more than two minutes."""

FLUSH_INTERVAL_S = 12.0
"""Pause between the node's commits to disk. It is much longer than in real use: the demo needs changes that are in the
tables but not yet on the disk when the node is killed."""

_MARK = ".dcpstream-demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One run.

    Attributes:
        directory: everything is written below it; emptied at the start if an earlier run wrote it.
        flights: the input, None for the installed package.
        rows: so many flights, None for all.
        seed: decides when the kills come.
        rate: changes per second, 0 for as fast as it goes.
        kills: whether node and query are killed.
        keep: whether data, checkpoint and logs are kept.
    """

    directory: Path
    flights: Path | None = None
    rows: int | None = None
    seed: int = 2013
    rate: int = RATE
    vbuckets: int = VBUCKETS
    flush_interval_s: float = FLUSH_INTERVAL_S
    kills: bool = True
    keep: bool = False

    @property
    def node_data(self) -> Path:
        """The node's store."""
        return self.directory / "node"

    @property
    def ready_file(self) -> Path:
        """Written by the node when it serves."""
        return self.directory / "node.ready"

    @property
    def tables(self) -> Path:
        """Tables and checkpoint."""
        return self.directory / "tables"

    @property
    def spark_temp(self) -> Path:
        """Spark's scratch files."""
        return self.directory / "spark"

    @property
    def picture(self) -> Path:
        """The picture."""
        return self.directory / "demo.png"

    @property
    def report(self) -> Path:
        """The report."""
        return self.directory / "report.html"

    def log(self, name: str) -> Path:
        """A child's log."""
        return self.directory / f"{name}.log"

    def prepare(self) -> None:
        """Make the directory, and remove what an earlier run left in it.

        Raises:
            ConfigError: there are other files in it.
        """
        mark = self.directory / _MARK
        if self.directory.exists() and not mark.exists() and any(self.directory.iterdir()):
            raise ConfigError(
                "--directory", str(self.directory), "a new or empty directory, or one of an earlier demo: it is emptied"
            )
        if mark.exists():
            for entry in self.directory.iterdir():
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
        self.directory.mkdir(parents=True, exist_ok=True)
        mark.write_text("Written by `dcpstream demo`, which empties this directory when it is run again.\n", "utf-8")
        self.spark_temp.mkdir()

    def clean_up(self) -> None:
        """Remove everything but the tables, the picture and the report."""
        for path in (self.node_data, self.spark_temp):
            shutil.rmtree(path, ignore_errors=True)
        for name in ("node", "query"):
            self.log(name).unlink(missing_ok=True)
        self.ready_file.unlink(missing_ok=True)
