"""The options of the data source, checked once, before a connection is opened.

Spark passes options as texts with names in any case. The rest of the package uses `SourceOptions`.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, get_args

from dcpstream.arrow import CHANGE_SCHEMA, FULL_SCHEMA, RowFilter
from dcpstream.client.blocking.bucket_reader import IDLE_TIMEOUT_S
from dcpstream.client.machine.reader.batches import ValueFormat
from dcpstream.client.machine.rollback_policy import OnPurgeGap, RewindTo
from dcpstream.client.settings.client_options import (
    BUFFER_BYTES,
    CONNECT_TIMEOUT_S,
    MAX_BUFFER_BYTES,
    MIN_BUFFER_BYTES,
    ClientOptions,
)
from dcpstream.client.settings.connection_string import parse as parse_connection_string
from dcpstream.client.settings.options import MAX_BATCH_ROWS, access
from dcpstream.client.settings.secrets import Secret, SecretFile, SecretFunction
from dcpstream.client.settings.tls import TlsOptions
from dcpstream.client.stream_options import StreamOptions
from dcpstream.errors import ConfigError
from dcpstream.model.collections import is_system_name
from dcpstream.model.position_text import split_entries
from dcpstream_spark import including
from dcpstream_spark.files import check_directory
from dcpstream_spark.typed_columns.fitting import CORRUPT, Mode
from dcpstream_spark.where import named_collections, parse_where

MAX_OFFSETS_PER_TRIGGER = 1_000_000
"""Default limit of seqnos of a micro-batch: large enough to hide Spark's fixed cost of a batch, and small enough for a
driver that collects the batch to write a table."""

MAX_BYTES_PER_TRIGGER = 256 * 2**20
"""Default limit of the bytes of a micro-batch, as estimated. A million rows of 250 bytes fit, and documents of many
kilobytes make smaller batches, so that a driver that collects a batch, or an executor that sorts it, needs no more than
about a gigabyte."""

MAX_TRIGGER_DELAY_S = 900.0
"""Default of the longest time that a batch waits for minOffsetsPerTrigger: 15 minutes, as in Spark's Kafka source."""

MAX_PARTITIONS = 1024
VBUCKET_DIGITS = 4
"""A vbucket is never split, so more partitions than vbuckets would be empty."""


