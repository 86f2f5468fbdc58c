"""The choice of the engine that writes a pipeline's tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dcpstream.errors import ConfigError
from dcpstream.pipelines.engine import TableEngine
from dcpstream.pipelines.location import local_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class TableTarget:
    """The tables to write.

    Attributes:
        path: the pipeline's directory: absolute, or a URL.
        value_format: "binary" or "string", the type of `value`.
        changes, current, live: names in a catalog; None for `changes` and `current` in the directory, and for no view.
    """

    path: str
    value_format: str
    changes: str | None = None
    current: str | None = None
    live: str | None = None

    @property
    def is_named(self) -> bool:
        """Whether a table or view has a name in a catalog."""
        return any(name is not None for name in (self.changes, self.current, self.live))


def choose_engine(engine: str, spark: SparkSession, target: TableTarget) -> TableEngine:
    """The engine by its name.

    Args:
        engine: "delta-rs", or "auto" for what suits the session and the target.
        spark: the session.
        target: the tables.

    Raises:
        ConfigError: an unknown engine, or one that cannot write the target.
    """
    if engine not in {"auto", "delta-rs"}:
        raise ConfigError("engine", engine, "'auto' or 'delta-rs'")
    from dcpstream.pipelines.delta_rs import DeltaRsEngine

    directory = local_directory(target.path)
    if directory is None:
        raise ConfigError("path", target.path, "the engine delta-rs writes local directories only, no URLs")
    if target.is_named:
        raise ConfigError("changes, current, live", "names", "the engine delta-rs does not know Spark's catalogs")
    return DeltaRsEngine(directory, target.value_format)
