"""Settings of a bucket: read from the fields of the REST API's form, and written to its JSON.

Every field is checked, so that all errors of a form are reported together. Fields without a meaning here
(`threadsNumber`, `autoCompactionDefined`, …) are ignored.

Source: Couchbase Server REST API, "Creating and Editing Buckets"; ns_server menelaus_web_buckets.erl (fields, words).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from dcpstream.errors import ConfigError
from dcpstream.model import BucketSettings, ConflictResolution
from dcpstream.model.cluster import MAX_VBUCKETS
from dcpstream.model.settings import EPHEMERAL_EVICTION, EVICTION, STORAGE_BACKENDS
from dcpstream_node.rest.site import whole_number

MIB = 1024 * 1024
MIN_QUOTA_MIB = 100
MIN_MAGMA_QUOTA_MIB = 1024
MAX_REPLICAS = 3
MAX_TTL = (1 << 31) - 1
MAX_HISTORY = (1 << 60) - 1
MIN_HISTORY_BYTES = 1 << 31
"""The server's smallest change history that is limited by size; 0 is none."""
MAX_NAME_LENGTH = 100

BUCKET_TYPES = ("membase", "couchbase", "ephemeral")
DURABILITY = ("none", "majority", "majorityAndPersistActive", "persistToMajority")
"""Names of `durability_min_level`, in its order."""
EPHEMERAL_DURABILITY = DURABILITY[:2]
_ALLOWED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.%")


class BucketForm(NamedTuple):
    """The settings in a form.

    Attributes:
        settings: of the bucket; the present ones if there are errors.
        vbuckets: their number; None for the default.
        errors: field → its error.
    """

    settings: BucketSettings
    vbuckets: int | None
    errors: dict[str, str]


def name_fault(name: str | None, taken: Mapping[str, object]) -> str | None:
    """Why a new bucket cannot have this name."""
    if name is None:
        return "Bucket name needs to be specified"
    if not name:
        return "Bucket name cannot be empty"
    if len(name) > MAX_NAME_LENGTH:
        return f"Bucket name cannot exceed {MAX_NAME_LENGTH} characters"
    if not _ALLOWED.issuperset(name):
        return (
            "Bucket name can only contain characters in range A-Z, a-z, 0-9 as well as underscore, period, dash & "
            "percent. Consult the documentation."
        )
    if name.startswith("."):
        return "Bucket name cannot start with dot."
    if name.lower() in (other.lower() for other in taken):
        return "Bucket with given name already exists"
    return None


class _Reader:
    """Reads fields, and collects their errors."""

    def __init__(self, form: Mapping[str, str]) -> None:
        self.form = form
        self.errors: dict[str, str] = {}

    def number(self, name: str, default: int, low: int, high: int, text: str, *, as_name: str = "") -> int:
        given = self.form.get(name)
        if given is None:
            return default
        value = whole_number(given.strip(), low, high)
        if value is None:
            self.errors[as_name or name] = text
            return default
        return value

    def choice(self, name: str, default: str, allowed: tuple[str, ...], text: str) -> str:
        given = self.form.get(name, default)
        if given in allowed:
            return given
        self.errors[name] = text
        return default

    def flag(self, name: str, default: bool, values: tuple[str, str], text: str) -> bool:
        given = self.form.get(name, values[default])
        if given not in values:
            self.errors[name] = text
            return default
        return given == values[True]