SAMPLE_SIZE = 1_000
"""Default number of changes from which the fields of documents are inferred: rare fields appear, and it takes well
under a second."""


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """A start or an end.

    Attributes:
        kind: "earliest", "latest" or "positions".
        positions: vbucket → JSON object of a position, or a seqno as text, as the user wrote it. Empty unless `kind`
            is "positions".
    """

    kind: Literal["earliest", "latest", "positions"]
    positions: Mapping[int, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """All options, checked.

    Attributes:
        connection_string: of the cluster, as the SDKs take it.
        username, password: of a user that may read the bucket by DCP.
        token: a JSON Web Token instead of both; None for none.
        bucket: its name.
        collections: paths "scope.collection" or names in the default scope, sorted; None for all.
        starting_offsets: None = earliest for a batch, latest for a stream (as in Spark's Kafka source).
        ending_offsets: of a batch.
        max_offsets_per_trigger: largest number of seqnos of a micro-batch.
        max_bytes_per_trigger: largest number of bytes of its rows, as estimated.
        min_offsets_per_trigger: seqnos below which a micro-batch waits, for `max_trigger_delay_s` at most.
        min_partitions: least number of tasks of a batch, as far as there are vbuckets to read.
        num_partitions: largest number of tasks of a batch, None = cores of the driver.
        value_format: "binary", "string" or "variant".
        columns: of `FULL_SCHEMA`, in this order.
        meta_prefix: stands before the names of the source's columns in the schema, so that fields of documents may have
            the same names.
        row_filter: the rows to read; None for all.
        mode: what to do about a document that does not fit the schema.
        corrupt_column: name of the column that holds such a document, if the schema has it.
        infer_schema: whether the fields of documents are found in a sample.
        sample_size: changes of that sample.
        on_rollback: the reaction to a rollback of history that was read.
        on_bucket_reset: the reaction to a bucket that was flushed, or created again.
        include: kinds of rows and columns, of `including.KINDS`.
        system_documents: whether system documents are read, see `dcpstream.arrow.filtering`.
        starting_timestamp: changes before it are left out.
        fail_on_data_loss: the default of the options about lost history; None = true.
        replay: where a repeated micro-batch comes from: from the nodes again, or from files of its first attempt.
        spool_directory: of these files.
        checkpoint_location: the query's checkpoint, in which tasks leave notes; None if it is not known here.
        rewind_to: the target of a rollback: the newest recorded position that the node accepts, or the beginning.
        tls: certificates; None without any (the connection string decides about TLS).
        sasl_mechanism, network: as in `dcpstream.ClientOptions`.
        history, read_stable, purge_gap: as in `Client.stream`.
        skip_deletes: as in `Client.stream`. A range that begins at 0 ends at a seqno that the node had when the batch
            was planned, so each attempt reads the documents as they are at that end or later. If a document that a
            failed attempt delivered is deleted afterwards, its deletion lies above the range: a later batch has it.
        flow_control_buffer_bytes, max_batch_rows, connect_timeout_s, idle_timeout_s: bounds of a task.
    """

    connection_string: str
    username: str = ""
    password: Secret = field(default="", repr=False)
    token: Secret | None = field(default=None, repr=False)
    bucket: str
    tls: TlsOptions | None = None
    sasl_mechanism: str | None = None
    network: str | None = None
    history: bool = False
    skip_deletes: bool = False
    read_stable: bool = False
    purge_gap: OnPurgeGap | None = None
    collections: tuple[str, ...] | None = None
    starting_offsets: OffsetSpec | None = None
    ending_offsets: OffsetSpec = OffsetSpec("latest")
    max_offsets_per_trigger: int = MAX_OFFSETS_PER_TRIGGER
    max_bytes_per_trigger: int = MAX_BYTES_PER_TRIGGER
    min_offsets_per_trigger: int = 0
    max_trigger_delay_s: float = MAX_TRIGGER_DELAY_S
    min_partitions: int = 1
    num_partitions: int | None = None
    value_format: Literal["binary", "string", "variant"] = "binary"
    columns: tuple[str, ...] | None = None
    meta_prefix: str = ""
    row_filter: RowFilter | None = None
    mode: Mode = "PERMISSIVE"
    corrupt_column: str = CORRUPT
    infer_schema: bool = False
    sample_size: int = SAMPLE_SIZE
    on_rollback: Literal["fail", "rewindAndMark"] = "fail"
    rewind_to: RewindTo = "recorded"
    on_bucket_reset: Literal["fail", "rebuild"] = "fail"
    fail_on_data_loss: bool | None = None
    include: frozenset[str] = including.DEFAULT
    system_documents: bool = False
    starting_timestamp: datetime | None = None
    replay: Literal["node", "spool"] = "node"
    spool_directory: str | None = None
    checkpoint_location: str | None = None
    flow_control_buffer_bytes: int = BUFFER_BYTES
    max_batch_rows: int = MAX_BATCH_ROWS
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    idle_timeout_s: float = IDLE_TIMEOUT_S

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Check the user's options.

        Args:
            options: name → text; names in any case.

        Raises:
            ConfigError: an option is missing, unknown, or has an invalid value.
        """
        given = {name.lower(): (name, value) for name, value in options.items()}
        values: dict[str, Any] = {}
        for lower, (name, text) in given.items():
            option = _BY_LOWER_NAME.get(lower)
            if option is None:
                raise unknown_option(name, text, [option.name for option in OPTIONS])
            if option.attribute in values:  # only secrets have several options
                raise _several(option, given)
            values[option.attribute] = option.read(option.name, text)
        tls = {name: values.pop(name) for name in _TLS_ATTRIBUTES if name in values}
        if tls:
            values["tls"] = _tls(tls)
        is_without_user = bool(tls.get("certificate")) or "token" in values
        for option in OPTIONS:
            if is_without_user and option.attribute in {"username", "password"}:
                continue
            if option.is_required and option.attribute not in values:
                raise ConfigError(option.name, None, option.meaning)
        _default_for_data_loss(values)
        row_filter = values.get("row_filter")
        if row_filter is not None and "collections" not in values and (paths := named_collections(row_filter)):
            # The node leaves out the others.
            values["collections"] = paths
        include, since = values.get("include", including.DEFAULT), values.get("starting_timestamp")
        if including.XATTRS not in include and "xattrs" in (values.get("columns") or ()):
            message = "columns has xattrs, and the option include has not. Add xattrs to include"
            raise ConfigError("columns", "xattrs", "columns that include brings", message=message)
        if since is not None:
            values.setdefault("starting_offsets", OffsetSpec("earliest"))
        if added := including.comparisons(include, since):
            given_filter = row_filter or RowFilter()
            values["row_filter"] = replace(given_filter, comparisons=(*given_filter.comparisons, *added))
        if not values.get("system_documents", False):
            _require_user_collections(values.get("collections") or ())
            values["row_filter"] = replace(values.get("row_filter") or RowFilter(), leaves_out_system=True)
        result = cls(**values)
        result._check_access()
        return result

    @property
    def meta_columns(self) -> tuple[str, ...]:
        """The source's columns of a schema that the user does not give."""
        if self.columns is not None:
            return self.columns
        left_out = {"value"} if self.infer_schema else set()
        if including.XATTRS not in self.include:
            left_out.add("xattrs")
        return tuple(name for name in CHANGE_SCHEMA.names if name not in left_out)

    @property
    def wanted_vbuckets(self) -> frozenset[int] | None:
        """The vbuckets that can have rows which the filter lets through; None for all."""
        if self.row_filter is None or "vbucket" not in self.row_filter.columns:
            return None
        return self.row_filter.vbuckets(MAX_PARTITIONS)

    @property
    def effective_purge_gap(self) -> OnPurgeGap | None:
        """The policy for purged deletions; by default that for rollbacks."""
        return self.purge_gap or ("fail" if self.on_rollback == "fail" else None)

    def stream_options(self, value_format: ValueFormat, columns: Sequence[str] | None) -> StreamOptions:
        """The options by which the client reads for a task.

        Args:
            value_format, columns: of the declared schema.
        """
        return StreamOptions(
            value_format=value_format,
            columns=columns,
            max_batch_rows=self.max_batch_rows,
            on_rollback="fail" if self.on_rollback == "fail" else "rewind",
            rewind_to=self.rewind_to,
            purge_gap=self.purge_gap,
            history=self.history,
            skip_deletes=self.skip_deletes,
            read_stable=self.read_stable,
            idle_timeout_s=self.idle_timeout_s,
        )

    def require_no_end(self) -> None:
        """Refuse options that only a batch can have.

        Raises:
            ConfigError: endingOffsets has positions.
        """
        if self.ending_offsets.kind == "positions":
            message = "endingOffsets has positions, but a stream has no end. Leave it out, or read a batch"
            raise ConfigError("endingOffsets", self.ending_offsets.positions, "latest, of a stream", message=message)

    def _check_access(self) -> None:
        if (self.replay == "spool") != (self.spool_directory is not None):
            message = (
                "replay=spool needs the directory of its files. Give spoolDirectory"
                if self.spool_directory is None
                else "spoolDirectory is given without replay=spool, which uses it. Give both, or neither"
            )
            raise ConfigError("spoolDirectory", self.spool_directory, "a directory, of replay=spool", message=message)
        if self.purge_gap == "reconcile" and self.on_rollback == "fail":
            message = (
                "purgeGap=reconcile starts a vbucket over, which is a rollback to its beginning. Give "
                "onRollback=rewindAndMark, too"
            )
            raise ConfigError("purgeGap", self.purge_gap, "fail or ignore, with onRollback=fail", message=message)
        try:
            access(self.connection_string, self.username, self.password, self.bucket, self.client_options)
        except ConfigError as error:
            raise error.under(_SPARK_NAMES.get(error.option, error.option)) from None

    @property
    def client_options(self) -> ClientOptions:
        """The options of the clients that plan, read and write.

        Raises:
            ConfigError: an option is not allowed.
        """
        return ClientOptions(
            tls=self.tls,
            token=self.token,
            sasl_mechanism=self.sasl_mechanism,
            network=self.network,
            connect_timeout_s=self.connect_timeout_s,
            name="dcpstream-spark",
        )


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its documented name, the parser of its text, its meaning, and the attribute that has it.

    The attribute is the name as Python writes it, with the unit of a time, if it is not given.
    """

    name: str
    read: Callable[[str, str], Any]
    meaning: str
    default: str = ""
    is_required: bool = False
    attribute: str = ""

    def __post_init__(self) -> None:
        """Derive the attribute."""
        if not self.attribute:
            words = re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", self.name)
            object.__setattr__(self, "attribute", f"{words}_s" if self.read in {_seconds, _duration} else words)


def _default_for_data_loss(values: dict[str, Any]) -> None:
    """Carry out failOnDataLoss, which is only a default for the options about lost history."""
    fails = values.get("fail_on_data_loss")
    if fails is False:
        values.setdefault("on_rollback", "rewindAndMark")
        values.setdefault("on_bucket_reset", "rebuild")
    elif fails and values.get("purge_gap") == "ignore":
        message = "purgeGap cannot be ignore with failOnDataLoss=true: ignore loses deletions. Choose fail or reconcile"
        raise ConfigError("purgeGap", "ignore", "fail or reconcile", message=message)


def _require_user_collections(paths: Iterable[str]) -> None:
    """Refuse collections of the system's by name, whose rows would be left out."""
    for path in paths:
        if any(map(is_system_name, path.split("."))):
            message = (
                f"collections has {path}, which is one of the system's, and systemDocuments=false leaves out its rows. "
                "Set systemDocuments=true, too, or leave out the collection"
            )
            raise ConfigError("collections", path, "collections of users, without systemDocuments", message=message)


def _several(option: Option, given: Mapping[str, tuple[str, str]]) -> ConfigError:
    names = [one.name for one in OPTIONS if one.attribute == option.attribute and one.name.lower() in given]
    message = f"{' and '.join(names)} are given. Leave only one of them"
    return ConfigError(names[1], "***", f"not together with {names[0]}", message=message)


def _shown(lower: str, text: str) -> str:
    return "***" if "pass" in lower or "token" in lower else text


def unknown_option(name: str, text: str, known: Sequence[str]) -> ConfigError:
    """The error of an option that there is not; names the one that the user may have meant."""
    by_lower = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1)
    hint = f"Did you mean {by_lower[close[0]]}? " if close else ""
    message = f"there is no option {name}. {hint}Known are {', '.join(known)}"
    return ConfigError(name, _shown(name.lower(), text), "one of the known options", message=message)


