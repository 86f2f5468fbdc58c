"""Variations: differences between two runs against one real server, as data, each with its reason.

A difference that a variation explains does not count, and is shown as `varies`. What never comes twice the same way
(CAS, vbuuids, opaques, times) is no difference in the first place; `steps` knows these.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


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


_NOT_MINE = r"response NOT_MY_VBUCKET opaque=\w+( datatype=1)?( value\[.*)?"
_S14_MARKER = r"start=14 end=14 flags=[15] max_visible=13 high_completed=0"
VARIATIONS = (
    Variation(
        text=rf"\| \w+ {_NOT_MINE} \| \w+ {_NOT_MINE}$",
        reason="only one of the servers has a cluster map, which NOT_MY_VBUCKET carries",
    ),
    Variation(
        text=r"\| (.*)\"manifest_uid\":\"[0-9a-f]+\"(.*) \| \1\"manifest_uid\":\"[0-9a-f]+\"\2$",
        reason="the bucket's manifest had another uid before",
    ),
    Variation(
        releases=("7.2",),
        scenario="s14",
        connection=r"^sw3#",
        text=rf"{_S14_MARKER}.* \| .*{_S14_MARKER}",
        reason="flag 4: whether a new checkpoint began before this prepare is timing",
    ),
    Variation(
        releases=("8.0",),
        scenario="s12",
        connection=r"^dt#13",
        text=r"(by_seqno=\d+ ).* nru=[78] (key=.*) \| .*\1.* nru=\d \2",
        reason="the counter of use goes down by chance",
    ),
    Variation(
        scenario="s14",
        connection=r"^sw3?#",
        text=r"DCP_SNAPSHOT_MARKER .*start=(8|9|1[0-4]) end=(8|9|1[0-4]) flags=[15]",
        reason="whether prepare and commit come in one snapshot is timing",
    ),
    Variation(
        scenario="s20",
        connection=r"^ce(2|9|10|11b)#",
        text=r"(end_flags=99|GET_ERROR_MAP|DCP_CONTROL) .*server closed the connection",
        reason="the server closes after about a second, and the scenario looks no longer",
    ),
    Variation(
        releases=("8.0",),
        scenario="s25",
        connection=r"^col",
        text=r"DCP_SNAPSHOT_MARKER .*start=[0-4] end=[1-4] flags=[15] ?\|?",
        reason="how the first events are grouped is timing",
    ),
)


def reason_of(release: str, scenario: str, connection: str, text: str) -> str:
    """Why a difference does not count, or nothing."""
    found = (each.reason for each in VARIATIONS if each.explains(release, scenario, connection, text))
    return next(found, "")
