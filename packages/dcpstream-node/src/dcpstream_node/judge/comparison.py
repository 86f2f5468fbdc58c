"""Compare what a server did with what another one did, connection by connection.

The rules: steps in order; their literal parts are equal; CAS, vbuuids, opaques and uids of manifests correspond one to
one; times lie equally far from the start. A difference that `variations` explains is kept with its reason, and does
not count.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dcpstream_node.judge.packets import Op, Status
from dcpstream_node.judge.steps import Step, Transcript, joined_live
from dcpstream_node.judge.variations import reason_of

TIME_TOLERANCE_S = 120
EPOCH_MIN = 1_000_000_000
"""Smaller numbers are no times since 1970, but seconds from now, or marks."""
MANIFEST = "manifest"
"""The role whose 0 corresponds to another number: before its first change, a bucket's manifest has the uid 0."""
TOLERATED = (Status.UNKNOWN_COMMAND, Status.EINVAL, Status.NOT_SUPPORTED, Status.KEY_ENOENT)
"""An optional step may be refused so by a server that does not know it."""

Lane = tuple[int, bytes]
"""Vbucket, and framing bytes with the stream id: streams on one connection run side by side."""


@dataclass
class Difference:
    """One difference, readable.

    Attributes:
        connection: on which it was.
        kind: changed, missing, extra, role, or that the scenario could not run.
        request: what was sent last before.
        expected: the step of the reference; empty if it had none.
        got: the other one; empty if there is none.
        detail: the parts that differ.
        request_hex, expected_hex, got_hex: the frames.
        expected_literal: the part of the expected step that is the same in each run; empty if there is none.
        varies: why it does not count; empty if it does.
    """

    connection: str
    kind: str
    request: str
    request_hex: str = ""
    expected: str = ""
    got: str = ""
    detail: str = ""
    expected_hex: str = ""
    got_hex: str = ""
    varies: str = ""
    expected_literal: str = ""


class Roles:
    """Values that must correspond one to one."""

    def __init__(self) -> None:
        self.forward: dict[tuple[str, str, int], int] = {}
        self.backward: dict[tuple[str, str, int], int] = {}

    def check(self, kind: str, scope: str, reference: int, candidate: int) -> bool:
        """Whether this pair fits what was seen before."""
        if (reference == 0) != (candidate == 0) and kind != MANIFEST:
            return kind == "opaque"
        left, right = (kind, scope, reference), (kind, scope, candidate)
        fits = self.forward.setdefault(left, candidate) == candidate
        return fits and self.backward.setdefault(right, reference) == reference


