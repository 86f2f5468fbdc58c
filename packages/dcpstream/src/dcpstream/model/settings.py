"""The settings of a bucket.

Names and limits follow the server's REST API (`POST /pools/default/buckets`); `persist`, `purge_age_s` and `compact_at`
are this node's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Self

from dcpstream.errors import ConfigError

MIB = 1024 * 1024

MIN_RAM_QUOTA_BYTES = 100 * MIB
"""The server's smallest bucket."""
DEFAULT_RAM_QUOTA_BYTES = 2048 * MIB
"""Enough for the index of some ten million documents; memory is allocated only for existing ones."""
DEFAULT_CACHE_BYTES = 64 * MIB
"""Memory for blocks read from segment files, kept for the next read."""
DEFAULT_PURGE_AGE_S = 3 * 24 * 3600
"""Time that a tombstone is kept, the server's default: a client that was away for less misses no deletion."""
MIN_PURGE_AGE_S = 0
DEFAULT_COMPACT_AT = 0.4
"""Share of superseded bytes in the segment files that starts a compaction: files stay below twice the live bytes."""


EVICTION = ("valueOnly", "fullEviction")
EPHEMERAL_EVICTION = ("noEviction", "nruEviction")
STORAGE_BACKENDS = ("couchstore", "magma")


class Persist(Enum):
    """When a write is answered, and when it is durable.

    NONE: answered at once; made durable in the background when enough data waits, and at a clean stop.
    GROUP: answered at once; a commit every few milliseconds makes all writes durable and reports it (OBSERVE_SEQNO,
        durability).
    EVERY: answered when it is durable; writes that arrive together are committed together.
    """

    NONE = "none"
    GROUP = "group"
    EVERY = "every"


