"""Small files of a directory on any file system that the session of Spark reaches: listed, read, made, replaced.

A local directory needs no Spark. Every other one is reached as Spark itself reaches it, through Hadoop's file systems.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dcpstream_spark.tables.location import child, local_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_IS_THERE = re.compile("FileAlreadyExists|AlreadyBeingCreated")
"""Part of the name of the Java exception for a file that another process made. A full disk raises others."""


class SmallFiles(Protocol):
    """Files of one directory.

    Attributes:
        is_exclusive: whether `create` succeeds for one caller only, if several call it at once.
    """

    is_exclusive: bool

    def names(self) -> list[str]:
        """The names of the files; none if there is no directory."""
        ...

    def read(self, name: str) -> bytes:
        """The content; empty if there is no such file."""
        ...

    def create(self, name: str, content: bytes) -> bool:
        """Make a file, and the directory; False if it is there already."""
        ...

    def replace(self, name: str, content: bytes) -> None:
        """Replace a file's content."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        ...


def small_files(spark: SparkSession, directory: str) -> SmallFiles:
    """The files of a directory, which may be a URL."""
    local = local_directory(directory)
    return LocalFiles(local) if local is not None else HadoopFiles(spark, directory)


class LocalFiles:
    """Files of a local directory."""

    is_exclusive = True

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def names(self) -> list[str]:
        """The names of the files."""
        try:
            return [one.name for one in self._directory.iterdir()]
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes:
        """The content."""
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return b""

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


class HadoopFiles:
    """Files of a directory of one of Hadoop's file systems.

    Not all of them make a new file exclusively: S3 does so only in new versions and if it is configured.
    """

    is_exclusive = False

    def __init__(self, spark: SparkSession, directory: str) -> None:
        self._jvm: Any = spark._jvm
        self._directory = directory
        conf = spark._jsparkSession.sessionState().newHadoopConf()
        self._system: Any = self._path("").getFileSystem(conf)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(child(self._directory, name) if name else self._directory)

    def names(self) -> list[str]:
        """The names of the files."""
        if not self._system.exists(self._path("")):
            return []
        return [str(one.getPath().getName()) for one in self._system.listStatus(self._path(""))]

    def read(self, name: str) -> bytes:
        """The content."""
        if not self._system.exists(self._path(name)):
            return b""
        stream = self._system.open(self._path(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")).encode()
        finally:
            stream.close()

    def create(self, name: str, content: bytes) -> bool:
        """Make a file."""
        if self._system.exists(self._path(name)):
            return False
        try:
            self._write(name, content, overwrites=False)
        except Exception as error:
            if _IS_THERE.search(str(error)):
                return False  # another process made it meanwhile
            raise
        return True

    def replace(self, name: str, content: bytes) -> None:
        """Replace a file's content; a reader may find it empty meanwhile."""
        self._write(name, content, overwrites=True)

    def _write(self, name: str, content: bytes, *, overwrites: bool) -> None:
        stream = self._system.create(self._path(name), overwrites)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()

    def delete(self, name: str) -> None:
        """Delete a file."""
        self._system.delete(self._path(name), False)
