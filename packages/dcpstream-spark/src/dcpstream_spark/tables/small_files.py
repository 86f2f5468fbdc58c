"""Small files of a directory on any file system that the session of Spark reaches: listed, read, made, replaced.

A local directory needs no Spark. Every other one is read and written by Spark itself, with DataFrames.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dcpstream_spark.tables.location import child, condition_of, within_reach

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SmallFiles(Protocol):
    """Files of one directory.

    Attributes:
        is_exclusive: whether `create` succeeds for one caller only, if several call it at once.
    """

    is_exclusive: bool

    def contents(self) -> dict[str, bytes]:
        """Name → content of all files, which are few; none if there is no directory."""
        ...

    def create(self, name: str, content: bytes) -> bool:
        """Make a file, and the directory; False if it is there already."""
        ...

    def replace(self, name: str, content: bytes) -> None:
        """Replace a file's content, whole or not at all."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        ...


def small_files(spark: SparkSession, directory: str) -> SmallFiles:
    """The files of a directory, which may be a URL."""
    local = within_reach(spark, directory)
    return LocalFiles(local) if local is not None else SparkFiles(spark, directory)


class LocalFiles:
    """Files of a local directory."""

    is_exclusive = True

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def contents(self) -> dict[str, bytes]:
        """Name → content of all files."""
        found = {}
        with contextlib.suppress(FileNotFoundError):
            for one in self._directory.iterdir():
                with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                    found[one.name] = one.read_bytes()
        return found

    def create(self, name: str, content: bytes) -> bool:
        """Make a file."""
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / name
        try:
            file = path.open("xb")
        except FileExistsError:
            return False
        try:
            with file:
                file.write(content)
        except OSError:
            path.unlink()  # on a full disk
            raise
        return True

    def replace(self, name: str, content: bytes) -> None:
        """Replace a file's content, whole or not at all."""
        new = self._directory / f".{name}.new"
        new.write_bytes(content)
        new.replace(self._directory / name)

    def delete(self, name: str) -> None:
        """Delete a file."""
        (self._directory / name).unlink(missing_ok=True)


class SparkFiles:
    """Files of a directory that Spark reads and writes, on any file system of the session.

    Spark writes directories, and neither replaces a file in one step nor deletes one. So a file NAME is the directory
    NAME with the places `0` and `1`. Each content has a number that is one above the one before, and is written to the
    place of the other parity. The highest number counts. Whoever reads during a replacement finds the content before
    it, whole. A file that was deleted leaves an empty one.

    Two writers may make the same file; all readers then find the same one of the two contents.
    """

    is_exclusive = False

    def __init__(self, spark: SparkSession, directory: str) -> None:
        self._spark = spark
        self._directory = directory
        # Name → number of its content, as far as it was seen.
        self._numbers: dict[str, int] = {}

    def contents(self) -> dict[str, bytes]:
        """Name → content of all files."""
        found = self._found()
        self._numbers = {name: number for name, (number, _) in found.items()}
        return {name: content for name, (_, content) in found.items()}

    def create(self, name: str, content: bytes) -> bool:
        """Make a file."""
        from pyspark.errors import AnalysisException

        try:
            self._write(name, 0, content, "error")
        except AnalysisException as error:
            if condition_of(error) == "PATH_ALREADY_EXISTS":
                return False  # another process made it meanwhile
            raise
        return True

    def replace(self, name: str, content: bytes) -> None:
        """Replace a file's content, whole or not at all."""
        if name not in self._numbers:
            self.contents()
        self._write(name, self._numbers.get(name, -1) + 1, content, "overwrite")

    def delete(self, name: str) -> None:
        """Delete a file."""
        self._rows(0, "").write.mode("overwrite").option(*_NO_MARK).text(child(self._directory, name))
        self._numbers.pop(name, None)

    def _found(self) -> dict[str, tuple[int, bytes]]:
        """Name → (number, content) of all files; they are few and small."""
        from pyspark.errors import AnalysisException

        reader = self._spark.read.format("binaryFile").option("recursiveFileLookup", "true")
        try:
            rows = reader.option("ignoreMissingFiles", "true").load(self._directory).select("path", "content").collect()
        except AnalysisException as error:
            if condition_of(error) == "PATH_NOT_FOUND":
                return {}
            raise
        found: dict[str, tuple[int, bytes]] = {}
        for row in rows:
            content = bytes(row["content"])
            if not content:
                continue
            parts = row["path"].split("/")
            if parts[-1].startswith("part-"):
                number, _, text = content.decode().removesuffix("\n").partition(" ")
                name, one = parts[-3], (int(number), text.encode())
            else:
                # Written by an earlier release.
                name, one = parts[-1], (-1, content)
            found[name] = max(one, found.get(name, one))
        return found

    def _write(self, name: str, number: int, content: bytes, mode: str) -> None:
        place = child(self._directory, f"{name}/{number % 2}")
        self._rows(1, f"{number} {content.decode()}").write.mode(mode).option(*_NO_MARK).text(place)
        self._numbers[name] = number

    def _rows(self, count: int, text: str) -> DataFrame:
        from pyspark.sql import functions as f

        return self._spark.range(0, count, 1, 1).select(f.lit(text).alias("value"))


_NO_MARK = ("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
"""Option of a write: no file that says that the write has ended. Its files appear whole."""
