"""The rule of `dcpstream_spark.typed_columns.fitting` as SQL, for queries that Spark runs on its executors.

`from_json` reads a JSON object as `dcpstream_spark.typed_columns.parsing` does. But it takes the first element of an
array for the object, ignores what follows the object, and reads bytes that are not UTF-8 with replacements. Such values
are refused before. For values that the node has marked as JSON there is no need to look behind the object.

The settings of a reader's session have no effect: options fix what `from_json` would take from them.
"""

# ruff: noqa: S608 - names come from the caller, types and fields are checked
from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from dcpstream_spark.tables.document_types import DocumentTypes
from dcpstream_spark.typed_columns.fitting import CORRUPT, NO_OBJECT, NOT_UTF8, OTHER_TYPES
from dcpstream_spark.typed_columns.kinds import ddl

IS_UNFIT = "_is_unfit"
"""Column of judged rows: the document does not fit."""

_WHITE_SPACE = "' \\t\\n\\r'"
_BAD = "_dcp_bad"
"""Field of a parsed document: its text, if it does not fit."""


def judged(rows: str, types: DocumentTypes, is_removed: str) -> str:
    """A query for rows with what is needed to type them: `_text`, `_document`, IS_UNFIT.

    Args:
        rows: name of the relation, which has `value`.
        types: of the documents.
        is_removed: name of its column that marks rows without a document.
    """
    return f"""
        SELECT *, _text IS NOT NULL AND (_document IS NULL OR _document.{_BAD} IS NOT NULL) AS {IS_UNFIT} FROM (
            SELECT *, {_parsed(f"CASE WHEN {_IS_OBJECT} THEN _text END", types.fields)} AS _document FROM (
                SELECT *, CASE WHEN NOT {is_removed} THEN CAST(value AS STRING) END AS _text FROM {rows}
            )
        )
    """


def typed_columns(types: DocumentTypes) -> str:
    """The typed columns, out of judged rows."""
    fields = [
        f"_document.`{one.name}` AS `{column}`" for one, column in zip(types.fields, types.columns.names, strict=False)
    ]
    return ", ".join([*fields, f"CASE WHEN {IS_UNFIT} THEN make_valid_utf8(_text) END AS {CORRUPT}"])


def is_left_out(types: DocumentTypes, is_removed: str) -> str:
    """The condition for judged rows that do not stay in `current`."""
    return f"{is_removed} OR {IS_UNFIT}" if types.mode == "DROPMALFORMED" else is_removed


def reason(types: DocumentTypes) -> str:
    """Why a document does not fit, out of judged rows for which IS_UNFIT is true."""
    one_by_one = ", ".join(
        f"CASE WHEN {_parsed('_text', [one])}.{_BAD} IS NOT NULL THEN '{one.name}' END" for one in types.fields
    )
    return f"""
        CASE WHEN NOT is_valid_utf8(_text) THEN '{NOT_UTF8}'
        WHEN _document IS NULL OR {_parsed("_text", [])}.{_BAD} IS NOT NULL THEN '{NO_OBJECT}'
        ELSE concat('{OTHER_TYPES.replace("'", chr(92) + "'")}', concat_ws(', ', {one_by_one})) END
    """


_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _BAD,
    "allowSingleQuotes": "false",
    "timeZone": "UTC",
}
_OPTIONS_SQL = "map(" + ", ".join(f"'{name}', '{value}'" for name, value in _OPTIONS.items()) + ")"

_JSON_BIT = 1
"""In `datatype`: the node has found that the value is JSON."""

_IS_ALONE = f"size(from_json(concat('[', _text, ']'), 'ARRAY<STRUCT<_none: INT>>', {_OPTIONS_SQL})) = 1"
_IS_OBJECT = (
    f"(is_valid_utf8(_text) AND startswith(trim(LEADING {_WHITE_SPACE} FROM _text), '{{') "
    f"AND (coalesce(datatype, 0) & {_JSON_BIT} = {_JSON_BIT} OR {_IS_ALONE}))"
)


def _parsed(text: str, fields: Iterable[pa.Field]) -> str:
    members = ", ".join([*(f"`{one.name}` {ddl(one.type)}" for one in fields), f"{_BAD} STRING"])
    return f"from_json({text}, '{members}', {_OPTIONS_SQL})"
