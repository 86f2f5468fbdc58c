"""`Faults`: the faults of a node, and the decision for each frame. No sockets, no clocks, no chance.

A share of the frames is counted out and not drawn, so a test meets the same frames every time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dcpstream.errors import ConfigError
from dcpstream.wire import Opcode, Status
from dcpstream.wire.layout import Group, Side
from dcpstream.wire.messages import FLOW_CONTROLLED, REQUESTS, opcodes_of
from dcpstream_node.faults.fault import OF_REQUESTS, OF_SENT, Fault

MAX_FAULTS = 100
"""Faults of a node at a time: each costs a comparison for every frame."""
MANAGER = "dcpstream cluster"
"""Name of the connections of a cluster's manager in HELLO."""

_OF_DOCUMENTS = frozenset(layout.opcode for layout in REQUESTS if layout.document_key and Side.CLIENT in layout.sent_by)
"""Requests about one document."""
_OF_MAPS = opcodes_of(Group.MAP_ONLY)


@dataclass(slots=True)
class _Rule:
    """A fault that lasts.

    Attributes:
        number: how it is called.
        begins, ends: seconds of the monotonic clock.
        seen: frames that matched; hits: those that it acted on.
        due: share of the next frame that it acts on, summed up to 1.
    """

    number: int
    fault: Fault
    begins: float
    ends: float
    seen: int = 0
    hits: int = 0
    due: float = 0.0

    def is_over(self, now: float) -> bool:
        return now >= self.ends

    def acts(self, now: float) -> bool:
        """Count a frame that matches; whether it acts on it."""
        fault = self.fault
        if not self.begins <= now < self.ends or (fault.count is not None and self.hits >= fault.count):
            return False
        self.seen += 1
        if self.seen <= fault.skip:
            return False
        self.due += fault.share
        if self.due < 1.0 - 1e-9:
            return False
        self.due -= 1.0
        self.hits += 1
        return True


class Faults:
    """The lasting faults of a node.

    Attributes:
        has_sent: whether one looks at what the node sends.
        has_requests: whether one looks at requests.
        changed: called after each change, so that what was stalled looks again.
    """

    def __init__(self) -> None:
        self._rules: dict[int, _Rule] = {}
        self._last = 0
        self.has_sent = False
        self.has_requests = False
        self.changed: set[Callable[[], None]] = set()

    def add(self, fault: Fault, now: float) -> int:
        """Let a fault act from now on; returns its number.

        Raises: ConfigError: there are `MAX_FAULTS`.
        """
        if len(self._rules) >= MAX_FAULTS:
            raise ConfigError("faults", len(self._rules) + 1, f"at most {MAX_FAULTS}; lift some")
        self._last += 1
        begins = now + fault.after_s
        ends = float("inf") if fault.for_s is None else begins + fault.for_s
        self._rules[self._last] = _Rule(self._last, fault, begins, ends)
        self._change()
        return self._last

    def lift(self, number: int | None = None) -> list[Fault]:
        """End a fault, or all; returns them. One that is not there is left alone."""
        numbers = list(self._rules) if number is None else [number] if number in self._rules else []
        lifted = [self._rules.pop(each).fault for each in numbers]
        if lifted:
            self._change()
        return lifted

    def _change(self) -> None:
        kinds = {rule.fault.kind for rule in self._rules.values()}
        self.has_sent = bool(kinds & OF_SENT)
        self.has_requests = bool(kinds & OF_REQUESTS)
        for callback in list(self.changed):
            callback()

    def describe(self) -> list[dict[str, Any]]:
        """Each fault with its number (`id`) and how often it acted (`hits`)."""
        return [{"id": rule.number} | rule.fault.to_json() | {"hits": rule.hits} for rule in list(self._rules.values())]

    def is_there(self, number: int, now: float) -> bool:
        """Whether a fault has not been lifted, and is not over."""
        rule = self._rules.get(number)
        return rule is not None and not rule.is_over(now)

    def end_of(self, number: int) -> float:
        """When a fault is over, monotonic seconds; infinity for one that is lifted by hand."""
        rule = self._rules.get(number)
        return rule.ends if rule is not None else 0.0

    def note_hit(self, number: int) -> None:
        """A fault without frames acts."""
        rule = self._rules.get(number)
        if rule is not None:
            rule.hits += 1

    # --------------------------------------------------------------------------------------------------- for each frame

    def on_request(self, opcode: int, vbid: int, bucket: str, connection: str, now: float) -> Status | None:
        """The status with which a fault refuses a request; None if it is carried out."""
        found = self._find(OF_REQUESTS, opcode, vbid, bucket, connection, now)
        if found is None:
            return None
        return Status.CONFIG_ONLY if found.fault.kind == "config_only" else Status[found.fault.status]

    def on_sent(
        self, opcode: int, vbid: int | None, bucket: str, connection: str, now: float
    ) -> tuple[int, Fault] | None:
        """The fault of a frame that the node is about to send, with its number.

        Args:
            vbid: None for an answer.
        """
        found = self._find(OF_SENT, opcode, vbid, bucket, connection, now)
        return None if found is None else (found.number, found.fault)

    def _find(
        self, kinds: frozenset[str], opcode: int, vbid: int | None, bucket: str, connection: str, now: float
    ) -> _Rule | None:
        for rule in self._rules.values():
            fault = rule.fault
            if fault.kind in kinds and _matches(fault, opcode, vbid, bucket, connection) and rule.acts(now):
                return rule
        return None


def _matches(fault: Fault, opcode: int, vbid: int | None, bucket: str, connection: str) -> bool:
    if fault.opcode:
        is_such = opcode == Opcode[fault.opcode]
    elif fault.kind == "config_only":
        is_such = bool(bucket) and opcode not in _OF_MAPS
    elif fault.kind == "refuse":
        is_such = opcode in _OF_DOCUMENTS
    else:
        is_such = fault.kind != "small_buffer" or (vbid is not None and opcode in FLOW_CONTROLLED)
    if not is_such:
        return False
    if fault.vbid is not None and fault.vbid != vbid:
        return False
    if fault.bucket and fault.bucket != bucket:
        return False
    return is_meant(fault.connection, connection)


def is_meant(wanted: str, connection: str) -> bool:
    """Whether a fault with this field `connection` is about a connection of that name."""
    return wanted in connection if wanted else MANAGER not in connection
