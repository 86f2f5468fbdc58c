"""The options that decide which rows the tables of a pipeline have, and in which form: they must stay the same.

Rows that the option `where` leaves out are read and dropped, so another choice would not bring them, and rows of the
old choice would stay. Values of two forms do not fit into one column. The checkpoint has a file with these options.

Comparisons of vbuckets may change, because a vbucket that is left out is not read; so may the collections that `where`
names, because the source reads those that are new, and takes back the others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from dcpstream.arrow import Choice, Comparison
from dcpstream.errors import ConfigError
from dcpstream_spark.options import SourceOptions
from dcpstream_spark.tables.small_files import SmallFiles
from dcpstream_spark.where import named_collections, parse_where

DIRECTORY = "dcp-rows"
"""Directory of the checkpoint, next to Spark's own."""

_FILE = "options"

_COMPARED_BY_MEANING = frozenset(("where", "collections"))


def keep_rows(files: SmallFiles, options: Mapping[str, str], path: str, *, is_new: bool) -> None:
    """Write down the options of a new pipeline, and refuse others afterwards.

    Args:
        files: of the checkpoint's `DIRECTORY`.
        options: of the source.
        path: of the pipeline, for messages.
        is_new: whether nothing was read yet.

    Raises:
        ConfigError: the tables were made with another where, systemDocuments or valueFormat.
    """
    given = {name.lower(): text for name, text in options.items()}
    source = SourceOptions.parse(options)
    now = {
        "where": given.get("where"),
        "collections": given.get("collections"),
        "systemDocuments": "true" if source.system_documents else "false",
        "valueFormat": source.value_format,
    }
    old = files.contents().get(_FILE)
    if old is None:
        files.create(_FILE, json.dumps(now).encode())
        return
    before: dict[str, str | None] = json.loads(old)
    different = [name for name in now if name not in _COMPARED_BY_MEANING and now[name] != before[name]]
    if _left_out(now) != _left_out(before):
        different.insert(0, "where")
    if different and not is_new:
        name = different[0]
        message = (
            f"{path}: the tables were made with {name} = {before[name] or 'nothing'}, and {now[name] or 'nothing'} is "
            f"given: they would hold some rows of both. Give {name} as before, or remove the checkpoint and the tables "
            "to read the bucket from the beginning"
        )
        raise ConfigError(name, now[name], before[name] or "left out", message=message)
    if now != before:
        files.replace(_FILE, json.dumps(now).encode())


def _left_out(options: Mapping[str, str | None]) -> frozenset[Comparison | Choice]:
    """The conditions that drop rows which were read."""
    if options["where"] is None:
        return frozenset()
    row_filter = parse_where(options["where"])
    not_read = {"vbucket"}
    if options["collections"] is None and named_collections(row_filter) is not None:
        not_read |= {"scope", "collection"}
    return frozenset((*(one for one in row_filter.comparisons if one.column not in not_read), *row_filter.choices))
