"""DCP_CONTROL: the parameters of a producer connection, and the values that each accepts.

One table: name → rule. A rule changes `ProducerSettings` and returns a status. The accepted values are those of a
recorded 7.2 server, which is laxer in places than the documentation: switches accept any text, of which only "true"
means on; three names also match by prefix (`e`, `enable_noo`, `c`, `s`), and the first match of the table counts.

Source: kv_engine engines/ep/src/dcp/producer.cc (control), recordings of every name and value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from dcpstream.protocol.noop import DEFAULT_INTERVAL_S
from dcpstream.wire import OpenFlag, Status

__all__ = ["BUFFER_SIZE", "CONTROLS", "ControlAnswer", "ProducerSettings", "apply_control", "control_of"]

BUFFER_SIZE = b"connection_buffer_size"

MARKER_WITH_PURGE_SEQNO = "2.2"
_UNSIGNED = re.compile(rb"\s*\+?([0-9]{1,20})\s*")


@dataclass(slots=True)
class ProducerSettings:
    """The values of one connection's controls.

    Attributes:
        open_flags: u32, flags of DCP_OPEN.
        has_snappy: whether HELLO granted Snappy.
        has_history: whether the bucket keeps superseded versions.
        has_cache_transfer: whether the bucket permits the transfer of cached values.
        buffer_bytes: consumer's buffer, 0 = no flow control.
        out_of_order: "", "true" or "true_with_seqno_advanced".
        max_marker_version: "2.2" for a client of 8.0. A recorded 7.2 server does not know this control, so only code
            can set it.
        The others are named as their controls.
    """

    open_flags: int = OpenFlag.PRODUCER
    has_snappy: bool = False
    has_history: bool = False
    has_cache_transfer: bool = False
    noop_enabled: bool = False
    noop_interval_s: float = DEFAULT_INTERVAL_S
    buffer_bytes: int = 0
    priority: str = "medium"
    force_value_compression: bool = False
    cursor_dropping: bool = True
    hifi_mfu: bool = False
    stream_end_on_client_close: bool = False
    expiry_opcode: bool = False
    stream_ids: bool = False
    sync_writes: bool = False
    consumer_name: str = ""
    backfill_order: str = "round-robin"
    out_of_order: str = ""
    deleted_user_xattrs: bool = False
    v7_status_codes: bool = False
    flatbuffers_system_events: bool = False
    change_streams: bool = False
    max_marker_version: str = ""

    @property
    def is_sync_replication(self) -> bool:
        """Whether the peer is a replica that takes part in durable writes."""
        return self.sync_writes and bool(self.consumer_name)


class ControlAnswer(NamedTuple):
    """Status and, for some refusals, a text for the client."""

    status: Status
    context: str = ""


OK = ControlAnswer(Status.SUCCESS)
INVALID = ControlAnswer(Status.EINVAL)
UNSUPPORTED = ControlAnswer(Status.NOT_SUPPORTED)

Rule = Callable[[ProducerSettings, bytes], ControlAnswer]


def _number(name: str) -> Rule:
    """A decimal number as the server's parser reads it: surrounding white space is skipped, a minus sign is refused."""

    def rule(settings: ProducerSettings, value: bytes) -> ControlAnswer:
        found = _UNSIGNED.fullmatch(value)
        if found is None:
            return INVALID
        setattr(settings, name, int(found[1]))
        return OK

    return rule


def _switch(name: str) -> Rule:
    """A switch: on for "true", off for everything else; never refused."""

    def rule(settings: ProducerSettings, value: bytes) -> ControlAnswer:
        setattr(settings, name, value == b"true")
        return OK

    return rule


def _one_way(name: str, *, unless: str = "") -> Rule:
    """A one-way switch: only "true" is accepted, and nothing while the switch `unless` is on."""

    def rule(settings: ProducerSettings, value: bytes) -> ControlAnswer:
        if unless and getattr(settings, unless):
            return UNSUPPORTED
        if value != b"true":
            return INVALID
        setattr(settings, name, True)
        return OK

    return rule


