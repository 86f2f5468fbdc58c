"""Stories of typed tables that every engine must play: batches, processes with another schema, deaths between commits.

`expected` types documents in plain words, without the code of the pipeline.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from dcpstream.errors import ConfigError, FieldError
from dcpstream_spark import Pipeline
from dcpstream_spark.tables.engine import TableEngine
from tests.kit.tables import (
    APP,
    Bench,
    Died,
    DyingEngine,
    Expected,
    Row,
    change,
    dropped,
    pipeline_of,
    rollback,
    table_of,
)

Fields = dict[str, Callable[[Any], Any]]
Typed = dict[Any, tuple[Any, ...]]


def to_int(value: Any) -> int:
    if type(value) is not int or not -(2**31) <= value < 2**31:
        raise ValueError(value)
    return value


def to_long(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(value)
    return value


def to_text(value: Any) -> str:
    """A text holds every JSON value."""
    return value if type(value) is str else json.dumps(value, separators=(",", ":"))


def to_ints(value: Any) -> list[int | None]:
    if type(value) is not list:
        raise ValueError(value)
    return [None if item is None else to_int(item) for item in value]


FIRST: Fields = {"name": to_text, "age": to_int, "tags": to_ints}
FIRST_SCHEMA = [("name", "string"), ("age", "int"), ("tags", "array<int>")]
SECOND: Fields = {**FIRST, "age": to_long, "zip": to_text}
SECOND_SCHEMA = [("age", "bigint"), ("zip", "string"), ("name", "string")]
THIRD: Fields = {"age": to_text, "zip": to_text}
THIRD_SCHEMA = [("age", "string"), ("zip", "string")]

STORY: list[list[Row]] = [
    [
        change("good", 1, '{"name": "n", "age": 1, "tags": [1, null], "zip": "z"}'),
        change("wrong", 2, '{"name": "w", "age": "x", "zip": 5}'),
        change("broken", 3, '{"name": '),
        change("bytes", 4, b"\xff\x00"),
        change("list", 5, '[{"name": "no"}]'),
        change("wide", 6, '{"age": 9223372036854775807, "tags": []}'),
        change("two", 7, '{"age": 1}{"age": 2}'),
        change("none", 8, '{"other": 1}', collection="c"),
    ],
    [
        change("good", 9, '{"age": []}'),
        change("wrong", 10, '{"name": "mended", "age": 2}'),
        change("broken", 11, None),
        change("new", 12, "null"),
        change("none", 13, "{}", collection="c"),
    ],
    [rollback(0, 9), change("bytes", 10, '{"zip": "1"}'), change("late", 11, '{"tags": [1, "x"], "age": 1}')],
    [dropped("c", 12), change("good", 13, '{"age": 5, "name": null}')],
]


def schema_of(fields: list[tuple[str, str]]) -> Any:
    """The StructType of names and types."""
    from pyspark.sql import types as t

    kinds = {
        "string": t.StringType(),
        "int": t.IntegerType(),
        "bigint": t.LongType(),
        "array<int>": t.ArrayType(t.IntegerType()),
    }
    return t.StructType([t.StructField(name, kinds[kind]) for name, kind in fields])


def expected(documents: dict[Any, tuple[int, bytes]], fields: Fields, mode: str) -> tuple[Typed, Typed]:
    """(document → seqno, value, fields and corrupt record; document → seqno, reason of those that do not fit)."""
    typed: Typed = {}
    rejects: Typed = {}
    for name, (seqno, value) in documents.items():
        reason, data = "", {}
        try:
            data = json.loads(value.decode())
            if not isinstance(data, dict):
                reason, data = "no JSON object", {}
        except UnicodeDecodeError:
            reason = "not UTF-8"
        except ValueError:
            reason = "no JSON object"
        bad = []
        columns: dict[str, Any] = dict.fromkeys(fields)
        for field, convert in fields.items():
            if data.get(field) is not None:
                try:
                    columns[field] = convert(data[field])
                except ValueError:
                    bad.append(field)
        if bad:
            reason = "not of the schema's type: " + ", ".join(bad)
        if reason:
            rejects[name] = (seqno, reason)
        if not reason or mode == "PERMISSIVE":
            typed[name] = (seqno, value, *columns.values(), value.decode("utf-8", "replace") if reason else None)
    return typed, rejects


def _rows(table: Any) -> list[Row]:
    arrow = table if isinstance(table, pa.Table) else table.toArrow()
    rows: list[Row] = arrow.to_pylist()
    return rows


def _typed(rows: list[Row], fields: Fields) -> Typed:
    found = {
        (row["scope"], row["collection"], row["key"]): (
            row["seqno"],
            bytes(row["value"]),
            *(row[field] for field in fields),
            row["_corrupt_record"],
        )
        for row in rows
    }
    assert len(found) == len(rows)
    return found


class TypedPlay:
    """A typed pipeline that applies batches, in processes that may die.

    Args:
        bench: the tables.
        mode: of the pipeline.
        fold_rows_min: of the pipeline.
        writes: writes that a process does before it dies; None for a process that lives.
    """

    def __init__(self, bench: Bench, mode: str, *, fold_rows_min: int, writes: int | None) -> None:
        self.bench = bench
        self.log = Expected()
        self.deaths = 0
        self._mode = mode
        self._fold_rows_min = fold_rows_min
        self._writes = writes
        self._next = 0
        self.use(FIRST, FIRST_SCHEMA)

    def use(self, fields: Fields, schema: list[tuple[str, str]] | str) -> None:
        """Go on in a process with another schema."""
        self.fields = fields
        self._schema = schema if isinstance(schema, str) else schema_of(schema)
        self.pipeline = self._start()

    def _start(self) -> Pipeline:
        engine: Any = self.bench.engine()
        if self._writes is not None:
            engine = DyingEngine(engine, self._writes)
        return self.made(engine, self._mode)

    def made(self, engine: TableEngine, mode: str) -> Pipeline:
        return pipeline_of(self.bench, fold_rows_min=self._fold_rows_min, engine=engine, schema=self._schema, mode=mode)

    def until_done(self, work: Callable[[], object]) -> None:
        """Do something, again in a new process after each death."""
        while True:
            try:
                work()
                return
            except Died:
                self.deaths += 1
                assert self.deaths < 100, "every process begins with the same write"
                self.pipeline = self._start()

    def apply(self, rows: list[Row]) -> None:
        number = self._next
        frame = self.bench.frame(table_of(rows))
        self.until_done(lambda: self.pipeline.apply_batch(APP, number, frame))
        self.log.apply(number, rows)
        self._next += 1

    def fold(self) -> None:
        # The name of the pipeline is looked up again after each death.
        self.until_done(lambda: (self.pipeline.fold(),))

    def rebuild(self) -> None:
        self.until_done(lambda: (self.pipeline.rebuild(),))

    def check(self, *, is_folded: bool) -> None:
        typed, rejects = expected(self.log.current, self.fields, self._mode)
        assert _typed(_rows(self.pipeline.live()), self.fields) == typed
        found = {
            (row["scope"], row["collection"], row["key"]): (row["seqno"], row["reason"])
            for row in _rows(self.pipeline.rejects())
        }
        assert found == rejects
        if is_folded:
            assert _typed(self.bench.rows("current"), self.fields) == typed


def play_story(bench: Bench, mode: str, *, fold_rows_min: int, writes: int | None) -> TypedPlay:
    """Play STORY, with a check after every batch."""
    play = TypedPlay(bench, mode, fold_rows_min=fold_rows_min, writes=writes)
    for rows in STORY:
        play.apply(rows)
        play.check(is_folded=fold_rows_min == 0 or any(row["op"] == "rollback" for row in rows))
    play.fold()
    play.check(is_folded=True)
    return play


def play_evolution(bench: Bench, mode: str, *, fold_rows_min: int, writes: int | None) -> TypedPlay:
    """Play STORY with another schema after each batch."""
    play = TypedPlay(bench, mode, fold_rows_min=fold_rows_min, writes=writes)
    play.apply(STORY[0])
    play.check(is_folded=fold_rows_min == 0)
    # New fields, a wider type, and a field that is left out: it stays.
    play.use(SECOND, SECOND_SCHEMA)
    play.apply(STORY[1])
    play.check(is_folded=fold_rows_min == 0)
    play.use(SECOND, "infer")
    play.apply(STORY[2])
    play.check(is_folded=True)
    # Another type needs a rebuild.
    play.use(THIRD, THIRD_SCHEMA)
    with pytest.raises(ConfigError, match="BIGINT, the type that current has"):
        play.pipeline.fold()
    play.rebuild()
    play.check(is_folded=True)
    play.apply(STORY[3])
    play.fold()
    play.check(is_folded=True)
    return play


def play_failfast(bench: Bench) -> None:
    """A document that does not fit ends the fold, and is in `live`; a corrected one lets the fold go on."""
    play = TypedPlay(bench, "FAILFAST", fold_rows_min=1000, writes=None)
    play.apply([change("good", 1, '{"age": 1}')])
    play.fold()
    play.apply([change("wrong", 2, '{"age": "x"}'), change("good", 3, '{"age": 3}')])
    for _ in range(2):
        with pytest.raises(
            FieldError, match=r"'wrong' of s._default \(vbucket 0, seqno 2\) .* type: age. Mode is FAILF"
        ):
            play.pipeline.fold()
        assert [row["age"] for row in bench.rows("current")] == [1]
        live = {row["key"]: (row["age"], row["_corrupt_record"]) for row in _rows(play.pipeline.live())}
        assert live == {"good": (3, None), "wrong": (None, '{"age": "x"}')}
    play.apply([change("wrong", 4, '{"age": 4}')])
    play.fold()
    assert sorted(row["age"] for row in bench.rows("current")) == [3, 4]


def play_interrupted(bench: Bench, writes: int) -> None:
    """A process dies with a rollback in its hands, after 1 write (append) or 2 (fold); void rows are in `changes`."""
    play = TypedPlay(bench, "DROPMALFORMED", fold_rows_min=1000, writes=None)
    for rows in STORY[:2]:
        play.apply(rows)
    dying: Any = DyingEngine(bench.engine(), writes)
    frame = bench.frame(table_of(STORY[2]))
    with pytest.raises(Died):
        play.made(dying, "DROPMALFORMED").apply_batch(APP, 2, frame)
    play.log.apply(2, STORY[2])
    play.use(FIRST, FIRST_SCHEMA)
    play.check(is_folded=writes == 2)
    # The next process comes with another schema, before Spark replays the batch.
    play.use(SECOND, SECOND_SCHEMA)
    play.pipeline.apply_batch(APP, 2, frame)
    play.check(is_folded=True)
