"""DCP_CONTROL: the parameters of a connection. One table serves both ends.

`CONTROLS` says of each control its name, the release that brought it, the field of `ProducerSettings` that it sets and
the rule for its values, and with which value a client and a replica ask for it. A producer applies what it is asked
(`apply_control`); it does not know controls of later releases than its own. A client and a replica ask for theirs in
the order of the table (`asked_by_client`, `asked_by_replica`).

The accepted values are those of a recorded 7.2 server, which is laxer in places than the documentation: switches accept
any text, of which only "true" means on; three names also match by prefix (`e`, `enable_noo`, `c`, `s`), and the first
match of the table counts.

Source: kv_engine engines/ep/src/dcp/producer.cc (control), recordings of every name and value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

from dcpstream.dcp.liveness import DEFAULT_INTERVAL_S
from dcpstream.wire import OpenFlag, Status
from dcpstream.wire.release import DEFAULT_RELEASE, Release, Rule
from dcpstream.wire.server_bugs import ServerBug

BUFFER_SIZE = "connection_buffer_size"
NOOP_INTERVAL = "set_noop_interval"
OUT_OF_ORDER = "enable_out_of_order_snapshots"
V7_STATUS_CODES = "v7_dcp_status_codes"
FLATBUFFERS = "flatbuffers_system_events"
SYNC_WRITES = "enable_sync_writes"
CHANGE_STREAMS = "change_streams"
MARKER_VERSION = "max_marker_version"

PRIORITIES = ("high", "medium", "low")
BACKFILL_ORDERS = ("round-robin", "sequential")

MARKER_WITH_PURGE_SEQNO = "2.2"
_UNSIGNED = re.compile(rb"\s*\+?([0-9]{1,20})\s*")
_U32_MAX = 0xFFFFFFFF
_DECIMAL = re.compile(rb"\s*\+?([0-9]{1,20}(\.[0-9]{0,20})?|\.[0-9]{1,20})([eE][+-]?[0-9]{1,3})?\s*")
_HEXADECIMAL = re.compile(rb"\s*\+?0[xX]([0-9a-fA-F]{1,16})\s*")
_INFINITE = re.compile(rb"\s*\+?inf(inity)?\s*", re.IGNORECASE)
MIN_NOOP_INTERVAL_S = 0.1
"""The shortest interval that a server accepts as a fraction: its connection_manager_interval."""
MAX_NOOP_INTERVAL_S = float(_U32_MAX)
"""The longest interval that is kept: more than a century, also for an infinite one."""


@dataclass(slots=True)
class ProducerSettings:
    """The values of one producer connection's controls.

    Attributes:
        open_flags: u32, flags of DCP_OPEN.
        has_snappy, has_collections: whether HELLO granted these.
        has_history: whether the bucket keeps superseded versions.
        has_cache_transfer: whether the bucket permits the transfer of cached values.
        buffer_bytes: consumer's buffer, 0 = no flow control.
        out_of_order: "", "true" or "true_with_seqno_advanced".
        release: the release that the producer is of.
        The others are named as their controls.
    """

    open_flags: int = OpenFlag.PRODUCER
    release: Release = DEFAULT_RELEASE
    has_snappy: bool = False
    has_collections: bool = True
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

    @property
    def is_everything_visible(self) -> bool:
        """Whether the peer gets every message of the history, prepares and all events, and hence no SEQNO_ADVANCED."""
        return self.sync_writes and self.flatbuffers_system_events and not self.skips_deletions

    @property
    def has_marker_v22(self) -> bool:
        """Whether markers of disk snapshots have version 2.2, with the purge seqno."""
        return self.max_marker_version == MARKER_WITH_PURGE_SEQNO

    @property
    def sends_only_keys_from_disk(self) -> bool:
        """Whether documents from disk come as `StreamForm.only_keys` says.

        The peer asked for no part of the documents' values; keeping the datatype is a wish for a part.
        """
        has_no_value = self.open_flags & (OpenFlag.NO_VALUE | OpenFlag.INCLUDE_XATTRS) == OpenFlag.NO_VALUE
        return has_no_value and self.release.has_bug(ServerBug.KEYS_ONLY)

    @property
    def skips_deletions(self) -> bool:
        """Whether the first snapshot of a stream from 0 has no deletions, if it comes from disk."""
        return bool(self.open_flags & OpenFlag.SKIP_DELETES_IN_BACKFILL)


class ControlAnswer(NamedTuple):
    """Status and, for some refusals, a text for the client."""

    status: Status
    context: str = ""


OK = ControlAnswer(Status.SUCCESS)
INVALID = ControlAnswer(Status.EINVAL)
UNSUPPORTED = ControlAnswer(Status.NOT_SUPPORTED)

ValueRule = Callable[[ProducerSettings, str, bytes], ControlAnswer]
"""Takes a value for a field of the settings, or refuses it."""


def _number(settings: ProducerSettings, name: str, value: bytes) -> ControlAnswer:
    """A decimal number as the server's parser reads it: surrounding white space is skipped, a minus sign is refused."""
    found = _UNSIGNED.fullmatch(value)
    if found is None:
        return INVALID
    setattr(settings, name, int(found[1]))
    return OK