@dataclass
class Comparison:
    """Two transcripts of one scenario, and how they differ.

    Attributes:
        reference, candidate: what is expected, and what was got.
        differences: all, also those that do not count.
        steps: of the reference, of which `setup` are set-up and `equal` were equal.
        skipped: optional steps that the server refused as unknown.
    """

    reference: Transcript
    candidate: Transcript
    differences: list[Difference] = field(default_factory=list)
    steps: int = 0
    setup: int = 0
    equal: int = 0
    skipped: int = 0
    roles: Roles = field(default_factory=Roles, repr=False)

    def run(self) -> Comparison:
        """Compare every connection."""
        names = list(self.reference.steps)
        names += [name for name in self.candidate.steps if name not in names]
        for name in names:
            ours = self.reference.steps.get(name, [])
            theirs = self.candidate.steps.get(name, [])
            self.steps += len(ours)
            self.setup += sum(step.setup for step in ours)
            for left, right in paired_lanes(ours, theirs):
                self.compare_lane(left, right)
        if self.candidate.aborted or self.reference.aborted:
            texts = {"expected": self.reference.aborted, "got": self.candidate.aborted}
            self.differences.append(Difference("-", "scenario could not run", "", **texts))
        for difference in self.differences:
            text = f"{difference.request} | {difference.expected} | {difference.got}"
            where = self.reference.release, self.reference.name, difference.connection
            difference.varies = reason_of(*where, text)
        return self

    @property
    def failures(self) -> list[Difference]:
        """Differences that count."""
        return [item for item in self.differences if not item.varies]

    def compare_lane(self, ours: Sequence[Step], theirs: Sequence[Step]) -> None:
        """Align two sequences; join live snapshots if they differ as they are."""
        total = len(ours)
        if literals(ours) != literals(theirs):
            joined = joined_live(ours), joined_live(theirs)
            if unequal_share(*joined) < unequal_share(ours, theirs):
                ours, theirs = joined
        skipped = self.skipped
        bad = self.align(ours, theirs) + self.skipped - skipped
        self.equal += max(0, total - bad)

    def align(self, ours: Sequence[Step], theirs: Sequence[Step]) -> int:
        """Compare aligned steps; return how many of ours are not equal."""
        bad = 0
        matcher = difflib.SequenceMatcher(None, literals(ours), literals(theirs), autojunk=False)
        for tag, a, b, c, d in matcher.get_opcodes():
            if tag == "equal":
                pairs = zip(ours[a:b], theirs[c:d], strict=True)
                bad += sum(not self.check_pair(*pair) for pair in pairs)
            else:
                bad += self.unequal(ours[a:b], theirs[c:d])
        return bad

    def check_pair(self, ours: Step, theirs: Step) -> bool:
        """Roles and times of two steps that are equal otherwise."""
        problems = []
        for (kind, left), (_, right) in zip(ours.roles, theirs.roles, strict=False):
            scope = ours.conn if kind == "opaque" else ""
            if not self.roles.check(kind, scope, left, right):
                problems.append(f"{kind} {left:#x} does not correspond to {right:#x}")
        for (name, left), (_, right) in zip(ours.times, theirs.times, strict=False):
            if not self.same_time(left, right):
                problems.append(f"{name} {left} against {right}")
        if problems:
            self.report("role", ours, theirs, "; ".join(problems))
        return not problems

    def same_time(self, left: int, right: int) -> bool:
        """Whether two times lie equally far from the start of their runs."""
        if left < EPOCH_MIN or right < EPOCH_MIN:
            return left == right
        ours = left - self.reference.started
        theirs = right - self.candidate.started
        return abs(ours - theirs) <= TIME_TOLERANCE_S

    def unequal(self, ours: Sequence[Step], theirs: Sequence[Step]) -> int:
        """Pair what can be paired, report it and the rest."""
        others = list(theirs)
        bad = 0
        for step in ours:
            other = next((item for item in others if alike(step, item)), None)
            if other is not None:
                while others[0] is not other:
                    self.report("extra", None, others.pop(0))
                others.pop(0)
            if step.optional and is_tolerated(other):
                self.skipped += 1
                continue
            bad += 1
            if other is None:
                self.report("missing", step, None)
            else:
                self.report("changed", step, other, describe_change(step, other))
        for step in others:
            self.report("extra", None, step)
        return bad

    def report(self, kind: str, ours: Step | None, theirs: Step | None, detail: str = "") -> None:
        """Remember a difference."""
        step = ours or theirs
        assert step is not None, "a difference is about a step"
        expected, got = (one.text if one else "" for one in (ours, theirs))
        frames = (hex_of(ours), hex_of(theirs))
        self.differences.append(
            Difference(
                *(step.conn, kind, step.request, step.request_hex, expected, got, detail, *frames),
                expected_literal=f"{ours.kind} {ours.literal}" if ours else "",
            )
        )


def hex_of(step: Step | None) -> str:
    """The bytes of a step's frame, or nothing."""
    return step.frame.raw.hex() if step is not None and step.frame is not None else ""


def literals(steps: Sequence[Step]) -> list[tuple[str, tuple[object, ...]]]:
    """The part of a step that must be equal."""
    return [(step.kind, step.literal) for step in steps]