def _text(name: str, text: str) -> str:
    if not text.strip():
        raise ConfigError(name, text, "a text that is not empty")
    return text


def _secret(name: str, text: str) -> str:
    return text


def _secret_file(name: str, text: str) -> SecretFile:
    secret = SecretFile(_text(name, text), name)
    secret()  # so that a mistake is reported where the query is defined
    return secret


def _secret_function(name: str, text: str) -> SecretFunction:
    if not re.fullmatch(r"[\w.]+:\w+", text):
        raise ConfigError(name, text, "a function as module:function")
    return SecretFunction(text, name)


def _secret_variable(name: str, text: str) -> str:
    secret = os.environ.get(text)
    if secret is None:
        message = f"{name}: the environment has no variable {text}. Set it where the driver starts"
        raise ConfigError(name, text, "the name of an environment variable", message=message)
    return secret


def _connection_string(name: str, text: str) -> str:
    try:
        parse_connection_string(text)
    except ConfigError as error:
        raise error.under(name) from None
    return text


def _tls(given: Mapping[str, Any]) -> TlsOptions:
    try:
        return TlsOptions(**given)
    except ConfigError as error:
        raise error.under(_SPARK_NAMES.get(error.option, error.option)) from None


def _verify(name: str, text: str) -> bool:
    return _choice("peer", "none")(name, text) == "peer"


