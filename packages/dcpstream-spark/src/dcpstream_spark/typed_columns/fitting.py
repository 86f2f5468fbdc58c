"""The rule of typed columns: which documents fit a schema, and what becomes of those that do not.

The rule:

- A document *fits* if its value is one JSON object in UTF-8, and every field of the schema in it is null or of the
  field's type. Without fields and with the value as a VARIANT, any JSON fits.
- A field that is missing or does not fit is null. The other fields of the document are kept. What is no object has
  only nulls.
- The column of corrupt records holds a document that does not fit, else null: its exact bytes as BINARY. As STRING it
  has U+FFFD in place of bytes that are not UTF-8, as Spark shows such a text.
- With PERMISSIVE every row stays. With DROPMALFORMED a row whose document does not fit is left out. With FAILFAST such
  a document is an error, which names the first one by vbucket and seqno.
- Rows without a document, such as deletions and control rows, have no fields, and stay in every mode.

`dcpstream_spark.tables.document_sql` is the rule as SQL, for queries that Spark runs on its executors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dcpstream.errors import ConfigError, FieldError
from dcpstream_spark.typed_columns.parsing import DocumentParser, Documents, load_json, object_of

Mode: TypeAlias = Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]

CORRUPT = "_corrupt_record"
"""Name of the column of corrupt records; Spark's own default."""

NOT_UTF8 = "not UTF-8"
NO_OBJECT = "no JSON object"
OTHER_TYPES = "not of the schema's type: "
"""Reasons; names of fields follow the last."""

ERROR_COLUMNS = ("key", "scope", "collection", "vbucket", "seqno", "value")
"""Columns of a row that name its document in an error."""

SHOWN_CHARACTERS = 100
"""Most characters of a document in an error."""

VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
    ]
)
"""The type of a VARIANT in batches for Spark."""


class DocumentColumns:
    """The rule for one schema and mode.

    Args:
        fields: name and type of each field; see `kinds.arrow_type`.
        mode: what becomes of a document that does not fit.

    Raises:
        ConfigError: an unknown mode.
    """

    def __init__(self, fields: pa.Schema, mode: Mode) -> None:
        if mode not in get_args(Mode):
            raise ConfigError("mode", mode, "PERMISSIVE, DROPMALFORMED or FAILFAST")
        self.fields = fields
        self.mode = mode
        self._parser = DocumentParser(fields)

    def parse(self, documents: pa.BinaryArray) -> Documents:
        """The fields of documents, and which documents do not fit. A null is no document."""
        return self._parser.parse(documents)

    def stay(self, is_unfit: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Whether each row stays."""
        return ~is_unfit if self.mode == "DROPMALFORMED" else np.ones(len(is_unfit), np.bool_)

    def check(self, rows: pa.Table | pa.RecordBatch, is_unfit: npt.NDArray[np.bool_]) -> None:
        """Raise the error of FAILFAST if there is one.

        Args:
            rows: with ERROR_COLUMNS if mode is FAILFAST.
            is_unfit: bool[rows].

        Raises:
            FieldError: a document does not fit, and mode is FAILFAST.
        """
        if self.mode == "FAILFAST" and is_unfit.any():
            bad = rows.filter(pa.array(is_unfit)).sort_by([("vbucket", "ascending"), ("seqno", "ascending")])
            raise self.error(bad.slice(0, 1).to_pylist()[0])

    def error(self, row: Mapping[str, Any]) -> FieldError:
        """The error about a document that does not fit.

        Args:
            row: with the columns ERROR_COLUMNS. The scope is null for a collection that has no name yet.
        """
        place = "" if row["scope"] is None else f" of {row['scope']}.{row['collection']}"
        value = _as_bytes(row["value"])
        text = value.decode("utf-8", "backslashreplace")
        shown = text[:SHOWN_CHARACTERS] + ("…" if len(text) > SHOWN_CHARACTERS else "")
        return FieldError(
            f"document {row['key']!r}{place} (vbucket {row['vbucket']}, seqno {row['seqno']}) does not fit the schema: "
            f"{self.reason(value) or 'no JSON'}. Mode is FAILFAST. Correct the document or the schema, or choose "
            f"mode=PERMISSIVE: such a document then has nulls, and {CORRUPT} holds it. The document is: {shown}"
        )

    def reason(self, value: str | bytes) -> str:
        """Why a document does not fit; empty if it fits."""
        value = _as_bytes(value)
        try:
            value.decode()
        except UnicodeDecodeError:
            return NOT_UTF8
        if object_of(value) is None:
            return NO_OBJECT
        bad = [one.name for one in self.fields if DocumentParser(pa.schema([one])).parse_one(value)[1]]
        return OTHER_TYPES + ", ".join(bad) if bad else ""


def corrupt_records(values: pa.BinaryArray, is_unfit: npt.NDArray[np.bool_], kind: pa.DataType) -> pa.Array:
    """The column of corrupt records.

    Args:
        values: of all rows.
        is_unfit: bool[values].
        kind: string or binary.
    """
    bad = pc.if_else(pa.array(is_unfit), values, pa.scalar(None, pa.binary()))
    if kind == pa.binary():
        return bad
    try:
        return bad.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode("utf-8", "replace") for value in bad.to_pylist()]
        return pa.array(texts, pa.string())


def variants(values: pa.BinaryArray) -> tuple[pa.StructArray, npt.NDArray[np.bool_]]:
    """(VARIANT of each value, null where it is no JSON; where it is no JSON)."""
    from pyspark.sql.variant_utils import VariantUtils

    rows: list[dict[str, Any] | None] = []
    is_unfit = np.zeros(len(values), np.bool_)
    for number, text in enumerate(values.to_pylist()):
        row = None
        if text is not None:
            try:
                load_json(text, is_strict=True)
                value, metadata = VariantUtils.parse_json(text.decode())
                row = {"value": value, "metadata": metadata}
            except (ValueError, ArithmeticError):
                is_unfit[number] = True
        rows.append(row)
    valid = pa.array([row is not None for row in rows])
    parts = [pa.array([b"" if row is None else row[name] for row in rows], pa.binary()) for name in VARIANT.names]
    return pa.StructArray.from_arrays(parts, fields=list(VARIANT), mask=pc.invert(valid)), is_unfit


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
