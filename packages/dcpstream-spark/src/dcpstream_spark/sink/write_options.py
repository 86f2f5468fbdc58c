"""The options of the writer, checked once on the driver, before a connection is opened.

The options of the connection are those of the source. The others say which columns make a document, what is done with
it, and what happens to a row that the bucket refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dcpstream.client.kv.windows import WINDOW_BYTES, WINDOW_OPS
from dcpstream.client.kv.writes import WRITE_RETRY_TIMEOUT_S, Durability, WriteOp
from dcpstream.errors import ConfigError
from dcpstream_spark import options as shared
from dcpstream_spark.options import SECRETS, Option, SourceOptions

MAX_REJECTS_LISTED = 20
"""Default number of refused rows that a task describes in its commit message and in the log."""

MAX_RELATIVE_EXPIRY_S = 30 * 86_400
"""The bucket takes larger numbers for a time since 1970."""

MAX_WINDOW_OPS = 100_000
"""Largest window: its answers are buffered by the node and by us."""

MAX_DURABILITY_TIMEOUT_S = 65.0
"""The protocol has 16 bits for milliseconds."""

MAX_U32 = 0xFFFFFFFF

OPERATIONS = {
    "upsert": WriteOp.UPSERT,
    "insert": WriteOp.INSERT,
    "replace": WriteOp.REPLACE,
    "delete": WriteOp.DELETE,
}
DURABILITIES = {
    "none": Durability.NONE,
    "majority": Durability.MAJORITY,
    "majorityAndPersistToActive": Durability.MAJORITY_AND_PERSIST_TO_ACTIVE,
    "persistToMajority": Durability.PERSIST_TO_MAJORITY,
}

CONNECTION_OPTIONS = frozenset(
    (
        "connectionString",
        "username",
        *(f"{secret}{place}" for secret in SECRETS for place in ("", "File", "Function", "Variable")),
        "bucket",
        "trustCertificate",
        "certificate",
        "key",
        "tlsVerify",
        "tlsServerName",
        "saslMechanism",
        "network",
        "connectTimeout",
    )
)
"""Options that the writer has in common with the source."""

_FROM_SPARK = frozenset(("checkpointlocation", "queryname"))
"""Options that Spark adds to those of a streaming query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """All options of the writer, checked.

    Attributes:
        connection: the cluster, the user and the bucket.
        operation: for rows without an operation of their own.
        key_column, value_column: of a document; without a value column the other columns become a JSON object.
        key_encoding: "escaped" reads keys as the source writes keys that are not UTF-8.
        op_column, scope_column, collection_column, cas_column, expiry_column, flags_column: None for none.
        scope, collection: for rows without their own.
        expiry_s: of each document, in seconds from its write; 0 for none.
        flags: None for the flags that the SDKs use for the value's format.
        ignore_null_fields: whether a null is left out of a JSON object.
        durability, durability_timeout_s: of each write; 0 for the node's own time-out.
        max_in_flight, max_in_flight_bytes: size of a window; two are in flight for each task.
        retry_timeout_s: limit of repetitions.
        on_reject: what happens to a row that is refused for good.
        rejects_path: directory or URL for the refused rows.
        max_rejects_listed: refused rows that a task describes.
    """

    connection: SourceOptions
    operation: WriteOp = WriteOp.UPSERT
    key_column: str = "key"
    key_encoding: Literal["utf8", "escaped"] = "utf8"
    value_column: str | None = None
    op_column: str | None = None
    scope_column: str | None = None
    collection_column: str | None = None
    scope: str = "_default"
    collection: str = "_default"
    cas_column: str | None = None
    expiry_s: int = 0
    expiry_column: str | None = None
    flags: int | None = None
    flags_column: str | None = None
    ignore_null_fields: bool = True
    durability: Durability = Durability.NONE
    durability_timeout_s: float = 0.0
    max_in_flight: int = WINDOW_OPS
    max_in_flight_bytes: int = WINDOW_BYTES
    retry_timeout_s: float = WRITE_RETRY_TIMEOUT_S
    on_reject: Literal["fail", "skip", "path"] = "fail"
    rejects_path: str | None = None
    max_rejects_listed: int = MAX_REJECTS_LISTED

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """Check the user's options.

        Args:
            options: name → text; names in any case.

        Raises:
            ConfigError: an option is missing, unknown, or has an invalid value.
        """
        values: dict[str, Any] = {}
        connection: dict[str, str] = {}
        for name, text in options.items():
            lower = name.lower()
            if lower in _FROM_SPARK:
                continue
            if lower in _CONNECTION_BY_LOWER_NAME:
                connection[_CONNECTION_BY_LOWER_NAME[lower]] = text
                continue
            option = _BY_LOWER_NAME.get(lower)
            if option is None:
                raise _unknown(name, text)
            values[option.attribute] = option.read(option.name, text)
        scope, _, collection = values.get("collection", "").rpartition(".")
        if scope:
            if values.get("scope", scope) != scope:
                raise ConfigError(
                    "collection",
                    values["collection"],
                    f"a collection of the scope {values['scope']!r}, which the option scope names",
                )
            values.update(scope=scope, collection=collection)
        result = cls(connection=SourceOptions.parse(connection), **values)
        result._check()
        return result

    def _check(self) -> None:
        if (self.on_reject == "path") != (self.rejects_path is not None):
            message = (
                "onReject=path needs the directory of its files. Give rejectsPath"
                if self.rejects_path is None
                else "rejectsPath is given without onReject=path, which uses it. Give both, or neither"
            )
            raise ConfigError("rejectsPath", self.rejects_path, "a directory, of onReject=path", message=message)
        if self.cas_column is not None and self.op_column is None and self.operation is WriteOp.INSERT:
            message = "casColumn cannot be used with operation=insert, because a new document has no CAS"
            raise ConfigError("casColumn", self.cas_column, "no column, with operation=insert", message=message)
        for fixed, column, name in (
            (self.expiry_s, self.expiry_column, "expiry"),
            (self.flags, self.flags_column, "flags"),
        ):
            if fixed and column is not None:
                message = f"{name} and {name}Column are both given. Choose one of them"
                raise ConfigError(f"{name}Column", column, f"either {name} or {name}Column", message=message)
        if self.durability_timeout_s > MAX_DURABILITY_TIMEOUT_S:
            raise ConfigError("durabilityTimeout", f"{self.durability_timeout_s:g}", "at most 65 seconds")
        if self.durability_timeout_s and self.durability is Durability.NONE:
            message = "durabilityTimeout is given without durability, whose wait it bounds. Give both, or neither"
            raise ConfigError("durabilityTimeout", f"{self.durability_timeout_s:g}", "0", message=message)


