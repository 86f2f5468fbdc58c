"""The file that describes several pipelines of one session, checked as a whole before anything starts.

```toml
path = "/data/lake"                  # each pipeline gets a directory of its name in it

[session]                            # optional: master, driver_memory, tables, settings
driver_memory = "4g"

[source]                             # options of the source for every pipeline
connectionString = "couchbase://127.0.0.1"
username = "reader"
passwordVariable = "LAKE_PASSWORD"   # the name of an environment variable, instead of password

[pipelines.orders]
bucket = "shop"
collections = ["sales.orders", "sales.returns"]
trigger = "10 seconds"
tables = "{scope}.{collection}"      # a table for each collection
```
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from dcpstream.errors import ConfigError
from dcpstream_spark.files import is_url
from dcpstream_spark.options import SourceOptions
from dcpstream_spark.tables.folding import FOLD_SHARE
from dcpstream_spark.tables.location import child
from dcpstream_spark.tables.pipeline import DEFAULT_TRIGGER, RETAIN_HOURS
from dcpstream_spark.tables.table_names import TABLE, TableNames
from dcpstream_spark.typed_columns.fitting import Mode

MAX_PIPELINES = 100
"""Pipelines of one session: each has a query with threads and Python processes of its own."""

_SESSION = {"master": str, "driver_memory": str, "tables": str, "settings": dict}
_PIPELINE: dict[str, type | tuple[type, ...]] = {
    "bucket": str,
    "collections": list,
    "path": str,
    "changes": str,
    "current": str,
    "live": str,
    "schema": (str, dict),
    "mode": str,
    "field_prefix": str,
    "rejects": str,
    "tables": (str, dict),
    "on_collection_dropped": str,
    "engine": str,
    "trigger": str,
    "fold_share": (float, int),
    "retain_hours": (float, int),
    "source": dict,
}
_NO_ARGUMENTS = frozenset(("path", "bucket", "collections", "source"))
"""Keys of a section that are no attributes of `PipelineConfig`, or not as they are."""
_TOP = {"path": str, "session": dict, "source": dict, "pipelines": dict}
_TRIGGER = re.compile(r"\s*\d+\s*(milliseconds?|seconds?|minutes?|hours?)\s*", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")

_Place = tuple[str, ...]


class LakeConfigError(ConfigError):
    """The file has mistakes; the message names all of them, one a line, with file and key."""

    def __init__(self, file: str, problems: list[str]) -> None:
        super().__init__("config", file, "; ".join(problems))
        self.problems = problems
        self.args = ("\n".join(problems),)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    """One pipeline.

    Attributes:
        name: of its section.
        path: directory or URL of its checkpoint and tables.
        options: of the source.
        changes, current, live, rejects: names in a catalog.
        tables, on_collection_dropped: as for `Pipeline`.
        schema, mode, field_prefix, engine, fold_share, retain_hours: as for `Pipeline`.
        trigger: pause between the starts of micro-batches.
    """

    name: str
    path: str
    options: Mapping[str, str] = field(repr=False)
    changes: str | None = None
    current: str | None = None
    live: str | None = None
    tables: str | Mapping[str, str] | None = None
    on_collection_dropped: Literal["empty", "keep"] = "empty"
    schema: str | Mapping[str, str] | None = None
    mode: Mode = "PERMISSIVE"
    field_prefix: str = ""
    rejects: str | None = None
    engine: str = "auto"
    trigger: str = DEFAULT_TRIGGER
    fold_share: float = FOLD_SHARE
    retain_hours: float = RETAIN_HOURS

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `Pipeline` by name, after the session, the path and the options."""
        others = {"name", "path", "options", "trigger"}
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name not in others}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """The Spark session; see `dcpstream_spark.build_session`."""

    master: str | None = None
    driver_memory: str | None = None
    tables: str = "auto"
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeConfig:
    """The whole file: a session and its pipelines."""

    session: SessionConfig
    pipelines: tuple[PipelineConfig, ...]


