"""The parameters of a bucket that SET_PARAM changes and STAT config shows.

A parameter either does what its name says, or is refused; none is taken and forgotten. Those that are settings of the
bucket are kept with its store, the others last until the node is stopped, as at a server.

Source: kv_engine engines/ep/configuration.json (names, defaults, limits), engines/ep/src/ep_engine.cc (setFlushParam,
setDcpParam).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, NamedTuple

from dcpstream.wire.release import Release
from dcpstream_node.engine.bucket.bucket import Bucket, as_float32

FLUSH, REPLICATION, CHECKPOINT, DCP, VBUCKET, CONFIG = range(1, 7)
"""Groups of SET_PARAM."""

MAX_SECONDS = (1 << 31) - 1
MAX_COUNT = (1 << 32) - 1

MAX_CONSUMER_BUFFER_RATIO = 0.2
"""The highest value of dcp_consumer_buffer_ratio, as at a server."""

SHOWN_DIGITS = 6
"""Digits of a fraction in STAT: a value in 32 bits has no more."""

_NAMED: Mapping[int, str] = MappingProxyType(
    {REPLICATION: "replication", CHECKPOINT: "checkpoint", DCP: "dcp", VBUCKET: "vbucket"}
)
"""Groups in which a server answers KEY_ENOENT for a name that it does not have, as in `parameter_names.toml`."""


@cache
def _names() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    return tomllib.loads((files(__package__) / "parameter_names.toml").read_text(encoding="utf-8"))


class _Parameter(NamedTuple):
    """A parameter: the groups that may set it, functions that read its value, set it and show it, and its release."""

    groups: tuple[int, ...]
    read: Callable[[str], Any]
    apply: Callable[[Bucket, Any], None]
    show: Callable[[Bucket], Any]
    since: str = ""


def _number(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not low <= int(text) <= high:
            raise ValueError(f"a number from {low} to {high}")
        return int(text)

    return read


def _ratio(text: str) -> float:
    value = _real(text)
    if not 0 <= value < float("inf"):
        raise ValueError("a number from 0")
    return value


def _fraction(text: str) -> float:
    value = _real(text)
    if not 0 <= value <= 1:
        raise ValueError("a number from 0 to 1")
    return value


def _share(text: str) -> float:
    value = _real(text)
    if not 0 <= value <= MAX_CONSUMER_BUFFER_RATIO:
        raise ValueError(f"a number from 0 to {MAX_CONSUMER_BUFFER_RATIO}")
    return as_float32(value)


def _real(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0


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


def _set_collections_out_of_order(bucket: Bucket, count: int) -> None:
    bucket.out_of_order_collections_max = count


def _set_buffer_ratio(bucket: Bucket, ratio: float) -> None:
    bucket.parameters.consumer_buffer_ratio = ratio
    bucket.share_buffers()


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
        "dcp_oso_backfill": _own("oso_backfill", (DCP, CONFIG), _one_of("enabled", "auto", "disabled")),
        "dcp_oso_backfill_small_value_ratio": _own("oso_small_value_ratio", (DCP, CONFIG), _fraction),
        "dcp_oso_backfill_large_value_ratio": _own("oso_large_value_ratio", (DCP, CONFIG), _fraction),
        "dcp_oso_backfill_small_item_size_threshold": _own(
            "oso_small_item_bytes", (DCP, CONFIG), _number(0, MAX_COUNT)
        ),
        "dcp_oso_max_collections_per_backfill": _Parameter(
            (DCP, CONFIG),
            _number(0, MAX_COUNT),
            _set_collections_out_of_order,
            lambda bucket: bucket.out_of_order_collections_max,
            since="7.6",
        ),
        "dcp_cache_transfer_enabled": _Parameter(
            (DCP, CONFIG),
            _truth,
            lambda bucket, value: setattr(bucket, "has_cache_transfer", value),
            lambda bucket: bucket.has_cache_transfer,
            since="8.5",
        ),
        "dcp_consumer_buffer_ratio": _Parameter(
            (DCP, CONFIG),
            _share,
            _set_buffer_ratio,
            lambda bucket: round(bucket.parameters.consumer_buffer_ratio, SHOWN_DIGITS),
            since="7.6",
        ),
    }
)


def is_name_of(release: Release, group: int, name: str) -> bool:
    """Whether a server has the parameter in that group; True for all names of groups where any other is EINVAL."""
    if group not in _NAMED:
        return True
    known = (each for each in _names()[_NAMED[group]] if release.knows(each.get("since", ""), each.get("until", "")))
    return any(name in each["names"] for each in known)


def set_parameter(bucket: Bucket, group: int, name: str, value: str) -> str | None:
    """Set a parameter; returns why it was refused, or None.

    Raises:
        StoreError: it could not be made durable; nothing has changed.
    """
    parameter = PARAMETERS.get(name)
    if parameter is None or group not in parameter.groups or not bucket.release.knows(parameter.since):
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
        if not bucket.release.knows(parameter.since):
            continue
        value = parameter.show(bucket)
        if isinstance(value, bool):
            value = str(value).lower()
        is_whole = isinstance(value, float) and value.is_integer()
        yield name, int(value) if is_whole else value
