"""Tables of Spark's catalog: `CREATE TABLE t USING dcp OPTIONS (…)`.

Theory of operation. When a table is defined, Spark gives the source the table's properties: `provider`, `owner` and
each option twice, the second time as `option.<name>`. When the table is read, Spark gives the source the table's schema
and no options at all. So the definition puts the options into the metadata of the schema's first column, and a reader
takes them from there. Options of the query itself win: `SELECT … FROM t WITH (…)`, or `spark.read.options(…).table(…)`.

Spark writes the metadata of columns into the files of tables that are made from such a table, so passwords must not be
in it. They are kept in a file that only the user can read, in the user's cache directory, by cluster, bucket and user.
On another machine, or for another user, the query gives the password with WITH.

With a list of columns in CREATE TABLE, Spark does not ask the source at all, so the options are lost. The option
`columns` does the same as such a list.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql.types import StructField, StructType

from dcpstream.errors import ConfigError
from dcpstream.runtime import replace_shared
from dcpstream_spark.java import user_cache_dir
from dcpstream_spark.options import SECRETS

METADATA = "dcp.options"
"""Key in the metadata of the first column."""

_PROVIDER = "provider"
_OPTION_PREFIX = "option."
_SECRETS = frozenset(name.lower() for name in SECRETS)
_ACCESS = "connectionstring"
_IDENTITY = ("connectionstring", "bucket", "username")
_NO_OPTIONS = (
    "connectionString is missing. Spark hands a table's OPTIONS to this source only if CREATE TABLE has no list of "
    "columns: leave it out and choose columns with the option columns, or give the options to the query, as in "
    "SELECT … FROM t WITH (connectionString = '…', …)"
)


def is_definition(options: Mapping[str, str]) -> bool:
    """Whether these are the properties of a table that is being defined."""
    return any(name.lower() == _PROVIDER for name in options)


def given_options(options: Mapping[str, str]) -> dict[str, str]:
    """The user's options, without what Spark adds when a table is defined."""
    if not is_definition(options):
        return dict(options)
    length = len(_OPTION_PREFIX)
    return {name[length:]: value for name, value in options.items() if name.lower().startswith(_OPTION_PREFIX)}


def has_access(options: Mapping[str, str]) -> bool:
    """Whether the options name a cluster; those of a query on a table may leave that to the table."""
    return any(name.lower() == _ACCESS for name in options)


def with_options(schema: StructType, options: Mapping[str, str], *, cache_dir: Path | None = None) -> StructType:
    """The schema with the options in it; their passwords are kept in a file."""
    lower = {name.lower(): value for name, value in options.items()}
    secrets = {name: value for name, value in lower.items() if name in _SECRETS}
    if secrets:
        path = _secrets_path(lower, cache_dir)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Another query may read it now, and another process may write it.
        replace_shared(path, json.dumps(secrets).encode())
    first, *others = schema.fields
    kept = json.dumps({name: value for name, value in options.items() if name.lower() not in _SECRETS}, sort_keys=True)
    marked = StructField(first.name, first.dataType, first.nullable, {**(first.metadata or {}), METADATA: kept})
    return StructType([marked, *others])


def options_of_table(schema: StructType, given: Mapping[str, str], *, cache_dir: Path | None = None) -> dict[str, str]:
    """The options of a table, and those of a query on it.

    Args:
        schema: of the table.
        given: by the query; they win.
        cache_dir: where passwords are kept.

    Raises:
        ConfigError: the schema has no options.
    """
    kept = next((field.metadata[METADATA] for field in schema.fields if METADATA in (field.metadata or {})), None)
    if kept is None:
        raise ConfigError("connectionString", None, "the address of the cluster", message=_NO_OPTIONS)
    options = {name.lower(): value for name, value in json.loads(kept).items()}
    options.update({name.lower(): value for name, value in given.items()})
    if not options.keys() >= _SECRETS:
        try:
            secrets = json.loads(_secrets_path(options, cache_dir).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            secrets = {}
        # passwordFile, say, takes the place of a password that another table of the same user was defined with.
        missing = [name for name in _SECRETS if not any(option.startswith(name) for option in options)]
        options |= {name: secrets[name] for name in missing if name in secrets}
    if not any(name.startswith(("password", "token", "certificate")) for name in options):
        raise ConfigError(
            "password",
            None,
            "the password of the table's user",
            message="this machine does not have the password of the table: it was defined by another user or on "
            "another machine. Give it to the query, as in SELECT … FROM t WITH (password = '…')",
        )
    return options


def _secrets_path(options: Mapping[str, str], cache_dir: Path | None) -> Path:
    identity = "\n".join(options.get(name, "") for name in _IDENTITY)
    digest = hashlib.sha256(identity.encode()).hexdigest()[:32]
    return (cache_dir or user_cache_dir(os.environ)) / "tables" / f"{digest}.json"