def read_form(form: Mapping[str, str], present: BucketSettings | None = None, present_vbuckets: int = 0) -> BucketForm:
    """The settings in a form, and its errors.

    Args:
        form: field → text.
        present: the settings of the bucket to be changed; None for a new one.
        present_vbuckets: its number of vbuckets, which client libraries send back unchanged.
    """
    reader = _Reader(form)
    base = present or BucketSettings(compression="passive", replicas=1)
    kind = reader.choice(
        "bucketType", "ephemeral" if base.is_ephemeral else "membase", BUCKET_TYPES, "invalid bucket type"
    )
    if form.get("bucketType") == "memcached":
        reader.errors["bucketType"] = "memcached buckets are no longer supported"
    is_ephemeral = kind == "ephemeral"
    if present is not None and is_ephemeral != present.is_ephemeral:
        reader.errors["bucketType"] = "Cannot change bucket type."
        is_ephemeral = present.is_ephemeral
    if not is_ephemeral:
        backend = reader.choice(
            "storageBackend", base.storage_backend, STORAGE_BACKENDS, "storage backend must be couchstore or magma"
        )
    else:
        backend = "couchstore"
    settings: dict[str, Any] = {
        "is_ephemeral": is_ephemeral,
        "storage_backend": backend,
        "ram_quota_bytes": _quota(reader, present, is_magma=backend == "magma"),
        "replicas": _replicas(reader, base.replicas),
        "eviction": _eviction(reader, base.eviction, backend="" if is_ephemeral else backend),
        "flush_enabled": reader.flag("flushEnabled", base.flush_enabled, ("0", "1"), "flushEnabled can only be 1 or 0"),
        "compression": reader.choice(
            "compressionMode",
            base.compression,
            ("off", "passive", "active"),
            "compressionMode can be set to 'off', 'passive' or 'active'",
        ),
        "max_ttl": reader.number(
            "maxTTL", base.max_ttl, 0, MAX_TTL, f"Max TTL must be an integer between 0 and {MAX_TTL}"
        ),
        "durability_min_level": _durability(reader, base.durability_min_level, is_ephemeral=is_ephemeral),
        "conflict_resolution": _conflict_resolution(reader, present),
        **_history(reader, base, is_magma=backend == "magma" or base.keeps_history),
    }
    settings["cache_bytes"] = min(base.cache_bytes, settings["ram_quota_bytes"])
    vbuckets = None
    if "numVBuckets" in form:
        text = f"Number of vbuckets must be an integer between 1 and {MAX_VBUCKETS}"
        vbuckets = reader.number("numVBuckets", MAX_VBUCKETS, 1, MAX_VBUCKETS, text)
        if present is not None and vbuckets != present_vbuckets:
            reader.errors["numVBuckets"] = "Number of vbuckets cannot be modified"
    if reader.errors:
        return BucketForm(base, vbuckets, reader.errors)
    try:
        return BucketForm(replace(base, **settings), vbuckets, {})
    except ConfigError as error:
        return BucketForm(base, vbuckets, {"_": str(error)})


def _quota(reader: _Reader, present: BucketSettings | None, *, is_magma: bool) -> int:
    name = "ramQuota" if "ramQuota" in reader.form else "ramQuotaMB"
    if name not in reader.form and present is not None:
        return present.ram_quota_bytes
    text = "The RAM Quota must be specified and must be a positive integer."
    if name not in reader.form:
        reader.errors["ramQuota"] = text
    quota = reader.number(name, MIN_MAGMA_QUOTA_MIB, 0, 1 << 30, text, as_name="ramQuota")
    if quota < MIN_QUOTA_MIB:
        reader.errors["ramQuota"] = f"RAM quota cannot be less than {MIN_QUOTA_MIB} MiB"
    elif is_magma and quota < MIN_MAGMA_QUOTA_MIB:
        reader.errors["ramQuota"] = f"Ram quota for magma must be at least {MIN_MAGMA_QUOTA_MIB} MiB"
    return max(quota, MIN_QUOTA_MIB) * MIB


def _replicas(reader: _Reader, default: int) -> int:
    text = "The replica number must be specified and must be a non-negative integer."
    given = reader.form.get("replicaNumber", "").strip()
    if given.isascii() and given.isdigit():
        text = f"Replica number larger than {MAX_REPLICAS} is not supported."
    return reader.number("replicaNumber", default, 0, MAX_REPLICAS, text)