def _buffer_size(settings: ProducerSettings, name: str, value: bytes) -> ControlAnswer:
    """A number of bytes."""
    found = _UNSIGNED.fullmatch(value)
    if found is None or (int(found[1]) > _U32_MAX and settings.release.has(Rule.BUFFER_SIZE_IS_U32)):
        return INVALID
    setattr(settings, name, int(found[1]) & _U32_MAX)  # an older server keeps the lower half of a larger number
    return OK


def _interval(settings: ProducerSettings, name: str, value: bytes) -> ControlAnswer:
    """Seconds: a decimal number, or a hexadecimal one, as C reads them; before 7.6 a whole number."""
    if not settings.release.has(Rule.NOOP_INTERVAL_IS_FRACTION):
        return _number(settings, name, value)
    if _DECIMAL.fullmatch(value):
        seconds = float(value)
    elif found := _HEXADECIMAL.fullmatch(value):
        seconds = float(int(found[1], 16))
    elif _INFINITE.fullmatch(value):
        seconds = MAX_NOOP_INTERVAL_S
    else:
        return INVALID
    if seconds < MIN_NOOP_INTERVAL_S:
        return INVALID
    setattr(settings, name, min(seconds, MAX_NOOP_INTERVAL_S))
    return OK


def _switch(settings: ProducerSettings, name: str, value: bytes) -> ControlAnswer:
    """A switch: on for "true", off for everything else; never refused."""
    setattr(settings, name, value == b"true")
    return OK


def _latch(settings: ProducerSettings, name: str, value: bytes) -> ControlAnswer:
    """A switch that cannot be switched off again; never refused."""
    setattr(settings, name, getattr(settings, name) or value == b"true")
    return OK


def _true(settings: ProducerSettings, name: str, value: bytes) -> ControlAnswer:
    """Only "true"."""
    if value != b"true":
        return INVALID
    setattr(settings, name, True)
    return OK


def _true_unless(other: str) -> ValueRule:
    """Only "true", and nothing while the switch `other` is on."""

    def rule(settings: ProducerSettings, name: str, value: bytes) -> ControlAnswer:
        return UNSUPPORTED if getattr(settings, other) else _true(settings, name, value)

    return rule


def _choice(*choices: str, context: str = "") -> ValueRule:
    """One of the given words."""

    def rule(settings: ProducerSettings, name: str, value: bytes) -> ControlAnswer:
        text = value.decode("latin-1")
        if text not in choices:
            return ControlAnswer(Status.EINVAL, context)
        setattr(settings, name, text)
        return OK

    return rule


def _text(settings: ProducerSettings, name: str, value: bytes) -> ControlAnswer:
    """Any text."""
    setattr(settings, name, value.decode("utf-8", "replace"))
    return OK


_NO_SNAPPY = (
    "The ctrl parameter force_value_compression is only supported if datatype snappy is enabled on the connection"
)


def _if_snappy(settings: ProducerSettings, name: str, value: bytes) -> ControlAnswer:
    return _switch(settings, name, value) if settings.has_snappy else ControlAnswer(Status.EINVAL, _NO_SNAPPY)


def _if_opened_so(settings: ProducerSettings, name: str, value: bytes) -> ControlAnswer:
    is_open_so = settings.open_flags & OpenFlag.INCLUDE_DELETED_USER_XATTRS
    return _true(settings, name, value) if is_open_so else INVALID


