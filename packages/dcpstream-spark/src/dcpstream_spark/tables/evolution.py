"""The typed columns of `current`: those that the user asks for and those that the table has, brought together.

The columns are a function of the values, so every change of them is one commit that writes the table again, from its
own values or from `changes`. A process that dies before the commit leaves the old columns, and the next start does the
same again. One that dies after it leaves the new ones, and the next start finds nothing to do. The table's own columns
are the only record.

A start never takes anything away from readers: a field that the new schema lacks stays and is filled on, and a type
never gets narrower. Only a rebuild makes the table with exactly the schema of the user.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from dcpstream.errors import ConfigError
from dcpstream_spark.tables.document_types import DocumentTypes, is_column_name
from dcpstream_spark.tables.engine import TableEngine
from dcpstream_spark.typed_columns.fitting import CORRUPT, Mode
from dcpstream_spark.typed_columns.kinds import arrow_type, ddl

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

INFER = "infer"
"""As a schema: the fields of a sample, or of the table if there is one."""

DECIMAL_DIGITS_MAX = 38

_WIDENING = (
    (pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    (pa.int8(), pa.int16(), pa.int32(), pa.float64()),
    (pa.float32(), pa.float64()),
)
"""Types that hold every value of those before them."""

Schema: TypeAlias = "str | StructType | None"

_log = logging.getLogger(__name__)


class Typing:
    """The typed columns of one pipeline.

    Args:
        schema: the fields, as DDL text or StructType; INFER; None for no typed columns.
        mode, prefix: as for `DocumentTypes`.
        sample: finds the fields of the documents.

    Raises:
        ConfigError: a field cannot be a column.
    """

    def __init__(self, schema: Schema, mode: Mode, prefix: str, sample: Callable[[], pa.Schema]) -> None:
        self._is_inferred = schema == INFER
        self._mode = mode
        self._prefix = prefix
        self._sample = sample
        self._given = None if schema is None or schema == INFER else self._types(fields_of(schema))
        self._is_ready = False
        # Given to every engine of the table once it is ready.
        self._used: DocumentTypes | None = None

    @property
    def is_typed(self) -> bool:
        """Whether typed columns are asked for."""
        return self._is_inferred or self._given is not None

    def prepare(self, engine: TableEngine, app: Callable[[], str | None]) -> None:
        """Create the tables that do not exist, and bring the columns of `current` to what is asked for.

        Args:
            engine: writes the tables.
            app: the writer of the tables; None if nobody has written yet.

        Raises:
            ConfigError: the table has columns that do not go together with what is asked for.
            FieldError: a document does not fit, and mode is FAILFAST.
        """
        if self._is_ready:
            engine.use(self._used)
            return
        columns = engine.typed_columns()
        if columns is None:
            self._use(engine, self._wanted())
            engine.create()
        else:
            held = self._held(columns)
            if held is not None and not self.is_typed:
                raise ConfigError("schema", None, f"a schema, because current has typed columns; {INFER!r} keeps them")
            wanted = held if self._is_inferred and held is not None else self._wanted()
            together = wanted if held is None or wanted is None else self._types(_together(held.fields, wanted.fields))
            self._use(engine, together)
            engine.create()
            if together is not None and _shown(together.columns) != _shown(columns):
                _log.warning("writing current again with the columns %s", _shown(together.columns))
                engine.retype(app(), from_changes=self._mode == "DROPMALFORMED")
        self._is_ready = True

    def look(self, engine: TableEngine) -> None:
        """Let the engine read the columns that the table has; nothing is written."""
        if self._is_ready:
            engine.use(self._used)
        else:
            columns = engine.typed_columns()
            engine.use(self._wanted() if columns is None and not self._is_inferred else self._held(columns))

    def rebuild(self, engine: TableEngine, app: Callable[[], str | None]) -> None:
        """Write `current` again from `changes`, with exactly the columns that are asked for."""
        self._use(engine, self._wanted())
        engine.create()
        engine.retype(app(), from_changes=True)
        self._is_ready = True

    def _use(self, engine: TableEngine, types: DocumentTypes | None) -> None:
        self._used = types
        engine.use(types)

    def _wanted(self) -> DocumentTypes | None:
        return self._types(self._sample()) if self._is_inferred else self._given

    def _held(self, columns: pa.Schema | None) -> DocumentTypes | None:
        """The types of a table with these columns."""
        typed = [] if columns is None else [one for one in columns if one.name != CORRUPT]
        if not typed:
            return None
        others = [one.name for one in typed if not one.name.startswith(self._prefix)]
        if others:
            raise ConfigError(
                "field_prefix", self._prefix, f"the prefix that current was made with: it has a column {others[0]}"
            )
        return self._types(pa.schema([one.with_name(one.name.removeprefix(self._prefix)) for one in typed]))

    def _types(self, fields: pa.Schema) -> DocumentTypes:
        return DocumentTypes(fields, self._mode, self._prefix)


def fields_of(schema: str | StructType) -> pa.Schema:
    """The fields of a schema of the user's.

    Args:
        schema: DDL text or StructType; `_corrupt_record` in it is left out.

    Raises:
        ConfigError: it cannot be read, or has a type that a field cannot have.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import DataType, StructType

    kind: DataType
    try:
        kind = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    except PySparkException as error:
        raise ConfigError("schema", schema, f"DDL of Spark, or {INFER!r} ({str(error).strip()})") from None
    assert isinstance(kind, StructType)
    found = []
    for one in kind.fields:
        if one.name == CORRUPT:
            continue
        if not one.nullable:
            raise ConfigError("schema", f"{one.name} NOT NULL", "nullable fields: a document may lack one")
        try:
            found.append(pa.field(one.name, arrow_type(one.dataType)))
        except ValueError as error:
            raise ConfigError(
                "schema",
                f"{one.name} {one.dataType.simpleString().upper()}",
                f"a type that a field can have ({error})",
            ) from None
    return pa.schema(found)