def _unknown(name: str, text: str) -> ConfigError:
    known = [*(option.name for option in WRITE_OPTIONS), *sorted(CONNECTION_OPTIONS)]
    if any(name.lower() == option.name.lower() for option in shared.OPTIONS):
        message = f"{name} is an option for reading. Known for writing are {', '.join(known)}"
        return ConfigError(name, text, "an option for writing", message=message)
    return shared.unknown_option(name, text, known)


def _one_of(table: Mapping[str, Any]) -> Callable[[str, str], Any]:
    choice = shared._choice(*table)
    return lambda name, text: table[choice(name, text)]


def _expiry(name: str, text: str) -> int:
    value: int = shared._integer(0, MAX_U32)(name, text)
    if value > MAX_RELATIVE_EXPIRY_S:
        allowed = (
            f"at most {MAX_RELATIVE_EXPIRY_S} seconds (30 days); for a later time, use expiryColumn with a timestamp"
        )
        raise ConfigError(name, text, allowed)
    return value


def _flags(name: str, text: str) -> int | None:
    return None if text.strip().lower() == "auto" else shared._integer(0, MAX_U32)(name, text)


def _collection(name: str, text: str) -> str:
    parts = text.split(".")
    if len(parts) > 2 or not all(part.strip() for part in parts):
        raise ConfigError(name, text, 'a name like "scope.collection" or "collection"')
    return text


WRITE_OPTIONS = (
    Option("operation", _one_of(OPERATIONS), "upsert, insert, replace or delete", "upsert"),
    Option("keyColumn", shared._text, "column with the documents' keys: string or binary", "key"),
    Option(
        "keyEncoding",
        shared._choice("utf8", "escaped"),
        "escaped: keys are written as the source writes them, which escapes bytes that are not UTF-8",
        "utf8",
    ),
    Option(
        "valueColumn",
        shared._text,
        "column with the documents: binary or string as they are, struct, map or array as JSON",
        "a JSON object of the other columns",
    ),
    Option(
        "opColumn",
        shared._text,
        "column with the operation of each row: its name, or mutation, deletion, expiration as the source writes them",
    ),
    Option("scope", shared._text, "scope of the documents", "_default"),
    Option("collection", _collection, "`scope.collection`, or a collection of that scope", "_default"),
    Option("scopeColumn", shared._text, "column with the scope of each row"),
    Option("collectionColumn", shared._text, "column with the collection of each row"),
    Option("casColumn", shared._text, "column with the CAS that the document must have; 0 or null for any"),
    Option("expiry", _expiry, "seconds until the documents expire, at most 30 days", "never", attribute="expiry_s"),
    Option(
        "expiryColumn",
        shared._text,
        "column with the time of expiration: a timestamp, or a number as in the protocol; null for never",
    ),
    Option("flags", _flags, "flags of the documents: a number, or auto: as the SDKs set them", "auto"),
    Option("flagsColumn", shared._text, "column with the flags of each row"),
    Option(
        "ignoreNullFields",
        shared._flag,
        "true: a null column is left out of a JSON object; false: it becomes null",
        "true",
    ),
    Option(
        "durability", _one_of(DURABILITIES), "none, majority, majorityAndPersistToActive or persistToMajority", "none"
    ),
    Option(
        "durabilityTimeout",
        shared._seconds,
        "seconds after which a node gives up a durable write, at most 65; it is then repeated",
        "the node's",
    ),
    Option(
        "maxInFlight",
        shared._integer(1, MAX_WINDOW_OPS),
        "writes of a window; a task has two windows in flight",
        f"{WINDOW_OPS}",
    ),
    Option("maxInFlightBytes", shared._integer(1024, 2**30), "bytes of a window", f"{WINDOW_BYTES}"),
    Option(
        "retryTimeout",
        shared._seconds,
        "seconds for which writes are repeated while a node is busy, away, or has no memory",
        f"{WRITE_RETRY_TIMEOUT_S:g}",
    ),
    Option(
        "onReject",
        shared._choice("fail", "skip", "path"),
        "a row that is refused for good: fail the task, skip it, or write it to rejectsPath",
        "fail",
    ),
    Option("rejectsPath", shared._text, "directory or URL for refused rows, as JSON lines"),
    Option(
        "maxRejectsListed",
        shared._integer(0, 10_000),
        "refused rows that a task describes in the log",
        f"{MAX_REJECTS_LISTED}",
    ),
)
"""Every option of the writer but those of the connection, in the order of the documentation."""

_BY_LOWER_NAME = {option.name.lower(): option for option in WRITE_OPTIONS}
_CONNECTION_BY_LOWER_NAME = {name.lower(): name for name in CONNECTION_OPTIONS}
