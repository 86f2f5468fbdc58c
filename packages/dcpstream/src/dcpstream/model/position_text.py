"""The stored form of positions: files and databases of readers, and the offsets in Spark's log.

A vbucket's positions are one text, its entry. The entries of several vbuckets are joined by spaces, in the order of
the vbuckets' numbers, with `-` for a vbucket that is left out. Sets of collections, which most positions share, stand
next to the entries: `names` has the name of each collection by its id in hexadecimal, and `sets` are sets of these ids
(null: unknown).

```
{"names": {scope: {id: collection, …}, …}, "sets": ["0,8-c", null, …], "vbuckets": "entry entry …"}
```

The beginning of the history is `.`. Any other chain of positions is written newest first, each relative to its
neighbours, so that what is usual needs no character. Numbers are in base 36. A position is

```
[branch "@"] seqno ["<" start] ["#" manifest uid] ["/" set] end ["^" limit ";"]
```

- branch: the vbuuid. Left out: that of the newer position; for the newest, 0.
- seqno: for the newest position the seqno, for the others the distance below the newer one (after `-`: above it).
- start: the distance of the snapshot's start below the seqno. Left out: the snapshot starts at the seqno of the next
  older position, or at 0.
- manifest uid, set: the uid, and the number of the set of collections. Left out: those of the newer position; for the
  newest, 0.
- end: the end of the snapshot. `.` is the seqno of the newer position, `=` that of its own, `?` unknown, a capital
  letter 1 (A), 2 (B), 4 (C), … above the seqno, and `+3;` is 3 above the seqno.
- limit: the distance of the purge limit above the seqno. Left out: there is none.

Example: `1ekg@rs?go+3;` is a vbucket at seqno 1000 of branch 65536, in a snapshot from 400 to an unknown end. Before,
it was at seqno 400, in a snapshot from 0 to 403.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dcpstream.model.collections import CollectionName
from dcpstream.model.position import StreamOffset

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_PAIRS: list[str] = [first + second for first in DIGITS for second in DIGITS]
_SHORT: list[str] = [*DIGITS, *_PAIRS[36:]]
"""The texts of the numbers below 36^2."""

BEGINNING = "."
"""The entry of a vbucket at the beginning of its history."""

LEFT_OUT = "-"
"""The entry of a vbucket without a position."""

_POWERS = {1 << exponent: chr(ord("A") + exponent) for exponent in range(26)}

_POSITION = re.compile(
    r"(?:([0-9a-z]+)@)?(-?[0-9a-z]+)(?:<([0-9a-z]+))?(?:#([0-9a-z]+))?(?:/([0-9a-z]+))?(?:([=?.A-Z])|\+([0-9a-z]+);)"
    r"(?:\^([0-9a-z]+);)?"
)

CollectionSet = tuple[CollectionName, ...] | None
NumberOf = Callable[[CollectionSet], int]


def split_entries(text: str) -> dict[int, str]:
    """Vbucket → its entry: the inverse of `joined_entries`."""
    return {vbid: entry for vbid, entry in enumerate(text.split(" ")) if entry not in {"", LEFT_OUT}}


def joined_entries(entries: Mapping[int, str]) -> str:
    """The entries of vbuckets as one text."""
    return " ".join(entries.get(vbid, LEFT_OUT) for vbid in range(max(entries, default=-1) + 1))


def number_text(number: int) -> str:
    """A number in base 36, not negative."""
    if number < 1296:
        return _SHORT[number]
    text = ""
    while number >= 1296:
        number, rest = divmod(number, 1296)
        text = _PAIRS[rest] + text
    return _SHORT[number] + text


def number(text: str) -> int:
    """The inverse of `number_text`.

    Raises:
        ValueError: it is not a number.
    """
    return int(text, 36)


def chain_text(chain: Sequence[StreamOffset], number_of: NumberOf) -> str:
    """The text of positions, newest first.

    Args:
        chain: in any order, but only newest first is short.
        number_of: gives a set of collections its number.
    """
    if len(chain) == 1 and chain[0] == StreamOffset.ZERO and chain[0].collections is None:
        return BEGINNING
    parts: list[str] = []
    vbuuid = seqno = uid = 0
    known: CollectionSet = None
    set_number = 0
    last = len(chain) - 1
    for index, at in enumerate(chain):
        if at.vbuuid != vbuuid:
            vbuuid = at.vbuuid
            parts.append(number_text(vbuuid) + "@")
        newer = seqno
        below = seqno - at.seqno if index else at.seqno
        seqno = at.seqno
        parts.append(number_text(below) if below >= 0 else "-" + number_text(-below))
        implied = chain[index + 1].seqno if index < last else 0
        if at.snapshot_start != (implied if implied <= seqno else 0):
            parts.append("<" + number_text(seqno - at.snapshot_start))
        if at.manifest_uid != uid:
            uid = at.manifest_uid
            parts.append("#" + number_text(uid))
        if not index or at.collections is not known:
            known = at.collections
            its_number = number_of(known)
            if its_number != set_number:
                set_number = its_number
                parts.append("/" + number_text(set_number))
        end = at.snapshot_end
        if end is None:
            parts.append("?")
        elif end == seqno:
            parts.append("=")
        elif index and end == newer:
            parts.append(".")
        else:
            parts.append(_POWERS.get(end - seqno) or f"+{number_text(end - seqno)};")
        if at.purge_limit is not None:
            parts.append(f"^{number_text(at.purge_limit - seqno)};")
    return "".join(parts)


def chain(text: str, sets: Sequence[CollectionSet] = ()) -> tuple[StreamOffset, ...]:
    """The inverse of `chain_text`.

    Args:
        text: of `chain_text`.
        sets: the sets of collections by their numbers; empty to ignore them.

    Raises:
        ValueError: it is not such a text.
    """
    if text == BEGINNING:
        return (StreamOffset.ZERO,)
    found: list[tuple[int, int, str | None, int, int, str | None, str | None, str | None]] = []
    vbuuid = seqno = uid = set_number = place = 0
    while place < len(text):
        match = _POSITION.match(text, place)
        if match is None:
            raise ValueError(f"not a position: {_short(text[place:])}")
        place = match.end()
        branch, below, start, new_uid, new_set, mark, above, limit = match.groups()
        if branch is not None:
            vbuuid = int(branch, 36)
        seqno = seqno - int(below, 36) if found else int(below, 36)
        if new_uid is not None:
            uid = int(new_uid, 36)
        if new_set is not None:
            set_number = int(new_set, 36)
        found.append((vbuuid, seqno, start, uid, set_number, mark, above, limit))
    result: list[StreamOffset] = []
    for index, (vbuuid, seqno, start, uid, set_number, mark, above, limit) in enumerate(found):
        if start is not None:
            snapshot_start = seqno - int(start, 36)
        else:
            snapshot_start = found[index + 1][1] if index + 1 < len(found) else 0
            if snapshot_start > seqno:
                snapshot_start = 0
        if mark is None:
            end: int | None = seqno + int(above or "", 36)
        elif mark == "=":
            end = seqno
        elif mark == "?":
            end = None
        elif mark == ".":
            end = found[index - 1][1] if index else seqno
        else:
            end = seqno + (1 << (ord(mark) - ord("A")))
        purge_limit = None if limit is None else seqno + int(limit, 36)
        collections = sets[set_number] if sets else None
        result.append(StreamOffset(vbuuid, seqno, snapshot_start, end, uid, collections, purge_limit))
    return tuple(result)


class CollectionSets:
    """The sets of collections that positions refer to, each once, in order of occurrence."""

    def __init__(self) -> None:
        self._numbers: dict[CollectionSet, int] = {}

    def __len__(self) -> int:
        """The count of numbered sets."""
        return len(self._numbers)

    def number(self, found: CollectionSet) -> int:
        """The number of a set."""
        return self._numbers.setdefault(found, len(self._numbers))

    def to_json(self) -> dict[str, Any]:
        """`names` and `sets`; empty if no set is known."""
        names: dict[str, dict[str, str]] = {}
        paths: dict[int, CollectionName] = {}
        sets: list[Any] = []
        for found in self._numbers:
            if found is None:
                sets.append(None)
            elif any(paths.setdefault(item.collection_id, item) != item for item in found):
                # A bucket that was made again may have other names for the same ids.
                sets.append({f"{item.collection_id:x}": item.path for item in found})
            else:
                sets.append(_ids_text([item.collection_id for item in found]))
        if sets == [None] or not sets:
            return {}
        for _, item in sorted(paths.items()):
            names.setdefault(item.scope, {})[f"{item.collection_id:x}"] = item.collection
        return {"names": names, "sets": sets}


def sets_of(data: Mapping[str, Any]) -> list[CollectionSet]:
    """The inverse of `CollectionSets.to_json`.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: it is damaged.
    """
    names = {
        int(number, 16): CollectionName(int(number, 16), scope, name)
        for scope, found in data.get("names", {}).items()
        for number, name in found.items()
    }
    result: list[CollectionSet] = []
    for found in data.get("sets", [None]):
        if found is None:
            result.append(None)
        elif isinstance(found, Mapping):
            result.append(tuple(sorted(CollectionName.of(int(number, 16), path) for number, path in found.items())))
        else:
            ids: list[int] = []
            for part in found.split(",") if found else ():
                low, _, high = part.partition("-")
                span = range(int(low, 16), int(high or low, 16) + 1)
                if len(span) > len(names):
                    raise ValueError(f"the set {found} has more collections than are named")
                ids.extend(span)
            result.append(tuple(names[one] for one in ids))
    return result


def _ids_text(ids: Sequence[int]) -> str:
    """Rising numbers as hexadecimal ranges: `0,8-c`."""
    ranges: list[list[int]] = []
    for one in ids:
        if ranges and ranges[-1][1] == one - 1:
            ranges[-1][1] = one
        else:
            ranges.append([one, one])
    return ",".join(f"{low:x}" if low == high else f"{low:x}-{high:x}" for low, high in ranges)


def _short(text: str) -> str:
    return repr(text) if len(text) <= 80 else f"{text[:77]!r}…"
