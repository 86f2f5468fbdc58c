"""Judge a server of a release that was not recorded, but that lies between two recorded ones: 7.6 between 7.2 and 8.0.

Nothing is recorded of it, so nothing more can be derived honestly than this. A step in which both recordings agree must
be equal. Where they differ, the server must do what one of the two does; which of them, the release table says
(`dcpstream.wire.release`), and no recording can. Scenarios that only one of the two has are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from dcpstream_node.judge import recordings
from dcpstream_node.judge.comparison import Comparison, compare
from dcpstream_node.judge.steps import read_steps
from dcpstream_node.judge.transcript import Line

OLDER, NEWER = "7.2", "8.0"
"""The recorded releases on both sides."""


MIXED = (
    ("s", r"connection_buffer_size", "asked for first, as by 7.2, and for a share of the quota, as by 8.0"),
    ("s09", r"DCP_(MUTATION|DELETION)", "without values, 7.6 sends keys from disk without metadata (a known bug)"),
    (
        "s20",
        r"DCP_CONTROL",
        "a refused interval of NOOPs ends the connection, as in 8.0, but before the other controls",
    ),
    ("s34", r"HELLO response", "some features of 8.0 came with 7.6"),
)
"""Steps that the release table makes neither as 7.2 nor as 8.0: how the scenario's name begins, a pattern of the
step, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """The result of a server of a release between in one scenario.

    Attributes:
        name: of the scenario.
        agreed: steps in which both recordings agree.
        open: steps of the newer recording that the older one does not have so.
        differences: texts of those steps that neither recording has, and of agreed ones that are missing.
        as_older, as_newer: steps that differ from the other recording alone.
        mixed: steps that neither recording has, and that `MIXED` explains.
    """

    name: str
    agreed: int
    open: int
    differences: Sequence[str]
    as_older: int
    as_newer: int
    mixed: int


def names() -> tuple[str, ...]:
    """The scenarios that both releases have."""
    return tuple(name for name in recordings.names(OLDER) if name in recordings.names(NEWER))


def judge(name: str, lines: list[Line]) -> Between:
    """Judge the transcript of a scenario by both recordings."""
    older, newer = (read_steps(name, recordings.lines(release, name)) for release in (OLDER, NEWER))
    common = compare(older, newer)
    unlike_older, unlike_newer = (_unlike(compare(each, read_steps(name, lines))) for each in (older, newer))
    both = unlike_older & unlike_newer
    texts = [str(text) for *_, text in both.elements()]
    counting = [text for text in texts if not _is_mixed(name, text)]
    return Between(
        name=name,
        agreed=common.equal,
        open=sum(map(len, newer.steps.values())) - common.equal,
        differences=counting,
        as_older=(unlike_newer - both).total(),
        as_newer=(unlike_older - both).total(),
        mixed=len(texts) - len(counting),
    )


def _is_mixed(name: str, text: str) -> bool:
    return any(name.startswith(begins) and re.search(pattern, text) for begins, pattern, _ in MIXED)


def _unlike(comparison: Comparison) -> Counter[tuple[Hashable, ...]]:
    """The steps that differ from a recording: those that the server took, and those that are missing."""
    found: Counter[tuple[Hashable, ...]] = Counter()
    for each in comparison.failures:
        # A step of the server is the same one in both comparisons; a missing one has its values from a recording.
        what = each.got or each.expected_literal
        found[each.connection, bool(each.got), what] += 1
    return found
