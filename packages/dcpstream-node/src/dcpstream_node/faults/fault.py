"""`Fault`: what goes wrong and when, checked, from keyword arguments or the fields of a form."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from importlib.resources import files
from types import MappingProxyType
from typing import Any, NamedTuple

from dcpstream.errors import ConfigError
from dcpstream.wire import Opcode, Status

_FILE: dict[str, Any] = tomllib.loads((files(__package__) / "faults.toml").read_text(encoding="utf-8"))


class FaultKind(NamedTuple):
    """A kind of fault.

    Attributes:
        fields: those of `Fault` that it takes.
        about: what it does.
        acts: on frames that the node has `sent`, on `requests` or on the `node`, until it is lifted; or `once`.
        needs: the fields that it must have.
    """

    fields: tuple[str, ...]
    about: str
    acts: str
    needs: tuple[str, ...] = ()


class FaultField(NamedTuple):
    """A field of a fault; numbers have bounds.

    Attributes:
        label: for people.
    """

    label: str
    low: float | None = None
    high: float | None = None
    is_whole: bool = False


def _fields_of(names: Iterable[str]) -> tuple[str, ...]:
    """Names of fields; `@` begins the name of a group of them."""
    groups = _FILE["groups"]
    return tuple(name for word in names for name in (groups[word[1:]] if word.startswith("@") else (word,)))


def _acting(on: str) -> frozenset[str]:
    return frozenset(name for name, kind in KINDS.items() if kind.acts == on)


KINDS: Mapping[str, FaultKind] = MappingProxyType(
    {
        name: FaultKind(_fields_of(entry["fields"]), entry["about"], entry["acts"], tuple(entry.get("needs", ())))
        for name, entry in _FILE["kinds"].items()
    }
)
"""Every kind of fault, by name."""
FIELDS: Mapping[str, FaultField] = MappingProxyType(
    {name: FaultField(**entry) for name, entry in _FILE["fields"].items()}
)
"""Every field of a fault but its kind, by name."""
AT_ONCE, OF_SENT, OF_REQUESTS = _acting("once"), _acting("sent"), _acting("requests")
"""Kinds that happen once, that look at what the node sends, and that look at requests."""


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


def read_fault(kind: str, given: Mapping[str, Any]) -> Fault:
    """A checked fault.

    Args:
        given: its other fields; numbers may be text, as in a form.

    Raises: ConfigError: an unknown kind or field, a missing one, or a value that cannot be.
    """
    if kind not in KINDS:
        raise ConfigError("kind", kind, ", ".join(KINDS))
    allowed = KINDS[kind].fields
    unknown = sorted(given.keys() - set(allowed))
    if unknown:
        raise ConfigError(kind, ", ".join(unknown), f"fields of this kind: {', '.join(allowed)}")
    missing = [name for name in KINDS[kind].needs if given.get(name) in (None, "")]
    if missing:
        raise ConfigError(kind, f"no {missing[0]}", f"{missing[0]}, which this kind needs")
    values: dict[str, Any] = {}
    for each in fields(Fault):
        value = given.get(each.name)
        if each.name == "kind" or value is None:
            continue
        values[each.name] = str(value) if FIELDS[each.name].low is None else _number(each.name, value)
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
    _, low, high, is_whole = FIELDS[name]
    assert low is not None, "it is a number"
    assert high is not None, "it is a number"
    kind = "whole number" if is_whole else "number"
    try:
        number = int(value) if is_whole else float(value)
        if (is_whole and float(value) != number) or not math.isfinite(number) or not low <= number <= high:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(name, value, f"a {kind} from {low:g} to {high:g}") from None
    return number