def _eviction(reader: _Reader, present: str, *, backend: str) -> str:
    if not backend:
        text = "Eviction policy must be either 'noEviction' or 'nruEviction' for ephemeral buckets"
        return reader.choice("evictionPolicy", present or EPHEMERAL_EVICTION[0], EPHEMERAL_EVICTION, text)
    text = "Eviction policy must be either 'valueOnly' or 'fullEviction' for couchbase buckets"
    return reader.choice("evictionPolicy", present or _usual_eviction(backend), EVICTION, text)


def _usual_eviction(backend: str) -> str:
    return EVICTION[1] if backend == "magma" else EVICTION[0]


def _durability(reader: _Reader, default: int, *, is_ephemeral: bool) -> int:
    allowed = EPHEMERAL_DURABILITY if is_ephemeral else DURABILITY
    text = (
        "Durability minimum level must be either 'none' or 'majority' for ephemeral buckets"
        if is_ephemeral
        else "Durability minimum level must be one of 'none', 'majority', 'majorityAndPersistActive', or "
        "'persistToMajority'"
    )
    return DURABILITY.index(reader.choice("durabilityMinLevel", DURABILITY[default], allowed, text))


def _conflict_resolution(reader: _Reader, present: BucketSettings | None) -> ConflictResolution:
    given = reader.form.get("conflictResolutionType")
    if present is not None:
        if given not in (None, present.conflict_resolution.value):
            reader.errors["conflictResolutionType"] = "Conflict resolution type not allowed in update bucket"
        return present.conflict_resolution
    text = "Conflict resolution type must be 'seqno' or 'lww' or 'custom'"
    if given == "custom":
        text = "Conflict resolution type 'custom' is supported only with developer preview enabled"
    return ConflictResolution(reader.choice("conflictResolutionType", "seqno", ("seqno", "lww"), text))


def _history(reader: _Reader, base: BucketSettings, *, is_magma: bool) -> dict[str, Any]:
    names = ("historyRetentionSeconds", "historyRetentionBytes", "historyRetentionCollectionDefault")
    if not is_magma:
        for name in names:
            if name in reader.form:
                reader.errors[name] = "History Retention can only used with Magma"
        return {}
    seconds = reader.number(names[0], base.history_retention_s, 0, MAX_HISTORY, _between(0, MAX_HISTORY))
    size = reader.number(
        names[1], base.history_retention_bytes, 0, MAX_HISTORY, _between(MIN_HISTORY_BYTES, MAX_HISTORY)
    )
    if 0 < size < MIN_HISTORY_BYTES:
        reader.errors[names[1]] = _between(MIN_HISTORY_BYTES, MAX_HISTORY)
    default = reader.flag(names[2], base.history_default, ("false", "true"), "Value must be true or false")
    return {"history_retention_s": seconds, "history_retention_bytes": size, "history_default": default}


def _between(low: int, high: int) -> str:
    return f"Value must be an integer between {low} and {high}"


def settings_json(settings: BucketSettings) -> dict[str, Any]:
    """The settings in the form of a bucket's description."""
    usual = EPHEMERAL_EVICTION[0] if settings.is_ephemeral else _usual_eviction(settings.storage_backend)
    content: dict[str, Any] = {
        "bucketType": "ephemeral" if settings.is_ephemeral else "membase",
        "evictionPolicy": settings.eviction or usual,
        "replicaNumber": settings.replicas,
        "compressionMode": settings.compression,
        "conflictResolutionType": settings.conflict_resolution.value,
        "durabilityMinLevel": DURABILITY[settings.durability_min_level],
        "maxTTL": settings.max_ttl,
        "quota": {"ram": settings.ram_quota_bytes, "rawRAM": settings.ram_quota_bytes},
        "flushEnabled": settings.flush_enabled,
    }
    if not settings.is_ephemeral:
        content["storageBackend"] = settings.storage_backend
        content["replicaIndex"] = False
    if settings.storage_backend == "magma" or settings.keeps_history:
        # Client libraries send back every field, and these are refused for buckets without history.
        content["historyRetentionSeconds"] = settings.history_retention_s
        content["historyRetentionBytes"] = settings.history_retention_bytes
        content["historyRetentionCollectionDefault"] = settings.history_default
    return content