def _if_history(settings: ProducerSettings, name: str, value: bytes) -> ControlAnswer:
    return UNSUPPORTED if value == b"true" and not settings.has_history else _true(settings, name, value)


def _marker_version(settings: ProducerSettings, name: str, value: bytes) -> ControlAnswer:
    """The one version that can be asked for, on a connection with collections."""
    return _choice(MARKER_WITH_PURGE_SEQNO)(settings, name, value) if settings.has_collections else UNSUPPORTED


def _if_cache_transfer(settings: ProducerSettings, _name: str, _value: bytes) -> ControlAnswer:
    """Any value, if the bucket permits it."""
    return OK if settings.has_cache_transfer else UNSUPPORTED


def _unsupported(_settings: ProducerSettings, _name: str, _value: bytes) -> ControlAnswer:
    return UNSUPPORTED


class ClientWishes(Protocol):
    """The settings of a client's connection that its controls depend on."""

    @property
    def buffer_bytes(self) -> int:
        """The flow-control window."""
        ...

    @property
    def noop_interval_s(self) -> int:
        """Seconds between the node's NOOPs."""
        ...

    @property
    def out_of_order(self) -> bool:
        """Whether out-of-order snapshots are welcome."""
        ...

    @property
    def priority(self) -> str | None:
        """The share of the node's time, one of `PRIORITIES`; None for the node's default."""
        ...

    @property
    def backfill_order(self) -> str | None:
        """The order in which vbuckets are read from disk, one of `BACKFILL_ORDERS`; None for the node's default."""
        ...

    @property
    def history(self) -> bool:
        """Whether every version is wanted."""
        ...


class ReplicaWishes(NamedTuple):
    """The settings of a replica's connection that its controls depend on.

    Attributes:
        noop_interval: seconds, as they are asked for.
        consumer_name: of DCP_OPEN's JSON; a consumer that has one takes part in durable writes.
        release: that of the replica's node, which does not know controls of later ones.
    """

    buffer_bytes: int
    noop_interval: str
    consumer_name: str = ""
    release: Release = DEFAULT_RELEASE


class Wish(NamedTuple):
    """The value with which one end asks for a control.

    Attributes:
        value: the text; `{0.name}` stands for an attribute of that end's settings.
        only_if: the attribute that must be set, or "" for none.
        is_required: whether the end cannot do without the control.
    """

    value: str = "true"
    only_if: str = ""
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Control:
    """One control.

    Attributes:
        name: the key of DCP_CONTROL.
        field: the attribute of `ProducerSettings` that it sets; "" for none.
        rule: takes or refuses a value.
        since, until: the releases that have it; see `dcpstream.wire.release.Row`.
        client, replica: how these ends ask for it; None: they do not.
        has_prefixes: whether the first bytes of the name are enough.
    """

    name: str
    field: str
    rule: ValueRule
    since: str = ""
    until: str = ""
    client: Wish | None = None
    replica: Wish | None = None
    has_prefixes: bool = False


