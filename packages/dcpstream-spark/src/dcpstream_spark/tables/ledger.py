"""The ledger of a pipeline that keeps several tables: which tables there are, and up to where they were folded.

Theory of operation. It is a file of the checkpoint, written again after each fold and before a table is made. The
tables stay the record of what they hold: each commit to a `current` carries the number of its newest batch. A table
without rows in a fold gets no commit, so its number is older than the fold. The ledger's number says that it holds all
batches up to there nevertheless.

- It is written after the commits of all tables. If the process is killed before, the ledger is too old, and the fold is
  done again for the tables that lack it.
- If it is lost, every table is folded again from its own number on, which changes nothing and takes longer.
- It has the number that each table had. A table with an older one was replaced by an older copy.

The file's name is a number. Earlier releases made a new file with each fold; the newest one that can be read counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dcpstream_spark.tables.rows import Place
from dcpstream_spark.tables.small_files import SmallFiles

DIRECTORY = "dcp-tables"
"""Directory of the checkpoint, next to Spark's own."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One table.

    Attributes:
        places: the collections whose rows it has.
        folded: the newest batch that a commit of it carries; None before the first.
        rows: documents in it.
    """

    places: tuple[Place, ...]
    folded: int | None = None
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Entries:
    """The content of the ledger.

    Attributes:
        app: the writer; None before the first fold.
        folded: the newest batch that all tables hold; None before the first fold.
        tables: by name.
    """

    app: str | None = None
    folded: int | None = None
    tables: Mapping[str, Entry] = field(default_factory=dict)

    def with_places(self, names: Mapping[Place, str]) -> Entries:
        """With these collections in these tables."""
        tables = dict(self.tables)
        for place, name in names.items():
            entry = tables.get(name, Entry(()))
            if place not in entry.places:
                tables[name] = replace(entry, places=tuple(sorted((*entry.places, place))))
        return replace(self, tables=tables)

    def to_bytes(self) -> bytes:
        """The file."""
        tables = {
            name: {"collections": [list(place) for place in one.places], "folded": one.folded, "rows": one.rows}
            for name, one in self.tables.items()
        }
        return json.dumps({"app": self.app, "folded": self.folded, "tables": tables}).encode()

    @classmethod
    def parse(cls, content: bytes) -> Entries | None:
        """The content of a file; None if the file is not whole."""
        try:
            data: dict[str, Any] = json.loads(content)
            tables = {
                name: Entry(
                    tuple((scope, collection) for scope, collection in one["collections"]), one["folded"], one["rows"]
                )
                for name, one in data["tables"].items()
            }
            return cls(data["app"], data["folded"], tables)
        except (ValueError, TypeError, KeyError):
            return None


class Ledger:
    """The files of one pipeline. One thread at a time saves.

    Args:
        files: gives those of the directory.
    """

    def __init__(self, files: Callable[[], SmallFiles]) -> None:
        self._files = files

    def read(self) -> Entries:
        """The newest content; none without a file."""
        contents = self._files().contents()
        for number in reversed(_numbers(contents)):
            found = Entries.parse(contents[str(number)])
            if found is not None:
                return found
        return Entries()

    def save(self, entries: Entries) -> None:
        """Replace the content."""
        files = self._files()
        numbers = _numbers(files.contents())
        if numbers:
            files.replace(str(numbers[-1]), entries.to_bytes())
        else:
            files.create("0", entries.to_bytes())


def _numbers(names: Iterable[str]) -> list[int]:
    return sorted(int(name) for name in names if name.isdecimal())
