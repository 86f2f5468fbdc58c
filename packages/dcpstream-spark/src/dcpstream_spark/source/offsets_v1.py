"""Offsets of version 1, which older checkpoints have. They are read, never written.

A position is ``[vbuuid, seqno, snapshot start, snapshot end or null, manifest uid]``, and after them the number of an
entry of `names`, if it is known which collections the position covers:

```
{"v": 1, "bucket": "b", "collections": null, "names": [{"0": "_default._default", …}, …],
 "vbuckets": {"0": {"at": position, "earlier": [position, …], "rewound": [position, vbuuid]}, …},
 "base": {"0": position, …}}
```

`earlier`, `rewound` and `base` are left out when they are empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dcpstream.model import CollectionName, StreamOffset

VERSION = 1

Entry = tuple[StreamOffset, tuple[StreamOffset, ...], tuple[StreamOffset, int] | None]
"""Position, recorded positions, (position, branch) of a rollback."""


def entries(data: Mapping[str, Any]) -> tuple[dict[int, Entry], dict[int, StreamOffset] | None]:
    """Vbucket → entry, and vbucket → position of the start of the first batch.

    Raises:
        ValueError, TypeError, KeyError, AttributeError, IndexError: the offset is damaged.
    """
    names = [
        tuple(sorted(CollectionName.of(int(number, 16), path) for number, path in found.items()))
        for found in data.get("names", ())
    ]
    found = {int(vbid): _entry(entry, names) for vbid, entry in data["vbuckets"].items()}
    base = data.get("base")
    return found, None if base is None else {int(vbid): position(at) for vbid, at in base.items()}


def position(data: Any, names: Sequence[tuple[CollectionName, ...]] = ()) -> StreamOffset:
    """A position from its list of texts.

    Args:
        data: the list; a number of a set of names may follow.
        names: the sets; without them that number is ignored.

    Raises:
        ValueError: it is not a position.
    """
    if not isinstance(data, list) or len(data) not in {5, 6}:
        raise ValueError(f"not a position: {data!r:.80}")
    if len(data) == 6:
        at = position(data[:5])
        return at.with_collections(names[data[5]]) if names else at
    vbuuid, seqno, start, end, uid = data
    numbers = [vbuuid, seqno, start, uid] if end is None else [vbuuid, seqno, start, end, uid]
    if not all(isinstance(number, str) and number.isdecimal() for number in numbers):
        raise ValueError(f"not a position: {data!r:.80}")
    return StreamOffset(int(vbuuid), int(seqno), int(start), None if end is None else int(end), int(uid))


def _entry(data: Mapping[str, Any], names: Sequence[tuple[CollectionName, ...]]) -> Entry:
    rewound = data.get("rewound")
    return (
        position(data["at"], names),
        tuple(position(at, names) for at in data.get("earlier", ())),
        None if rewound is None else (position(rewound[0], names), int(rewound[1])),
    )