def columns_of(fields: pa.Schema) -> pa.Schema:
    """The fields that can be columns; the others are named in the log."""
    kept = {
        one.name: pruned for one in fields if is_column_name(one.name) and (pruned := _pruned(one.type)) is not None
    }
    left_out = [one.name for one in fields if kept.get(one.name) != one.type]
    if left_out:
        _log.warning("no columns for all or parts of these fields, because of their names: %s", ", ".join(left_out))
    return pa.schema([pa.field(name, kind) for name, kind in kept.items()])


def _pruned(kind: pa.DataType) -> pa.DataType | None:
    """The type without members whose names cannot be columns; None if nothing is left."""
    if pa.types.is_struct(kind):
        members = columns_of_struct(kind)
        return pa.struct(members) if members else None
    if pa.types.is_list(kind):
        inner = _pruned(kind.value_type)
        return None if inner is None else pa.list_(kind.value_field.with_type(inner))
    return kind


def columns_of_struct(kind: pa.StructType) -> list[pa.Field]:
    """The members of a struct that can be columns."""
    pruned = [(one, _pruned(one.type)) for one in kind if is_column_name(one.name)]
    return [one.with_type(inner) for one, inner in pruned if inner is not None]


def _together(held: pa.Schema, wanted: pa.Schema) -> pa.Schema:
    """The fields of a table and new ones: each with the wider of its two types."""
    names = [*held.names, *(name for name in wanted.names if name not in held.names)]
    fields = []
    for name in names:
        if name not in wanted.names or name not in held.names:
            fields.append((held if name in held.names else wanted).field(name))
            continue
        old, new = held.field(name).type, wanted.field(name).type
        wider = _wider(old, new)
        if wider is None:
            raise ConfigError(
                "schema",
                f"{name} {ddl(new)}".replace("`", ""),
                f"{ddl(old)}, the type that current has, or a wider one. `Pipeline.rebuild` writes current again with "
                "the schema as it is".replace("`", ""),
            )
        fields.append(pa.field(name, wider))
    return pa.schema(fields)


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds all values of both, if it is one of them or has the members of both."""
    if ddl(one) == ddl(other):
        return one
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        members = []
        for name in [
            *(field.name for field in one),
            *(field.name for field in other if one.get_field_index(field.name) < 0),
        ]:
            found = [kind.field(name).type for kind in (one, other) if kind.get_field_index(name) >= 0]
            wider = _wider(found[0], found[-1])
            if wider is None:
                return None
            members.append(pa.field(name, wider))
        return pa.struct(members)
    if pa.types.is_list(one) and pa.types.is_list(other):
        inner = _wider(one.value_type, other.value_type)
        return None if inner is None else pa.list_(pa.field("element", inner))
    if pa.types.is_map(one) and pa.types.is_map(other):
        inner = _wider(one.item_type, other.item_type)
        return None if inner is None else pa.map_(pa.string(), inner)
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        scale = max(one.scale, other.scale)
        digits = max(one.precision - one.scale, other.precision - other.scale) + scale
        return pa.decimal128(digits, scale) if digits <= DECIMAL_DIGITS_MAX else None
    for chain in _WIDENING:
        if one in chain and other in chain:
            return chain[max(chain.index(one), chain.index(other))]
    return None


def _shown(columns: pa.Schema) -> str:
    """The columns as DDL, by which two schemas can be compared."""
    return ", ".join(f"{one.name} {ddl(one.type)}" for one in columns).replace("`", "")
