"""Variations: differences between two runs against one real server, each with its reason (`variations.toml`).

A difference that a variation explains does not count, and is shown as `varies`. What never comes twice the same way
(CAS, vbuuids, opaques, times) is no difference in the first place; `steps` knows these.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """One kind of difference.

    Attributes:
        releases: of the server that was recorded; empty: all.
        scenario: how the scenario's name begins; empty: all.
        connection: pattern of the connection's name.
        text: pattern of request, expected step and step, joined by bars.
        reason: why it differs.
    """

    releases: tuple[str, ...] = ()
    scenario: str = ""
    connection: str = ""
    text: str
    reason: str

    def explains(self, release: str, scenario: str, connection: str, text: str) -> bool:
        """Whether a difference is of this kind."""
        if self.releases and release not in self.releases:
            return False
        if not scenario.startswith(self.scenario) or not re.search(self.connection, connection):
            return False
        return re.search(self.text, text) is not None


def _shipped() -> Iterator[Variation]:
    for each in tomllib.loads((files(__package__) / "variations.toml").read_text(encoding="utf-8"))["variation"]:
        yield Variation(**each | {"releases": tuple(each.get("releases", ()))})


VARIATIONS = tuple(_shipped())


def reason_of(release: str, scenario: str, connection: str, text: str) -> str:
    """Why a difference does not count, or nothing."""
    found = (each.reason for each in VARIATIONS if each.explains(release, scenario, connection, text))
    return next(found, "")