def unequal_share(ours: Sequence[Step], theirs: Sequence[Step]) -> float:
    """The share of the steps that have no equal one."""
    matcher = difflib.SequenceMatcher(None, literals(ours), literals(theirs), autojunk=False)
    return 1 - matcher.ratio()


def alike(ours: Step, theirs: Step) -> bool:
    """Whether two unequal steps are about the same thing."""
    if ours.kind != theirs.kind:
        return False
    if ours.frame is None or theirs.frame is None:
        return ours.frame is theirs.frame
    one, two = ours.frame, theirs.frame
    return (one.op, one.is_response) == (two.op, two.is_response)


def is_tolerated(step: Step | None) -> bool:
    """Whether an optional step was refused as unknown, or not answered."""
    if step is None or step.frame is None:
        return True
    return step.frame.status in TOLERATED


NAMES = (
    *("opcode", "direction", "status or vbucket", "opaque", "cas", "datatype"),
    *("framing", "extras", "key", "value"),
)


def describe_change(ours: Step, theirs: Step) -> str:
    """The parts that differ."""
    if ours.kind == "stat":
        return describe_stat(ours.literal, theirs.literal)
    if len(ours.literal) != len(NAMES) or len(theirs.literal) != len(NAMES):
        return f"{ours.literal} against {theirs.literal}"
    parts = []
    for name, left, right in zip(NAMES, ours.literal, theirs.literal, strict=True):
        if left != right:
            parts.append(f"{name}: {left!r:.90} against {right!r:.90}")
    return "; ".join(parts)


def describe_stat(ours: Sequence[Any], theirs: Sequence[Any]) -> str:
    """Names that only one side has."""
    left, right = set(ours[1]), set(theirs[1])
    parts = [f"{ours[0]} against {theirs[0]}"] if ours[0] != theirs[0] else []
    if left - right:
        parts.append(f"missing names: {', '.join(sorted(left - right)[:12])}")
    if right - left:
        parts.append(f"extra names: {', '.join(sorted(right - left)[:12])}")
    return "; ".join(parts)


def lane_of(step: Step, lanes: Mapping[int, Lane]) -> Lane | str:
    """Streams of several vbuckets run side by side."""
    frame = step.frame
    if frame is None:
        return "main"
    stream = frame.op == Op.DCP_STREAM_REQ if frame.is_response else frame.op in STREAM_OPS
    return lanes.get(frame.opaque, "main") if stream else "main"


STREAM_OPS = set(range(Op.DCP_STREAM_END, Op.DCP_EXPIRATION + 1)) | set(
    range(Op.DCP_SYSTEM_EVENT, Op.DCP_OSO_SNAPSHOT + 1)
)


def stream_lanes(steps: Sequence[Step]) -> dict[int, Lane]:
    """The vbucket, or the stream id, of each opaque a stream uses."""
    lanes: dict[int, Lane] = {}
    for step in steps:
        frame = step.frame
        if frame is not None and not frame.is_response and frame.op in STREAM_OPS:
            lanes[frame.opaque] = (frame.vbucket, frame.framing)
    return lanes


def paired_lanes(ours: Sequence[Step], theirs: Sequence[Step]) -> list[tuple[Sequence[Step], Sequence[Step]]]:
    """Pairs of sequences that must be in the same order."""
    left_lanes, right_lanes = stream_lanes(ours), stream_lanes(theirs)
    kinds = set(left_lanes.values()) | set(right_lanes.values())
    if len(kinds) < 2:
        return [(ours, theirs)]
    pairs: list[tuple[Sequence[Step], Sequence[Step]]] = []
    for kind in ["main", *sorted(kinds)]:
        left = [step for step in ours if lane_of(step, left_lanes) == kind]
        right = [step for step in theirs if lane_of(step, right_lanes) == kind]
        pairs.append((left, right))
    return pairs


def compare(reference: Transcript, candidate: Transcript) -> Comparison:
    """Compare a transcript with the reference."""
    return Comparison(reference, candidate).run()