def _flag(name: str, text: str) -> bool:
    return _choice("true", "false")(name, text) == "true"


def _integer(low: int, high: int) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        try:
            value = int(text)
        except (TypeError, ValueError):
            raise ConfigError(name, text, f"a whole number from {low} to {high}") from None
        if not low <= value <= high:
            raise ConfigError(name, text, f"a whole number from {low} to {high}")
        return value

    return read


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = -1.0
    if not 0 < value <= 86_400:
        raise ConfigError(name, text, "seconds, above 0 and at most 86400")
    return value


_UNITS_OF_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_UNITS_OF_TIME = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _bytes(low: int, high: int) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        match = re.fullmatch(r"\s*(\d{1,15})\s*([kmg]?)b?\s*", text, re.IGNORECASE)
        value = int(match[1]) * _UNITS_OF_BYTES[match[2].lower()] if match else -1
        if not low <= value <= high:
            raise ConfigError(name, text, f"bytes from {low} to {high}, also as 512k, 64m or 1g")
        return value

    return read


def _duration(name: str, text: str) -> float:
    match = re.fullmatch(r"\s*(\d{1,9})\s*(ms|s|m|h)\s*", text, re.IGNORECASE)
    value = int(match[1]) * _UNITS_OF_TIME[match[2].lower()] if match else -1.0
    if not 0 <= value <= 7 * 86_400:
        raise ConfigError(name, text, "a time of at most 7 days, as 500ms, 30s, 15m or 1h")
    return value