def _choice(name: str, *choices: str, context: str = "") -> Rule:
    """One of the given words."""

    def rule(settings: ProducerSettings, value: bytes) -> ControlAnswer:
        text = value.decode("latin-1")
        if text not in choices:
            return ControlAnswer(Status.EINVAL, context)
        setattr(settings, name, text)
        return OK

    return rule


def _stream_end_on_close(settings: ProducerSettings, value: bytes) -> ControlAnswer:
    settings.stream_end_on_client_close |= value == b"true"
    return OK


_NO_SNAPPY = (
    "The ctrl parameter force_value_compression is only supported if datatype snappy is enabled on the connection"
)


def _force_compression(settings: ProducerSettings, value: bytes) -> ControlAnswer:
    if not settings.has_snappy:
        return ControlAnswer(Status.EINVAL, _NO_SNAPPY)
    settings.force_value_compression = value == b"true"
    return OK


def _consumer_name(settings: ProducerSettings, value: bytes) -> ControlAnswer:
    settings.consumer_name = value.decode("utf-8", "replace")
    return OK


def _deleted_user_xattrs(settings: ProducerSettings, value: bytes) -> ControlAnswer:
    if value != b"true" or not settings.open_flags & OpenFlag.INCLUDE_DELETED_USER_XATTRS:
        return INVALID
    settings.deleted_user_xattrs = True
    return OK


def _unsupported(settings: ProducerSettings, value: bytes) -> ControlAnswer:
    return UNSUPPORTED


def _change_streams(settings: ProducerSettings, value: bytes) -> ControlAnswer:
    if value != b"true":
        return INVALID
    if not settings.has_history:
        return UNSUPPORTED
    settings.change_streams = True
    return OK


def _cache_transfer(settings: ProducerSettings, value: bytes) -> ControlAnswer:
    return OK if settings.has_cache_transfer else UNSUPPORTED


CONTROLS: Mapping[bytes, Rule] = MappingProxyType(
    {
        BUFFER_SIZE: _number("buffer_bytes"),
        b"stream_buffer_size": _unsupported,
        b"enable_noop": _switch("noop_enabled"),
        b"force_value_compression": _force_compression,
        b"set_noop_interval": _number("noop_interval_s"),
        b"set_priority": _choice("priority", "high", "medium", "low"),
        b"supports_cursor_dropping": _switch("cursor_dropping"),
        b"supports_cursor_dropping_vulcan": _switch("cursor_dropping"),
        b"supports_hifi_MFU": _switch("hifi_mfu"),
        b"send_stream_end_on_client_close_stream": _stream_end_on_close,
        b"enable_expiry_opcode": _switch("expiry_opcode"),
        b"enable_stream_id": _one_way("stream_ids", unless="sync_writes"),
        b"enable_sync_writes": _one_way("sync_writes", unless="stream_ids"),
        b"consumer_name": _consumer_name,
        b"enable_out_of_order_snapshots": _choice("out_of_order", "true", "true_with_seqno_advanced"),
        b"include_deleted_user_xattrs": _deleted_user_xattrs,
        b"v7_dcp_status_codes": _one_way("v7_status_codes"),
        b"flatbuffers_system_events": _one_way("flatbuffers_system_events"),
        b"backfill_order": _choice(
            "backfill_order",
            "round-robin",
            "sequential",
            context="Unsupported value 'backfill_order' for ctrl parameter 'backfill_order'",
        ),
        b"change_streams": _change_streams,
        b"cache_transfer": _cache_transfer,
    }
)

_PREFIX_MATCHED = (BUFFER_SIZE, b"stream_buffer_size", b"enable_noop")


def control_of(key: bytes) -> bytes | None:
    """The control that a key names; the first bytes of some are enough. None if there is none."""
    if key in CONTROLS:
        return key
    return next((name for name in _PREFIX_MATCHED if name.startswith(key)), None)


def apply_control(settings: ProducerSettings, key: bytes, value: bytes) -> ControlAnswer:
    """Apply one DCP_CONTROL; the check of its shape ensures that key and value are not empty."""
    name = control_of(key)
    return INVALID if name is None else CONTROLS[name](settings, value)
