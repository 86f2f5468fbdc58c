from __future__ import annotations

import pytest

from dcpstream.model import CollectionName, StreamOffset
from dcpstream_spark.source.offsets_v1 import entries, position

NAMES = {"0": "_default._default", "8": "shop.orders"}


def test_an_entry_has_a_position_recorded_ones_and_a_rollback() -> None:
    data = {
        "names": [NAMES],
        "vbuckets": {"3": {"at": ["9", "13", "11", None, "2", 0], "earlier": [["8", "11", "7", "12", "0"]],
                           "rewound": [["8", "11", "7", "12", "0"], "9"]}},
        "base": {"3": ["0", "0", "0", "0", "0"]},
    }  # fmt: skip
    found, base = entries(data)
    at, earlier, rewound = found[3]
    assert at == StreamOffset(9, 13, 11, None, 2)
    assert at.collections == (CollectionName(0, "_default", "_default"), CollectionName(8, "shop", "orders"))
    assert earlier == (StreamOffset(8, 11, 7, 12),)
    assert rewound == (StreamOffset(8, 11, 7, 12), 9)
    assert base == {3: StreamOffset.ZERO}


@pytest.mark.parametrize(
    "data", [None, ["1"], [1, 2, 0, None, 0], ["1", "2", "3", None, "0"], ["1", "x", "0", "3", "0"]]
)
def test_what_is_no_position_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match="not"):
        position(data)