def _choice(*allowed: str) -> Callable[[str, str], str]:
    by_lower = {value.lower(): value for value in allowed}

    def read(name: str, text: str) -> str:
        value = by_lower.get(text.strip().lower())
        if value is None:
            raise ConfigError(name, text, f"one of {', '.join(allowed)}")
        return value

    return read


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _collections(name: str, text: str) -> tuple[str, ...]:
    names = _names(text)
    for path in names:
        parts = path.split(".")
        if len(parts) > 2 or not all(parts):
            raise ConfigError(name, text, 'names like "scope.collection" or "collection", separated by commas')
    return tuple(sorted(set(names)))


def _where(name: str, text: str) -> RowFilter:
    return parse_where(text)


def _prefix(name: str, text: str) -> str:
    if text and not text.isidentifier():
        raise ConfigError(name, text, "letters, digits and underscores, like _dcp_")
    return text


def _columns(name: str, text: str) -> tuple[str, ...]:
    known = {column.lower(): column for column in FULL_SCHEMA.names}
    columns = [known.get(column.lower(), "") for column in _names(text)]
    if "" in columns or len(set(columns)) != len(columns):
        raise ConfigError(name, text, f"different names out of {', '.join(known.values())}, separated by commas")
    return tuple(columns)


def _offset_spec(*words: Literal["earliest", "latest"]) -> Callable[[str, str], OffsetSpec]:
    allowed = (
        f'{" or ".join(words)}, or JSON {{"<vbucket>": "<seqno>" or a position with vbuuid, seqno, snapshot_start, '
        "snapshot_end}, or an offset as this source reports it"
    )

    def read(name: str, text: str) -> OffsetSpec:
        for word in words:
            if text.strip().lower() == word:
                return OffsetSpec(word)
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            raise ConfigError(name, text, allowed) from None
        if isinstance(data, dict) and "vbuckets" in data:
            data = data["vbuckets"]
        if isinstance(data, str):
            data = {str(vbid): entry for vbid, entry in split_entries(data).items()}
        if not isinstance(data, dict) or not data:
            raise ConfigError(name, text, allowed)
        positions: dict[int, Any] = {}
        for vbid, position in data.items():
            if not vbid.isdecimal() or len(vbid) > VBUCKET_DIGITS or int(vbid) >= MAX_PARTITIONS:
                raise ConfigError(name, text, f"{allowed} ({vbid!r} is not a vbucket number)")
            positions[int(vbid)] = position
        return OffsetSpec("positions", positions)

    return read


def _secret_options(
    name: str, meaning: str, *, needed_for: str = "login", is_required: bool = False
) -> tuple[Option, ...]:
    """The four options of a secret: its text, or where it is read."""
    file = f"file whose first line is it, read for each {needed_for}; it must be there on every executor"
    function = f"`module:function` that returns it, called for each {needed_for}; every executor must have the module"
    variable = "the driver's environment variable that holds it"
    secret = Option(name, _secret, meaning, is_required=is_required)
    return (
        secret,
        Option(f"{name}File", _secret_file, file, attribute=secret.attribute),
        Option(f"{name}Function", _secret_function, function, attribute=secret.attribute),
        Option(f"{name}Variable", _secret_variable, variable, attribute=secret.attribute),
    )


