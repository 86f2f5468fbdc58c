"""Rows that the bucket refused for good: counted, described up to a bound, and written to a place of their own.

The place is a directory, or a URL that pyarrow can write. Each task writes one file of JSON lines there, under a name
that an attempt of the same task has again, so a repetition replaces the file. A file appears when it is complete.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from dcpstream_spark.sink.documents import Reject

SHOWN_KEY_BYTES = 100
"""Bytes of a key in a message."""


def describe(reject: Reject) -> str:
    """One line for a log or an error; the key stands between the marks that Couchbase's tools redact."""
    key = "no key" if reject.key is None else f"<ud>{reject.key[:SHOWN_KEY_BYTES]!r}</ud>"
    return f"{reject.op} of {key} in {reject.collection}: {reject.status}, {reject.reason or 'refused by the node'}"


def to_json(reject: Reject) -> bytes:
    """The line of a refused row: key, value, op, collection, status, reason.

    Bytes that are not UTF-8 are in `key_base64` and `value_base64` instead.
    """
    row: dict[str, Any] = {}
    for name, data in (("key", reject.key), ("value", reject.value)):
        try:
            row[name] = None if data is None else data.decode()
        except UnicodeDecodeError:
            assert data is not None
            row[f"{name}_base64"] = base64.b64encode(data).decode()
    row.update(op=reject.op, collection=reject.collection, status=reject.status, reason=reject.reason)
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


class RejectsFile:
    """The refused rows of one task in a directory.

    Args:
        path: directory or URL.
        name: of the file, the same in each attempt of the task.
        attempt: a text that differs between attempts.
    """

    def __init__(self, path: str, name: str, attempt: str) -> None:
        self._files, root = place(path)
        self._path = f"{root}/{name}"
        # Spark and Hive read no file whose name begins with an underscore.
        self._draft = f"{root}/_{name}.{attempt}"
        self._root = root
        self._stream: pa.NativeFile | None = None

    def add(self, rejects: Iterable[Reject]) -> None:
        """Append rows."""
        for reject in rejects:
            if self._stream is None:
                self._files.create_dir(self._root, recursive=True)
                self._stream = self._files.open_output_stream(self._draft)
            self._stream.write(to_json(reject))

    def finish(self) -> None:
        """Make the file appear; without a row, remove that of an earlier attempt."""
        if self._stream is not None:
            self._stream.close()
            self._files.move(self._draft, self._path)
        elif self._files.get_file_info(self._path).type is not fs.FileType.NotFound:
            self._files.delete_file(self._path)

    def abandon(self) -> None:
        """Remove what an attempt that failed has written."""
        if self._stream is not None:
            self._stream.close()
            self._files.delete_file(self._draft)


def place(path: str) -> tuple[fs.FileSystem, str]:
    """The file system of a directory or URL, and the path in it."""
    uri = path if "://" in path or path.startswith("file:") else Path(path).absolute().as_uri()
    found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(uri)
    return found[0], found[1].rstrip("/")
