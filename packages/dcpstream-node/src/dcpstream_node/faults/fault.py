"""`Fault`: what goes wrong and when, checked, from keyword arguments or the fields of a form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from types import MappingProxyType
from typing import Any

from dcpstream.errors import ConfigError
from dcpstream.wire import Opcode, Status
from dcpstream_node.faults.clock import MAX_MOVE_S

MAX_DELAY_S = 3600.0
MAX_NUMBER = (1 << 63) - 1
_MATCHING = ("opcode", "bucket", "vbid", "connection", "skip", "count", "share", "after_s", "for_s")
_TIMED = ("after_s", "for_s")

KINDS: Mapping[str, tuple[tuple[str, ...], str]] = MappingProxyType(
    {
        "close": ((*_MATCHING, "at_byte"), "close the connection at a frame that the node sends"),
        "stall": (_MATCHING, "send nothing more on the connection from such a frame on, and leave it open"),
        "delay": ((*_MATCHING, "delay_s"), "send such a frame, and all behind it, later"),
        "split": ((*_MATCHING, "at_byte", "delay_s"), "send such a frame in two pieces"),
        "lose": (_MATCHING, "do not send such a frame"),
        "corrupt": ((*_MATCHING, "at_byte", "data"), "send such a frame with other bytes at one place"),
        "small_buffer": (
            (*_MATCHING, "buffer_bytes", "delay_s"),
            "send streams as if the buffers of consumers had so few bytes: a portion, then a pause",
        ),
        "refuse": ((*_MATCHING, "status"), "answer such a request with a status, and do not carry it out"),
        "config_only": (
            ("bucket", "connection", *_TIMED),
            "have only the cluster map of buckets, as a 7.6 server that does not serve them, and refuse all else",
        ),
        "stale_map": (_TIMED, "show clients the cluster map as it is now, whatever changes"),
        "forget_manifest": (
            ("bucket", *_TIMED),
            "show clients no collections, as a server does after a restart until a manifest is pushed to it",
        ),
        "no_map": (_TIMED, "have no cluster map for clients, like a server that was given none yet"),
        "full_disk": (_TIMED, "write no documents to the disk: there is no room"),
        "slow_disk": ((*_TIMED, "delay_s"), "have each sync of the disk take longer"),
        "drop": (("bucket", "connection"), "close connections now"),
        "hang": (_TIMED, "do nothing at all for so long, and leave connections open"),
        "move_clock": (("seconds",), "move the node's clocks"),
        "purge": (("bucket",), "forget every deletion now"),
        "stale_failover": (("bucket", "vbid", "seqno"), "have a vbucket as after a failover to a stale replica"),
    }
)
"""Kind → its fields, and what it does. Those of `AT_ONCE` happen once; the others last until they are lifted."""
AT_ONCE = frozenset(("drop", "hang", "move_clock", "purge", "stale_failover"))
OF_SENT = frozenset(("close", "stall", "delay", "split", "lose", "corrupt", "small_buffer"))
"""Kinds that look at what the node sends."""
OF_REQUESTS = frozenset(("refuse", "config_only"))
"""Kinds that look at requests."""
REQUIRED = MappingProxyType(
    {
        "delay": ("delay_s",),
        "refuse": ("status",),
        "hang": ("for_s",),
        "slow_disk": ("delay_s",),
        "small_buffer": ("buffer_bytes",),
        "move_clock": ("seconds",),
        "purge": ("bucket",),
        "forget_manifest": ("bucket",),
        "stale_failover": ("bucket", "vbid", "seqno"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault to inject, and its time. `KINDS` lists the fields that a kind takes.

    Attributes:
        kind: one of `KINDS`.
        opcode: name of the frames that it is about, such as DCP_SNAPSHOT_MARKER or GET; empty: of any, or for refuse
            all requests about one document, for small_buffer the frames of streams.
        bucket: name; empty: any.
        vbid: of requests and of DCP messages; None: any. An answer names no vbucket.
        connection: a part of the connection's DCP name, or of the name that the client gave in HELLO; empty: any but
            those of the cluster's manager.
        skip: matching frames that pass first.
        count: how often it acts; None: until it is lifted.
        share: of the matching frames, above 0 to 1: with 0.25 every fourth.
        after_s: seconds from now until it begins.
        for_s: seconds that it lasts then; None: until it is lifted.
        at_byte: bytes of the frame that pass before the connection is closed, the frame split or its bytes changed;
            None: for close all, for split the first 12, for corrupt the header. Bytes behind the frame's end are left.
        data: the bytes there instead, in hexadecimal; empty: the byte there with all its bits turned.
        buffer_bytes: of frames that pass together; a larger frame passes alone.
        delay_s: seconds; of small_buffer the time that an acknowledgement takes, 0.01 unless it is said.
        status: name of a status, such as TMPFAIL or NOT_MY_VBUCKET.
        seconds: forward, or below 0 back.
        seqno: the last one that the stale replica has.
    """

    kind: str
    opcode: str = ""
    bucket: str = ""
    vbid: int | None = None
    connection: str = ""
    skip: int = 0
    count: int | None = None
    share: float = 1.0
    after_s: float = 0.0
    for_s: float | None = None
    at_byte: int | None = None
    data: str = ""
    buffer_bytes: int = 0
    delay_s: float = 0.0
    status: str = ""
    seconds: float = 0.0
    seqno: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields that say something."""
        default = Fault(kind=self.kind)
        said = {name: value for name, value in asdict(self).items() if value != getattr(default, name)}
        return {"kind": self.kind} | said


BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "vbid": (0, 0xFFFF),
        "skip": (0, MAX_NUMBER),
        "count": (1, MAX_NUMBER),
        "share": (1e-6, 1.0),
        "after_s": (0.0, MAX_DELAY_S),
        "for_s": (0.0, MAX_DELAY_S),
        "at_byte": (0, MAX_NUMBER),
        "buffer_bytes": (1, MAX_NUMBER),
        "delay_s": (0.0, MAX_DELAY_S),
        "seconds": (-MAX_MOVE_S, MAX_MOVE_S),
        "seqno": (0, MAX_NUMBER),
    }
)
_WHOLE = frozenset(("vbid", "skip", "count", "at_byte", "buffer_bytes", "seqno"))


def read_fault(kind: str, given: Mapping[str, Any]) -> Fault:
    """A checked fault.

    Args:
        given: its other fields; numbers may be text, as in a form.

    Raises: ConfigError: an unknown kind or field, a missing one, or a value that cannot be.
    """
    if kind not in KINDS:
        raise ConfigError("kind", kind, ", ".join(KINDS))
    allowed = KINDS[kind][0]
    unknown = sorted(given.keys() - set(allowed))
    if unknown:
        raise ConfigError(kind, ", ".join(unknown), f"fields of this kind: {', '.join(allowed)}")
    missing = [name for name in REQUIRED.get(kind, ()) if given.get(name) in (None, "")]
    if missing:
        raise ConfigError(kind, f"no {missing[0]}", f"{missing[0]}, which this kind needs")
    values: dict[str, Any] = {}
    for each in fields(Fault):
        value = given.get(each.name)
        if each.name == "kind" or value is None:
            continue
        values[each.name] = _number(each.name, value) if each.name in BOUNDS else str(value)
    for name, names in (("opcode", Opcode.__members__), ("status", Status.__members__)):
        if values.get(name):
            values[name] = values[name].upper()
            if values[name] not in names:
                raise ConfigError(name, values[name], f"a name such as {'GET' if name == 'opcode' else 'TMPFAIL'}")
    try:
        bytes.fromhex(values.get("data", ""))
    except ValueError:
        raise ConfigError("data", values["data"], "bytes in hexadecimal, such as 00ff") from None
    return Fault(kind=kind, **values)


def _number(name: str, value: Any) -> float | int:
    low, high = BOUNDS[name]
    kind = "whole number" if name in _WHOLE else "number"
    try:
        number = int(value) if name in _WHOLE else float(value)
        if (name in _WHOLE and float(value) != number) or not math.isfinite(number) or not low <= number <= high:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(name, value, f"a {kind} from {low:g} to {high:g}") from None
    return number