def read_lake_config(file: Path) -> LakeConfig:
    """Read and check a file.

    Args:
        file: in TOML; relative paths in it are relative to its directory.

    Raises:
        LakeConfigError: names every mistake.
        OSError: the file cannot be read.
    """
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise LakeConfigError(str(file), [f"{file}: {error}"]) from None
    return _Checker(file, content).check()


class _Checker:
    def __init__(self, file: Path, content: dict[str, Any]) -> None:
        self._file = file
        self._content = content
        self._problems: list[str] = []

    def check(self) -> LakeConfig:
        self._types((), self._content, _TOP)
        session = self._session(self._table("session"))
        common = self._source(("source",), self._table("source"))
        sections = self._table("pipelines")
        if not sections:
            self._problem(("pipelines",), "at least one section [pipelines.NAME] is needed")
        if len(sections) > MAX_PIPELINES:
            self._problem(("pipelines",), f"{len(sections)} pipelines are more than the {MAX_PIPELINES} of one session")
        found = [self._pipeline(name, section, common) for name, section in sections.items()]
        pipelines = tuple(one for one in found if one is not None)
        self._apart(pipelines)
        if self._problems:
            raise LakeConfigError(str(self._file), self._problems)
        return LakeConfig(session=session, pipelines=pipelines)

    def _table(self, name: str) -> dict[str, Any]:
        found = self._content.get(name, {})
        return found if isinstance(found, dict) else {}

    def _problem(self, place: _Place, message: str) -> None:
        self._problems.append(f"{self._file}: {'.'.join(place)}: {message}")

    def _types(self, place: _Place, table: Mapping[str, Any], known: Mapping[str, type | tuple[type, ...]]) -> None:
        for name, value in table.items():
            if name not in known:
                self._problem((*place, name), f"there is no such key; known are {', '.join(known)}")
            elif not isinstance(value, known[name]) or isinstance(value, bool):
                kind = known[name]
                wanted = " or ".join(_KIND_NAMES[one] for one in (kind if isinstance(kind, tuple) else (kind,)))
                self._problem((*place, name), f"{value!r} is not {wanted}")

    def _session(self, table: dict[str, Any]) -> SessionConfig:
        self._types(("session",), table, _SESSION)
        tables = table.get("tables", "auto")
        if tables not in {"auto", "delta", "iceberg", "none"}:
            self._problem(("session", "tables"), f"{tables!r} is not one of auto, delta, iceberg, none")
        settings = table.get("settings", {})
        texts = {name: _text(value) for name, value in settings.items()} if isinstance(settings, dict) else {}
        return SessionConfig(
            master=table.get("master"), driver_memory=table.get("driver_memory"), tables=tables, settings=texts
        )

    def _source(self, place: _Place, table: Mapping[str, Any]) -> dict[str, str]:
        """Options of the source as texts."""
        options: dict[str, str] = {}
        for name, value in table.items():
            if isinstance(value, dict):
                self._problem((*place, name), "an option is a text, a number, true, false, or a list of texts")
            else:
                options[name] = ",".join(map(_text, value)) if isinstance(value, list) else _text(value)
        return options

    def _pipeline(self, name: str, section: Any, common: Mapping[str, str]) -> PipelineConfig | None:
        place = ("pipelines", name)
        if not isinstance(section, dict):
            self._problem(place, "a section [pipelines.NAME] is needed")
            return None
        before = len(self._problems)
        if not _NAME.fullmatch(name):
            self._problem(place, "a name has letters, digits, - and _, because it becomes a directory")
        self._types(place, section, _PIPELINE)
        if len(self._problems) > before:
            return None
        options = {**common, **self._source((*place, "source"), section.get("source", {}))}
        if "bucket" in section:
            options["bucket"] = section["bucket"]
        if "collections" in section:
            options["collections"] = ",".join(map(str, section["collections"]))
        path = section.get("path") or (child(self._content["path"], name) if "path" in self._content else None)
        if path is None:
            self._problem(place, "a path is needed, here or for the whole file")
            return None
        trigger = section.get("trigger", DEFAULT_TRIGGER)
        if not _TRIGGER.fullmatch(trigger):
            self._problem((*place, "trigger"), f"{trigger!r} is not a time like 10 seconds or 5 minutes")
        fold_share = float(section.get("fold_share", FOLD_SHARE))
        if not 0 < fold_share <= 1:
            self._problem((*place, "fold_share"), f"{fold_share:g} is not above 0 and at most 1")
        retain_hours = float(section.get("retain_hours", RETAIN_HOURS))
        if retain_hours <= 0:
            self._problem((*place, "retain_hours"), f"{retain_hours:g} is not above 0")
        mode = section.get("mode", "PERMISSIVE")
        if mode not in get_args(Mode):
            self._problem((*place, "mode"), f"{mode!r} is not one of {', '.join(get_args(Mode))}")
        for key in ("mode", "field_prefix", "rejects"):
            if key in section and "schema" not in section:
                self._problem((*place, key), "it needs the key schema")
        dropped = section.get("on_collection_dropped", "empty")
        if dropped not in {"empty", "keep"}:
            self._problem((*place, "on_collection_dropped"), f"{dropped!r} is not one of empty, keep")
        self._tables(place, section, options)
        try:
            SourceOptions.parse(options)
        except ConfigError as error:
            self._problem(self._place_of(place, error.option), str(error))
        arguments = {key: value for key, value in section.items() if key not in _NO_ARGUMENTS}
        arguments |= {"fold_share": fold_share, "retain_hours": retain_hours}
        return PipelineConfig(name=name, path=self._absolute(path), options=options, **arguments)

    def _tables(self, place: _Place, section: Mapping[str, Any], options: Mapping[str, str]) -> None:
        """Check the keys of a pipeline with several tables."""
        rule, schema = section.get("tables"), section.get("schema")
        if isinstance(schema, dict):
            if rule is None:
                self._problem((*place, "schema"), "a table of schemas needs the key tables")
            for name, one in schema.items():
                if not isinstance(one, str):
                    self._problem((*place, "schema", name), f"{one!r} is not a text")
        if rule is None:
            return
        try:
            names = TableNames(rule)
        except ConfigError as error:
            self._problem((*place, "tables"), str(error))
            return
        if names.collections is not None and any(name.lower() == "collections" for name in options):
            self._problem((*place, "tables"), "it maps collections to tables, so the key collections must be left out")
        for key in ("current", "live", "rejects"):
            if key in section and TABLE not in section[key]:
                self._problem((*place, key), f"{section[key]!r} has no {TABLE}, and there are several tables")

    def _place_of(self, place: _Place, option: str) -> _Place:
        """The place at which an option of a pipeline's source was given; the pipeline's if it was not."""
        for candidate in (place, (*place, "source"), ("source",)):
            table: Any = self._content
            for part in candidate:
                table = table.get(part, {})
            for name in table:
                if name.lower() == option.lower():
                    return (*candidate, name)
        return place

    def _absolute(self, path: str) -> str:
        return path if is_url(path) else str((self._file.parent / path).absolute())

    def _apart(self, pipelines: tuple[PipelineConfig, ...]) -> None:
        """No two pipelines share a directory or a table."""
        owners: dict[str, str] = {}
        for one in pipelines:
            for key, value in (
                ("path", one.path),
                ("changes", one.changes),
                ("current", one.current),
                ("live", one.live),
                ("rejects", one.rejects),
            ):
                if value is None:
                    continue
                owner = owners.setdefault(value.rstrip("/"), one.name)
                if owner != one.name:
                    self._problem(("pipelines", one.name, key), f"{value} belongs to the pipeline {owner} already")


_KIND_NAMES = {str: "a text", dict: "a table", list: "a list", float: "a number", int: "a whole number"}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