class ConflictResolution(Enum):
    """The rule for the winner of two versions of a document, when one arrives with its metadata (SET_WITH_META)."""

    SEQNO = "seqno"
    """The version with more changes (revision seqno)."""
    LWW = "lww"
    """The version with the later change (CAS)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSettings:
    """A bucket's settings.

    Attributes:
        is_ephemeral: kept only in memory, even if the node has a directory; cannot be changed.
        eviction: `evictionPolicy`: valueOnly or fullEviction, for an ephemeral bucket noEviction or nruEviction; empty
            for the first of them. Stored and shown, without effect: values are always on disk, or always in memory.
        storage_backend: `storageBackend`: couchstore or magma. Stored and shown, without effect.
        ram_quota_bytes: limit of index, pending writes and cache together; beyond it writes return TMPFAIL.
        cache_bytes: limit, within the quota, of blocks read from files.
        replicas: copies of each vbucket on other nodes, 0 to 3.
        flush_enabled: whether all documents may be deleted over HTTP.
        compression: `compression_mode`: off, passive or active.
        conflict_resolution: see `ConflictResolution`; cannot be changed.
        max_ttl: longest life of a document, seconds; 0: no limit.
        durability_min_level: least durability of every write: 0 none, 1 majority, 2 majority and persisted on the
            active copy, 3 persisted by a majority.
        persist: see `Persist`; here and in `conflict_resolution` the member's value is accepted, too (`"every"`).
        purge_age_s: age at which a compaction removes tombstones.
        compact_at: share of superseded bytes that starts a compaction; 1: never.
        history_retention_s, history_retention_bytes: age and size up to which superseded versions are kept for change
            history (both 0: none are kept). If both are set, the first limit that is reached applies.
        history_default: default for new collections: whether they keep their history.
        expiry_pager_s: pause between searches for expired documents; 0: no search.
    """

    is_ephemeral: bool = False
    eviction: str = ""
    storage_backend: str = "couchstore"
    ram_quota_bytes: int = DEFAULT_RAM_QUOTA_BYTES
    cache_bytes: int = DEFAULT_CACHE_BYTES
    replicas: int = 0
    flush_enabled: bool = False
    compression: str = "off"
    conflict_resolution: ConflictResolution = ConflictResolution.SEQNO
    max_ttl: int = 0
    durability_min_level: int = 0
    persist: Persist = Persist.GROUP
    purge_age_s: float = DEFAULT_PURGE_AGE_S
    compact_at: float = DEFAULT_COMPACT_AT
    history_retention_s: int = 0
    history_retention_bytes: int = 0
    history_default: bool = True
    expiry_pager_s: float = 600.0

    def __post_init__(self) -> None:
        # A text is converted to its member, because a text never equals a member.
        for name, kind in _KINDS.items():
            object.__setattr__(self, name, _member(name, kind, getattr(self, name)))
        for name in ("is_ephemeral", "flush_enabled", "history_default"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(name, getattr(self, name), "True or False")
        _within("ram_quota_bytes", self.ram_quota_bytes, MIN_RAM_QUOTA_BYTES, 1 << 50)
        _within("cache_bytes", self.cache_bytes, 0, self.ram_quota_bytes)
        _within("replicas", self.replicas, 0, 3)
        _within("max_ttl", self.max_ttl, 0, (1 << 31) - 1)
        _within("durability_min_level", self.durability_min_level, 0, 3)
        _within("purge_age_s", self.purge_age_s, MIN_PURGE_AGE_S, 60 * 24 * 3600)
        _within("compact_at", self.compact_at, 0.05, 1)
        _within("history_retention_s", self.history_retention_s, 0, 1 << 40)
        _within("history_retention_bytes", self.history_retention_bytes, 0, 1 << 60)
        _within("expiry_pager_s", self.expiry_pager_s, 0, 30 * 24 * 3600)
        policies = EPHEMERAL_EVICTION if self.is_ephemeral else EVICTION
        if self.eviction not in ("", *policies):
            raise ConfigError("eviction", self.eviction, " or ".join(policies))
        if self.storage_backend not in STORAGE_BACKENDS:
            raise ConfigError("storage_backend", self.storage_backend, " or ".join(STORAGE_BACKENDS))
        if self.compression not in ("off", "passive", "active"):
            raise ConfigError("compression", self.compression, "off, passive or active")

    @classmethod
    def from_texts(cls, texts: Mapping[str, str]) -> Self:
        """Settings by name and text, as a command line or a form gives them.

        Raises:
            ConfigError: no such setting, or an invalid value.
        """
        defaults = {field.name: field.default for field in fields(cls)}
        values: dict[str, Any] = {}
        for name, text in texts.items():
            if name not in defaults:
                raise ConfigError("setting", name, ", ".join(defaults))
            values[name] = _parsed(name, text, defaults[name])
        return cls.from_json(values)

    @property
    def keeps_history(self) -> bool:
        """Whether superseded versions are kept for change histories."""
        return bool(self.history_retention_s or self.history_retention_bytes)

    def to_json(self) -> dict[str, Any]:
        """The form that the store keeps: every field, enums by value."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_json`; fields of newer versions are ignored, and missing ones get their defaults.

        Raises:
            ConfigError: an invalid value.
        """
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})


_KINDS: Mapping[str, type[Enum]] = {"persist": Persist, "conflict_resolution": ConflictResolution}
_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _parsed(name: str, text: str, default: Any) -> Any:
    """The text as a value of the default's type."""
    if isinstance(default, bool):
        if text.lower() not in _TRUTHS:
            raise ConfigError(name, text, "true or false")
        return _TRUTHS[text.lower()]
    if isinstance(default, (int, float)):
        try:
            return type(default)(text)
        except ValueError:
            raise ConfigError(name, text, "a number") from None
    return text


def _member(name: str, kind: type[Enum], value: Any) -> Enum:
    """The member that a value is, or names."""
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(name, value, ", ".join(item.value for item in kind)) from None


def _within(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ConfigError(name, value, f"a number from {low} to {high}")