_TRUE = Wish()
_BUFFER = Wish("{0.buffer_bytes}", is_required=True)
_INTERVAL = Wish("{0.noop_interval_s}", is_required=True)
_REPLICA_INTERVAL = Wish("{0.noop_interval}", is_required=True)
_BACKFILL_ORDER = "Unsupported value 'backfill_order' for ctrl parameter 'backfill_order'"
_IN_ORDER = (
    Control(BUFFER_SIZE, "buffer_bytes", _buffer_size, client=_BUFFER, replica=_BUFFER, has_prefixes=True),
    Control("stream_buffer_size", "", _unsupported, has_prefixes=True),
    Control("enable_noop", "noop_enabled", _switch, client=Wish(is_required=True), replica=_TRUE, has_prefixes=True),
    Control("force_value_compression", "force_value_compression", _if_snappy),
    Control(NOOP_INTERVAL, "noop_interval_s", _interval, client=_INTERVAL, replica=_REPLICA_INTERVAL),
    Control(
        "set_priority",
        "priority",
        _choice(*PRIORITIES),
        client=Wish("{0.priority}", only_if="priority"),
        replica=Wish("high"),
    ),
    # A producer that takes the connection for one of a replica, by its name, keeps what it has not read in memory.
    Control("supports_cursor_dropping", "cursor_dropping", _switch, client=_TRUE),
    Control("supports_cursor_dropping_vulcan", "cursor_dropping", _switch, replica=_TRUE),
    Control("supports_hifi_MFU", "hifi_mfu", _switch, replica=_TRUE),
    Control(
        "send_stream_end_on_client_close_stream",
        "stream_end_on_client_close",
        _latch,
        since="5.5",
        client=_TRUE,
        replica=_TRUE,
    ),
    Control("enable_expiry_opcode", "expiry_opcode", _switch, since="6.5", client=_TRUE, replica=_TRUE),
    Control("enable_stream_id", "stream_ids", _true_unless("sync_writes"), since="6.5"),
    Control(SYNC_WRITES, "sync_writes", _true_unless("stream_ids"), since="6.5", replica=Wish(only_if="consumer_name")),
    Control("consumer_name", "consumer_name", _text, replica=Wish("{0.consumer_name}", only_if="consumer_name")),
    Control(
        OUT_OF_ORDER,
        "out_of_order",
        _choice("true", "true_with_seqno_advanced"),
        since="7.0",
        client=Wish("true_with_seqno_advanced", only_if="out_of_order"),
    ),
    Control("include_deleted_user_xattrs", "deleted_user_xattrs", _if_opened_so, replica=_TRUE),
    Control(V7_STATUS_CODES, "v7_status_codes", _true, since="7.0", replica=_TRUE),
    Control(FLATBUFFERS, "flatbuffers_system_events", _true, since="7.2", client=_TRUE, replica=_TRUE),
    Control(
        "backfill_order",
        "backfill_order",
        _choice(*BACKFILL_ORDERS, context=_BACKFILL_ORDER),
        client=Wish("{0.backfill_order}", only_if="backfill_order"),
    ),
    Control(
        CHANGE_STREAMS,
        "change_streams",
        _if_history,
        since="7.2",
        client=Wish(only_if="history"),
        replica=_TRUE,
    ),
    Control(
        MARKER_VERSION,
        "max_marker_version",
        _marker_version,
        since="8.0",
        client=Wish(MARKER_WITH_PURGE_SEQNO),
        replica=Wish(MARKER_WITH_PURGE_SEQNO),
    ),
    Control("cache_transfer", "", _if_cache_transfer, since="8.5", replica=_TRUE),
)

CONTROLS: Mapping[bytes, Control] = MappingProxyType({control.name.encode(): control for control in _IN_ORDER})
"""Name → control, in the order in which they are asked for."""


def control_of(key: bytes, release: Release = DEFAULT_RELEASE) -> Control | None:
    """The control that a key names; the first bytes of some are enough. None if the release has none of that name."""
    found = CONTROLS.get(key)
    if found is None:
        found = next((each for each in _IN_ORDER if each.has_prefixes and each.name.encode().startswith(key)), None)
    return found if found is not None and release.knows(found.since, found.until) else None


def apply_control(settings: ProducerSettings, key: bytes, value: bytes) -> ControlAnswer:
    """Apply one DCP_CONTROL; the check of its shape ensures that key and value are not empty."""
    control = control_of(key, settings.release)
    return INVALID if control is None else control.rule(settings, control.field, value)


def asked_by_client(wishes: ClientWishes) -> list[tuple[str, str, bool]]:
    """(name, value, whether it must be granted) of the controls of a client, in order."""
    return list(_asked(((control.name, control.client) for control in _IN_ORDER), wishes))


def asked_by_replica(wishes: ReplicaWishes) -> list[tuple[str, str, bool]]:
    """(name, value, whether it must be granted) of the controls of a replica, in order."""
    known = [control for control in _IN_ORDER if wishes.release.knows(control.since, control.until)]
    if wishes.release.has(Rule.REPLICA_ASKS_FOR_BUFFER_LAST):
        known.sort(key=lambda control: control.name == BUFFER_SIZE)
    return list(_asked(((control.name, control.replica) for control in known), wishes))


def _asked(found: Iterator[tuple[str, Wish | None]], wishes: object) -> Iterator[tuple[str, str, bool]]:
    for name, wish in found:
        if wish is not None and (not wish.only_if or getattr(wishes, wish.only_if)):
            yield name, wish.value.format(wishes), wish.is_required
