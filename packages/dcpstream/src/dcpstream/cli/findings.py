"""Findings of `dcpstream doctor`: one thing that was looked at, and the command that fixes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: what was looked at.
        verdict: "note" is something that only some users need.
        text: what was found, as a sentence.
        fix: the command that fixes it; empty if nothing is to be done.
    """

    check: str
    verdict: Verdict
    text: str
    fix: str = ""
