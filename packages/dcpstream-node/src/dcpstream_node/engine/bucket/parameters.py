"""The parameters of a bucket that SET_PARAM changes and STAT config shows.

A parameter either does what its name says, or is refused; none is taken and forgotten. Those that are settings of the
bucket are kept with its store, the others last until the node is stopped, as at a server.

Source: kv_engine engines/ep/configuration.json (names, defaults, limits), engines/ep/src/ep_engine.cc (setFlushParam,
setDcpParam).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from dcpstream_node.engine.bucket.bucket import Bucket

FLUSH, REPLICATION, CHECKPOINT, DCP, VBUCKET, CONFIG = range(1, 7)
"""Groups of SET_PARAM."""

MAX_SECONDS = (1 << 31) - 1

_CHECKPOINT_NAMES = """
    chk_max_items chk_period max_checkpoints item_num_based_new_chk checkpoint_memory_ratio
    checkpoint_memory_recovery_upper_mark checkpoint_memory_recovery_lower_mark checkpoint_max_size
"""
_DCP_NAMES = """
    dcp_backfill_in_progress_per_connection_limit dcp_conn_buffer_size dcp_conn_buffer_size_max
    dcp_conn_buffer_size_aggr_mem_threshold dcp_conn_buffer_size_aggressive_perc dcp_conn_buffer_size_perc
    connection_manager_interval dcp_consumer_process_buffered_messages_yield_limit
    dcp_consumer_process_buffered_messages_batch_size dcp_enable_noop dcp_idle_timeout dcp_noop_tx_interval
    dcp_oso_backfill dcp_oso_backfill_large_value_ratio dcp_oso_backfill_small_value_ratio
    dcp_oso_backfill_small_item_size_threshold dcp_producer_processor_run_duration_us dcp_producer_catch_exceptions
    dcp_takeover_max_time allow_sanitize_value_in_deletion
"""
_NAMES: Mapping[int, frozenset[str]] = MappingProxyType(
    {
        REPLICATION: frozenset(("replication_throttle_threshold",)),
        CHECKPOINT: frozenset(_CHECKPOINT_NAMES.split()),
        DCP: frozenset(_DCP_NAMES.split()),
        VBUCKET: frozenset(("hlc_drift_ahead_threshold_us", "hlc_drift_behind_threshold_us", "max_cas")),
    }
)
"""The names that a server has in the groups where it answers KEY_ENOENT for any other."""


class _Parameter(NamedTuple):
    """A parameter: the groups that may set it, and functions that read its value, set it and show it."""

    groups: tuple[int, ...]
    read: Callable[[str], Any]
    apply: Callable[[Bucket, Any], None]
    show: Callable[[Bucket], Any]


def _number(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not low <= int(text) <= high:
            raise ValueError(f"a number from {low} to {high}")
        return int(text)

    return read


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError("a number from 0")
    return value


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("true or false")
    return text == "true"


def _one_of(*allowed: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in allowed:
            raise ValueError(" or ".join(allowed))
        return text

    return read


def _own(name: str, groups: tuple[int, ...], read: Callable[[str], Any]) -> _Parameter:
    """A field of `Parameters`."""
    return _Parameter(
        groups,
        read,
        lambda bucket, value: setattr(bucket.parameters, name, value),
        lambda bucket: getattr(bucket.parameters, name),
    )


def _of_producer(name: str, also: Callable[[Bucket, float], None] | None = None) -> _Parameter:
    """A field of the bounds of producers, and what else it changes."""

    def apply(bucket: Bucket, value: int) -> None:
        change: dict[str, Any] = {name: float(value)}
        bucket.parameters.producer = replace(bucket.parameters.producer, **change)
        if also is not None:
            also(bucket, float(value))

    return _Parameter(
        (DCP, CONFIG), _number(1, MAX_SECONDS), apply, lambda bucket: getattr(bucket.parameters.producer, name)
    )


def _setting(name: str, read: Callable[[str], Any]) -> _Parameter:
    """A field of the bucket's settings."""
    return _Parameter(
        (FLUSH, CONFIG),
        read,
        lambda bucket, value: bucket.change_settings(replace(bucket.settings, **{name: value})),
        lambda bucket: getattr(bucket.settings, name),
    )


