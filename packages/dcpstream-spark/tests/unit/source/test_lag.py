from __future__ import annotations

import json

from dcpstream.model import StreamOffset
from dcpstream_spark.source.lag import WORST_VBUCKETS, Lag


def test_lag_is_high_seqno_minus_planned_end_and_never_negative() -> None:
    end = {
        0: StreamOffset(1, 5, 0, None), 1: StreamOffset(1, 7, 0, None), 2: StreamOffset(1, 3, 0, 9),
        3: StreamOffset(1, 4, 4, 4), 4: StreamOffset(1, 4, 4, 4),
    }  # fmt: skip
    lag = Lag.between(end, {0: 5, 1: 10, 2: 9, 3: 3})
    assert lag == Lag(9, {2: 6, 1: 3}, 2, 4, 18), (
        "vbucket 1 is behind what was there, 2 within a snapshot that is known"
    )
    assert Lag.from_json(json.loads(json.dumps(lag.to_json()))) == lag


def test_a_report_is_short_whatever_the_number_of_vbuckets() -> None:
    end = {vbid: StreamOffset(1, 5, 0, None) for vbid in range(1024)}
    lag = Lag.between(end, {vbid: 5 + vbid for vbid in range(1024)})
    assert lag.total == 1023 * 512
    assert list(lag.worst) == list(range(1023, 1023 - WORST_VBUCKETS, -1))
    assert len(json.dumps(lag.to_json())) < 400