SECRETS = ("password", "token", "keyPassword")
"""The options that are secrets. Others with the same beginning say where the secret is."""

OPTIONS = (
    Option(
        "connectionString",
        _connection_string,
        "the cluster, as the SDKs take it: couchbase://host[:port][,host…], couchbases:// with TLS",
        is_required=True,
    ),
    Option("username", _text, "a user that may read the bucket by DCP", is_required=True),
    *_secret_options("password", "the user's password", is_required=True),
    *_secret_options("token", "with TLS: a JSON Web Token of the user, instead of user and password"),
    Option("bucket", _text, "name of the bucket", is_required=True),
    Option(
        "trustCertificate",
        _text,
        "with TLS: PEM file, directory or text of the authorities to trust; files must be there on every executor",
        "the system's",
        attribute="trust",
    ),
    Option("certificate", _text, "with TLS: PEM file of a client certificate, instead of user and password"),
    Option("key", _text, "PEM file of the certificate's key", "in certificate"),
    *_secret_options("keyPassword", "of an encrypted key", needed_for="client"),
    Option(
        "tlsVerify",
        _verify,
        "peer, or none: the node's certificate is not checked; only for tests",
        "peer",
        attribute="verify",
    ),
    Option(
        "tlsServerName", _text, "name that the node's certificate must have", "the node's host", attribute="server_name"
    ),
    Option("saslMechanism", _text, "PLAIN (only with TLS), SCRAM-SHA1, -SHA256 or -SHA512", "the strongest"),
    Option("network", _text, "auto, default, external, …: which addresses of the nodes to use", "auto"),
    Option(
        "history",
        _flag,
        "true: every version of a document that the bucket keeps, where it has a change history",
        "false",
    ),
    Option(
        "skipDeletes",
        _flag,
        "true: a first load comes without the deletions of the time before it, from nodes of release 8.5 and later; "
        "only for a target that has no rows of the bucket",
        "false; true in the first run of a pipeline",
    ),
    Option("readStable", _flag, "true: only changes that all copies have on disk", "false"),
    Option(
        "purgeGap",
        _choice(*get_args(OnPurgeGap)),
        "if deletions were purged before they were read: fail, ignore, or reconcile: read the vbucket again from its "
        "beginning",
        "fail; with rewindAndMark reconcile",
    ),
    Option("collections", _collections, "collections and scopes (`scope.*`) to read, separated by commas", "all"),
    Option(
        "startingOffsets",
        _offset_spec("earliest", "latest"),
        "earliest, latest, or JSON (-2 and -1 for one vbucket); a stream uses it only without a checkpoint",
        "earliest (batch), latest (stream)",
    ),
    Option(
        "endingOffsets",
        _offset_spec("latest"),
        "latest, or JSON (-1 for one vbucket), of a batch; a stream has no end",
        "latest",
    ),
    Option(
        "maxOffsetsPerTrigger",
        _integer(1, 2**31 - 1),
        "seqnos that one micro-batch covers at most; a vbucket that can only be read as a whole may exceed it",
        f"{MAX_OFFSETS_PER_TRIGGER}",
    ),
    Option(
        "maxBytesPerTrigger",
        _bytes(1024, 2**50),
        "bytes of rows that one micro-batch holds at most, as estimated from a sample; 512k, 64m, 1g, … are allowed",
        "256m",
    ),
    Option(
        "minOffsetsPerTrigger",
        _integer(0, 2**31 - 1),
        "seqnos below which a micro-batch waits for more; not in the first batch after a start, nor with availableNow",
        "0",
    ),
    Option(
        "maxTriggerDelay",
        _duration,
        "with minOffsetsPerTrigger: longest wait since the last batch, as 500ms, 30s, 15m or 1h",
        "15m",
    ),
    Option("minPartitions", _integer(1, MAX_PARTITIONS), "tasks of a batch at least; a vbucket is never split", "1"),
    Option("numPartitions", _integer(1, MAX_PARTITIONS), "tasks of a batch at most", "driver's cores"),
    Option(
        "valueFormat",
        _choice("binary", "string", "variant"),
        "type of the column value; `string` escapes bytes that are not UTF-8, so only `binary` is exact",
        "binary",
    ),
    Option(
        "columns",
        _columns,
        "columns to build, separated by commas",
        "all but `value_text`; with inferSchema all but `value` and `value_text`",
    ),
    Option(
        "where",
        _where,
        "rows to read: comparisons joined by AND, see [Filters](#filters)",
        "all",
        attribute="row_filter",
    ),
    Option(
        "metaPrefix",
        _prefix,
        "put before the names of the source's columns, so that fields of documents may have the same names",
        "none",
    ),
    Option(
        "mode",
        _choice("PERMISSIVE", "DROPMALFORMED", "FAILFAST"),
        "with fields of documents as columns: how to treat a document that does not fit, as in Spark's JSON source",
        "PERMISSIVE",
    ),
    Option(
        "columnNameOfCorruptRecord",
        _text,
        "column of the schema that holds a document that does not fit: STRING, or BINARY for its exact bytes",
        CORRUPT,
        attribute="corrupt_column",
    ),
    Option(
        "inferSchema", _flag, "true: add the fields of documents as columns, with the types found in a sample", "false"
    ),
    Option("sampleSize", _integer(1, 1_000_000), "changes in that sample", f"{SAMPLE_SIZE}"),
    Option(
        "onRollback", _choice("fail", "rewindAndMark"), "fail, or rewindAndMark: go back and emit a control row", "fail"
    ),
    Option(
        "rewindTo",
        _choice(*get_args(RewindTo)),
        "with rewindAndMark: go back to a recorded position, or read the vbucket from zero",
        "recorded",
    ),
    Option(
        "include",
        including.parse_include,
        "which rows in addition to mutations and rollbacks, and whether the column `xattrs`: "
        f"{', '.join(including.KINDS)}, or none",
        "all but snapshotMarks",
    ),
    Option(
        "systemDocuments",
        _flag,
        "true: also what the system writes for itself: scopes and collections such as `_system`, and records of "
        "transactions, whose keys begin with `_txn:`",
        "false",
    ),
    Option(
        "startingTimestamp",
        including.parse_timestamp,
        "leave out changes before this time (ISO 8601 with a zone, or milliseconds); startingOffsets is then earliest",
    ),
    Option(
        "failOnDataLoss",
        _flag,
        "false: onRollback is rewindAndMark and onBucketReset is rebuild, unless they are given",
        "true",
    ),
    Option(
        "onBucketReset",
        _choice("fail", "rebuild"),
        "if the bucket was flushed, or created again: fail, or rebuild: take back all rows by control rows and read it "
        "from its beginning",
        "fail",
    ),
    Option(
        "replay",
        _choice("node", "spool"),
        "a repeated micro-batch is read again and may have fewer rows (node), or has the same rows, from files (spool)",
        "node",
    ),
    Option(
        "spoolDirectory",
        check_directory,
        "with replay=spool: path or URL that the driver and all executors can reach; for one query alone",
    ),
    Option(
        "checkpointLocation",
        check_directory,
        "of a stream: the query's checkpointLocation once more, see [The checkpoint](#the-checkpoint)",
    ),
    Option(
        "flowControlBufferBytes",
        _integer(MIN_BUFFER_BYTES, MAX_BUFFER_BYTES),
        "flow-control window of a connection",
        f"{BUFFER_BYTES}",
    ),
    Option("maxBatchRows", _integer(1, 1_000_000), "rows of an Arrow batch", f"{MAX_BATCH_ROWS}"),
    Option("connectTimeout", _seconds, "seconds to connect or answer", f"{CONNECT_TIMEOUT_S:g}"),
    Option("idleTimeout", _seconds, "seconds without any progress in a task", f"{IDLE_TIMEOUT_S:g}"),
)
"""Every option, in the order of the documentation."""

_TLS_ATTRIBUTES = frozenset(TlsOptions.__dataclass_fields__)

_SPARK_NAMES = {
    "trust_certificate": "trustCertificate",
    "tls": "trustCertificate",
    "sasl_mechanism": "saslMechanism",
    "key_password": "keyPassword",
    "tls_verify": "tlsVerify",
    "connection_string": "connectionString",
}

_BY_LOWER_NAME = {option.name.lower(): option for option in OPTIONS}
