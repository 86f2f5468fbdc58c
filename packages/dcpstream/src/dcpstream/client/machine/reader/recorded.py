"""The positions that the user has recorded, to which a rollback can go back.

A user who reads many vbuckets records thousands of positions a second, and needs hardly any of them. So the records are
kept as they come, and become positions of a vbucket when its earlier ones are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dcpstream.client.machine.resume import spaced
from dcpstream.model import StreamOffset

RECORDED_MAX = 32
"""Recorded positions of a vbucket from which on those that help little are removed with each further one."""

RECORDS_MAX = 32
"""Records that are kept as they came. Beyond it the older half is joined in pairs: of two positions of a vbucket the
earlier one is forgotten. So their distances grow with their age, as those of `spaced` do."""

_Record = dict[int, Mapping[int, StreamOffset]]
"""Vbucket → the positions among which its own is."""


class Recorded:
    """The records of one reader."""

    def __init__(self) -> None:
        self._records: list[_Record] = []

    def add(self, offsets: Mapping[int, StreamOffset]) -> None:
        """The user has recorded these positions."""
        records = self._records
        records.append(dict.fromkeys(offsets, offsets))
        if len(records) > RECORDS_MAX:
            half = RECORDS_MAX // 2
            records[:half] = [records[number] | records[number + 1] for number in range(0, half, 2)]

    def take(self, vbid: int) -> Iterable[StreamOffset]:
        """The positions of a vbucket, in the order of recording, which are forgotten here."""
        found = [record.pop(vbid, None) for record in self._records]
        return [offsets[vbid] for offsets in found if offsets is not None]


def with_recorded(earlier: tuple[StreamOffset, ...], recorded: Iterable[StreamOffset]) -> tuple[StreamOffset, ...]:
    """Earlier positions of a vbucket, newest first, with some that were recorded since."""
    for offset in recorded:
        is_next = (earlier[0].seqno if earlier else 0) < offset.seqno
        # Otherwise some of the earlier ones are of a history that was rolled back.
        is_plain = is_next and len(earlier) < RECORDED_MAX
        earlier = (offset, *earlier) if is_plain else spaced(earlier, offset)
    return earlier