def _set_idle_timeouts(bucket: Bucket, seconds: float) -> None:
    """Set the time-out of the open connections, producers and consumers, and have their timers set again."""
    for session in bucket.dcp_sessions.values():
        if session.dcp is not None:
            session.dcp.set_idle_timeout(seconds)
            session.wake()


def _set_out_of_order(bucket: Bucket, mode: str) -> None:
    bucket.allows_out_of_order = mode != "disabled"


def _set_durability(bucket: Bucket, name: str) -> None:
    bucket.change_settings(replace(bucket.settings, durability_min_level=_LEVELS.index(name)))


_LEVELS = ("none", "majority", "majority_and_persist_on_active", "persist_to_majority")
_SECONDS = _number(1, MAX_SECONDS)

PARAMETERS: Mapping[str, _Parameter] = MappingProxyType(
    {
        "compression_mode": _setting("compression", _one_of("off", "passive", "active")),
        "min_compression_ratio": _own("compression_ratio_min", (FLUSH, CONFIG), _ratio),
        "max_ttl": _setting("max_ttl", _number(0, MAX_SECONDS)),
        "max_size": _setting("ram_quota_bytes", _number(0, 1 << 50)),
        "exp_pager_stime": _setting("expiry_pager_s", _number(0, 30 * 24 * 3600)),
        "durability_min_level": _Parameter(
            (FLUSH, CONFIG),
            _one_of(*_LEVELS),
            _set_durability,
            lambda bucket: _LEVELS[bucket.settings.durability_min_level],
        ),
        "getl_default_timeout": _own("lock_default_s", (FLUSH, CONFIG), _SECONDS),
        "getl_max_timeout": _own("lock_max_s", (FLUSH, CONFIG), _SECONDS),
        "seqno_persistence_timeout": _own("seqno_persistence_timeout_s", (FLUSH, CONFIG), _number(0, MAX_SECONDS)),
        "range_scan_max_lifetime": _own("scan_life_s", (FLUSH, CONFIG), _SECONDS),
        "allow_sanitize_value_in_deletion": _own("strips_deletions", (FLUSH, DCP, CONFIG), _truth),
        "dcp_idle_timeout": _of_producer("idle_timeout_s", _set_idle_timeouts),
        "dcp_takeover_max_time": _of_producer("takeover_s"),
        "dcp_oso_backfill": _Parameter(
            (DCP, CONFIG),
            # Here `auto` is the same as `enabled`.
            _one_of("enabled", "auto", "disabled"),
            _set_out_of_order,
            lambda bucket: "auto" if bucket.allows_out_of_order else "disabled",
        ),
    }
)


def is_name_of(group: int, name: str) -> bool:
    """Whether a server has the parameter in that group; True for all names of groups where any other is EINVAL."""
    return group not in _NAMES or name in _NAMES[group]


def set_parameter(bucket: Bucket, group: int, name: str, value: str) -> str | None:
    """Set a parameter; returns why it was refused, or None.

    Raises:
        StoreError: it could not be made durable; nothing has changed.
    """
    parameter = PARAMETERS.get(name)
    if parameter is None or group not in parameter.groups:
        return f"{name} is not a parameter of this group that can be changed here"
    try:
        read = parameter.read(value)
        parameter.apply(bucket, read)
    except ValueError as error:
        return f"{name} must be {error}"
    return None


def all_parameters(bucket: Bucket) -> Iterator[tuple[str, object]]:
    """Every parameter and its value, by name."""
    for name, parameter in sorted(PARAMETERS.items()):
        value = parameter.show(bucket)
        if isinstance(value, bool):
            value = str(value).lower()
        is_whole = isinstance(value, float) and value.is_integer()
        yield name, int(value) if is_whole else value
