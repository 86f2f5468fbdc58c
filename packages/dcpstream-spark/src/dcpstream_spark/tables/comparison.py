"""A table compared with its bucket, in parallel on Spark.

Theory of operation: the bucket is read by the source `dcp` as a batch, up to its seqnos at the planning of the read.
Rows of the bucket and rows of the table are brought together by scope, collection and key in one shuffle. The newest
change of a document counts; a deletion leaves nothing. Values cross the shuffle as their SHA-256, unless asked
otherwise. Documents are counted by kind, and the driver receives a bounded number of rows with counts and examples.

Compare a bucket and a table that rest, or whose table is up to date: documents that change during the comparison
differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa

from dcpstream.arrow import TRANSACTION_PREFIX
from dcpstream.errors import ConfigError
from dcpstream.model import Op
from dcpstream.model.collections import DEFAULT_NAME, SYSTEM_PREFIX
from dcpstream_spark.options import SourceOptions
from dcpstream_spark.tables.sessions import own_session, watched_tasks
from dcpstream_spark.tables.table_reading import TableKind, is_there, open_table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Kind: TypeAlias = Literal["equal", "different", "missing", "extra", "duplicate"]
Values: TypeAlias = Literal["hash", "bytes", "none"]
Also: TypeAlias = Literal["cas", "seqno"]

EXAMPLES = 10
"""Default number of examples of each kind of difference in a report."""

MAX_EXAMPLES = 1000
"""Largest number of examples of each kind; see `SLOTS_PER_EXAMPLE`."""

SLOTS_MIN, SLOTS_PER_EXAMPLE = 4096, 16
"""Differing documents fall into so many slots by the hash of their keys, and the first of each slot may become an
example. The driver receives at most one row for each kind and slot, and few slots hold two documents while there are
few differences."""

DIFFERENCES: tuple[Kind, ...] = ("different", "missing", "extra", "duplicate")


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The names of a table's columns.

    Attributes:
        key: of the documents' keys, as the source writes them.
        value: of the documents: binary or string.
        scope, collection: used if the table has both; else all rows are of one collection.
        cas, seqno: bigint with the bits of the unsigned number.
    """

    key: str = "key"
    value: str = "value"
    scope: str = "scope"
    collection: str = "collection"
    cas: str = "cas"
    seqno: str = "seqno"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableForm:
    """The form of a table that is compared.

    Attributes:
        kind: see `open_table`.
        columns: their names.
        collection: "scope.collection" of all rows, for a table without columns for them; default `_default._default`.
    """

    kind: TableKind = "auto"
    columns: TableColumns = TableColumns()
    collection: str | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """A document that differs.

    Attributes:
        kind: different, missing in the table, extra in the table, or more than once in the table.
        scope, collection, key: of the document.
        detail: what differs.
    """

    kind: Kind
    scope: str | None
    collection: str | None
    key: str | None
    detail: str


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    """The outcome of a comparison.

    Attributes:
        equal: documents that are the same in both.
        different: documents of both whose value (or CAS, or seqno) differs.
        missing: documents of the bucket that the table does not have.
        extra: documents of the table that the bucket does not have.
        duplicate: documents that the table has more than once.
        examples: some of each kind, in no particular order.
    """

    equal: int = 0
    different: int = 0
    missing: int = 0
    extra: int = 0
    duplicate: int = 0
    examples: tuple[Difference, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether there is no difference."""
        return not (self.different or self.missing or self.extra or self.duplicate)

    def to_json(self) -> str:
        """The report as a JSON object."""
        shown = [{name: getattr(one, name) for name in Difference.__slots__} for one in self.examples]
        counts = {name: getattr(self, name) for name in ("equal", *DIFFERENCES)}
        return json.dumps({"is_equal": self.is_equal, **counts, "examples": shown}, ensure_ascii=False)


def compare(
    spark: SparkSession,
    table: str | DataFrame | pa.Table,
    options: Mapping[str, str],
    *,
    form: TableForm | None = None,
    values: Values = "hash",
    also: Iterable[Also] = (),
    examples: int = EXAMPLES,
    on_progress: Callable[[int, int], None] | None = None,
) -> ComparisonReport:
    """Compare a table with a bucket.

    Args:
        spark: the session, with the source `dcp`.
        table: a name in a catalog, a path or URL, a DataFrame, or an Arrow table, for example `Pipeline.live()`.
        options: of the source `dcp`: the bucket, and `collections` to compare only some. The comparison chooses the
            columns and the start.
        form: what the table is, and its columns.
        values: "hash" compares the SHA-256 of values, "bytes" the values themselves, "none" only keys.
        also: further columns to compare.
        examples: of each kind in the report, at most `MAX_EXAMPLES`.
        on_progress: called with (tasks done, tasks) of the running stages, from a thread of its own.

    Raises:
        ConfigError: an option or a column cannot be used.
    """
    from pyspark.sql import functions as f

    if not 0 <= examples <= MAX_EXAMPLES:
        raise ConfigError("examples", examples, f"0 to {MAX_EXAMPLES}")
    form = form or TableForm()
    columns = form.columns
    compared = tuple(dict.fromkeys(also))
    if isinstance(table, str):
        spark = _fresh_for(spark, table)
        frame = open_table(spark, table, form.kind)
    else:
        frame = spark.createDataFrame(_without_empty_chunks(table)) if isinstance(table, pa.Table) else table
    has_names = columns.scope in frame.columns and columns.collection in frame.columns
    given = {name.lower(): text for name, text in options.items()}
    if not has_names:
        if "collections" in given:
            message = (
                "collections is given, and the table has no columns scope and collection. Leave it out, and name the "
                "table's collection with collection"
            )
            raise ConfigError("collections", given["collections"], "left out", message=message)
        given["collections"] = form.collection or "_default._default"
    elif form.collection is not None:
        message = "collection is given, and the table has columns scope and collection, which say it. Leave it out"
        raise ConfigError("collection", form.collection, "left out", message=message)
    ours = _table_rows(frame, columns, given.get("collections"), values, compared, has_names=has_names)
    if not SourceOptions.parse(given).system_documents:
        ours = ours.where(_is_of_users())
    theirs = _bucket_rows(spark, given, values)
    both = (
        theirs.unionByName(ours)
        .groupBy("scope", "collection", "key")
        .agg(f.max("bucket").alias("bucket"), f.max("row").alias("row"), f.sum("rows").alias("rows"))
    )
    judged = _judged(both, compared, has_values=values != "none")
    with watched_tasks(spark, on_progress):
        found = _tallied(judged, examples).collect()
    return report_of([row.asDict() for row in found], examples)


def _fresh_for(spark: SparkSession, table: str) -> SparkSession:
    """A session that has not seen the table yet: each remembers tables of its catalogs, also those behind a view."""
    if "/" in table:
        return spark
    own = own_session(spark)
    # Only the user's has its temporary views.
    return own if is_there(own, table) else spark


def _without_empty_chunks(table: pa.Table) -> pa.Table:
    """The same rows. Spark 4.2 drops all rows behind an empty chunk."""
    return pa.Table.from_batches([batch for batch in table.to_batches() if batch.num_rows], table.schema)


def _bucket_rows(spark: SparkSession, options: Mapping[str, str], values: Values) -> DataFrame:
    from pyspark.sql import functions as f

    wanted = ["op", "key", "scope", "collection", "seqno", "cas", *(["value"] if values != "none" else [])]
    chosen = {**options, "columns": ",".join(wanted), "valueformat": "binary", "startingoffsets": "earliest"}
    changes = spark.read.format("dcp").options(**chosen).load()
    return changes.where(f.col("key").isNotNull()).select(
        "scope",
        "collection",
        "key",
        f.struct(
            "seqno",
            (f.col("op") == Op.MUTATION.value).alias("is_there"),
            _mark(f.col("value") if values != "none" else None, values).alias("mark"),
            "cas",
        ).alias("bucket"),
        f.lit(None).cast("struct<mark:binary,cas:bigint,seqno:bigint>").alias("row"),
        f.lit(0).cast("bigint").alias("rows"),
    )


def _table_rows(
    frame: DataFrame,
    columns: TableColumns,
    collections: str | None,
    values: Values,
    also: tuple[Also, ...],
    *,
    has_names: bool,
) -> DataFrame:
    from pyspark.sql import functions as f

    types = dict(frame.dtypes)

    def column(name: str, option: str, allowed: tuple[str, ...]) -> Column:
        if name not in types:
            raise ConfigError(option, name, f"one of the table's columns: {', '.join(frame.columns)}")
        if types[name] not in allowed:
            raise ConfigError(option, name, f"a column of type {' or '.join(allowed)}; this one is {types[name]}")
        return f.col(f"`{name}`")

    key = column(columns.key, "key column", ("string", "binary")).cast("string")
    value = None if values == "none" else column(columns.value, "value column", ("binary", "string")).cast("binary")
    numbers = {name: f.lit(None).cast("bigint") for name in ("cas", "seqno")}
    for name in also:
        numbers[name] = column(getattr(columns, name), f"{name} column", ("bigint",))
    if has_names:
        scope_name, collection_name = f.col(f"`{columns.scope}`"), f.col(f"`{columns.collection}`")
        if collections is not None:
            frame = frame.where(_selected(collections, scope_name, collection_name))
    else:
        scope_text, _, name_text = (collections or "").rpartition(".")
        scope_name, collection_name = f.lit(scope_text or "_default"), f.lit(name_text)
    return frame.select(
        scope_name.alias("scope"),
        collection_name.alias("collection"),
        key.alias("key"),
        f.lit(None).cast("struct<seqno:bigint,is_there:boolean,mark:binary,cas:bigint>").alias("bucket"),
        f.struct(
            _mark(value, values).alias("mark"), numbers["cas"].alias("cas"), numbers["seqno"].alias("seqno")
        ).alias("row"),
        f.lit(1).cast("bigint").alias("rows"),
    )


def _is_of_users() -> Column:
    """The condition for the rows that the source reads without `systemDocuments`."""
    from pyspark.sql import functions as f

    is_system = f.col("key").startswith(TRANSACTION_PREFIX)
    for name in (f.col("scope"), f.col("collection")):
        is_system = is_system | (name.startswith(SYSTEM_PREFIX) & (name != DEFAULT_NAME))
    return ~f.coalesce(is_system, f.lit(False))


def _mark(value: Column | None, values: Values) -> Column:
    """The column that the comparison has for a value: the bytes, or their hash."""
    from pyspark.sql import functions as f

    if value is None:
        return f.lit(None).cast("binary")
    return value if values == "bytes" else f.unhex(f.sha2(value, 256))


def _selected(collections: str, scope: Column, name: Column) -> Column:
    """The table's rows of the collections that are compared."""
    from pyspark.sql import functions as f

    chosen = f.lit(False)
    for path in (part.strip() for part in collections.split(",")):
        wanted_scope, dot, wanted = path.rpartition(".")
        if not dot:
            raise ConfigError(
                "collections", path, f"scope.collection or scope.*: for a comparison, write _default.{path}"
            )
        fits = scope == wanted_scope
        chosen = chosen | (fits if wanted == "*" else fits & (name == wanted))
    return chosen


def _judged(both: DataFrame, also: tuple[Also, ...], *, has_values: bool) -> DataFrame:
    from pyspark.sql import functions as f

    checks = [("value", f.col("bucket.mark").eqNullSafe(f.col("row.mark")))] if has_values else []
    checks += [(name, f.col(f"bucket.{name}").eqNullSafe(f.col(f"row.{name}"))) for name in also]
    same = f.lit(True)
    for _, check in checks:
        same = same & check
    is_there = f.coalesce(f.col("bucket.is_there"), f.lit(False))
    kind = (
        f.when(f.col("rows") > 1, "duplicate")
        .when(is_there & (f.col("rows") == 1), f.when(same, "equal").otherwise("different"))
        .when(is_there, "missing")
        .when(f.col("rows") == 1, "extra")
    )
    what = f.concat_ws(", ", *[f.when(~check, name) for name, check in checks]) if checks else f.lit("")
    detail = (
        f.when(f.col("rows") > 1, f.concat(f.col("rows").cast("string"), f.lit(" rows")))
        .when(
            is_there & (f.col("rows") == 1), f.concat(what, f.lit(" at seqno "), f.col("bucket.seqno").cast("string"))
        )
        .when(is_there, f.concat(f.lit("seqno "), f.col("bucket.seqno").cast("string")))
        .when(f.col("bucket").isNotNull(), f.concat(f.lit("deleted at seqno "), f.col("bucket.seqno").cast("string")))
        .otherwise(f.lit("no change of it in the bucket"))
    )
    found = both.select(kind.alias("kind"), "scope", "collection", "key", detail.alias("detail"))
    # A document that was deleted, and that the table does not have, is no row of the comparison.
    return found.where(f.col("kind").isNotNull())


def _tallied(judged: DataFrame, examples: int) -> DataFrame:
    """Counts and examples: at most one row for each kind of difference and slot."""
    from pyspark.sql import functions as f

    is_equal = f.col("kind") == "equal"
    slots = max(SLOTS_MIN, SLOTS_PER_EXAMPLE * examples) if examples else 1
    slot = f.pmod(f.xxhash64("scope", "collection", "key"), f.lit(slots))
    example = f.struct("scope", "collection", "key", "detail")
    return judged.groupBy("kind", f.when(is_equal, f.lit(0)).otherwise(slot).alias("slot")).agg(
        f.count(f.lit(1)).alias("count"), f.min(f.when(~is_equal, example)).alias("example")
    )


def report_of(rows: Iterable[dict[str, Any]], examples: int) -> ComparisonReport:
    """The report of tallied rows: kind, count, example (scope, collection, key, detail)."""
    counts: dict[str, int] = {}
    shown: dict[str, list[Difference]] = {kind: [] for kind in DIFFERENCES}
    for row in rows:
        kind = row["kind"]
        counts[kind] = counts.get(kind, 0) + row["count"]
        if kind in shown and len(shown[kind]) < examples:
            shown[kind].append(Difference(kind, *row["example"]))
    return ComparisonReport(**counts, examples=tuple(one for some in shown.values() for one in some))
