"""Windows of operations over connections that refuse and are cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from dcpstream.client.kv.bulk import Operation
from dcpstream.client.kv.windows import Windows
from dcpstream.errors import ConnectionLost
from dcpstream.wire import Opcode, Status, encode_request
from tests.kit.cases import each_case
from tests.kit.faulty_bucket import VBUCKETS, FaultyBucket

LATER = (Status.TMPFAIL, Status.ENOMEM, Status.NOT_MY_VBUCKET, Status.SYNC_WRITE_IN_PROGRESS)


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dcpstream.client.kv.windows.FIRST_PAUSE_S", 0.0)


def writes(pairs: list[tuple[str, str]]) -> Iterator[Operation]:
    for tag, (key, value) in enumerate(pairs):
        vbid = len(key) % VBUCKETS
        request = encode_request(Opcode.SET, vbid=vbid, key=key.encode(), value=value.encode(), extras=bytes(8))
        yield Operation(Opcode.SET, vbid, key.encode(), request, tag)


def windows(bucket: FaultyBucket, **options: Any) -> Windows:
    return Windows(cast("Any", bucket), window_ops=7, **options)


def values(bucket: FaultyBucket) -> dict[str, str]:
    return {key.decode(): value.decode() for key, (value, _, _) in bucket.documents.items()}


@each_case("is_unordered", [False, True])
@each_case("seed", range(20))
def test_faults_lose_nothing_and_keep_the_order_of_a_key(seed: int, is_unordered: bool) -> None:
    bucket = FaultyBucket(seed, cuts=0.02, is_unordered=is_unordered)
    bucket.refusals = dict.fromkeys(LATER, 0.03)
    pairs = [(f"key {bucket.random.randrange(12)}", str(number)) for number in range(300)]
    under_way = windows(bucket, is_reconnecting=True)
    answered = list(under_way.one_by_one(writes(pairs)))
    assert [operation.tag for operation, _ in answered] == list(range(len(pairs)))
    assert {answer.status for _, answer in answered} == {Status.SUCCESS}
    assert values(bucket) == dict(pairs), "the last write of a key wins"
    assert under_way.repeated > 0
    assert bucket.connections_made > 1


@each_case("is_reconnecting", [False, True])
def test_an_expired_token_is_renewed_and_the_write_repeated(is_reconnecting: bool) -> None:
    bucket = FaultyBucket()
    bucket.refusals = {Status.AUTH_STALE: 0.2}
    pairs = [(f"key {number % 7}", str(number)) for number in range(40)]
    answered = list(windows(bucket, is_reconnecting=is_reconnecting).one_by_one(writes(pairs)))
    assert {answer.status for _, answer in answered} == {Status.SUCCESS}
    assert values(bucket) == dict(pairs)
    assert bucket.connections_made > 1


def test_a_lost_connection_is_raised_without_reconnecting() -> None:
    bucket = FaultyBucket(1, cuts=0.05)
    with pytest.raises(ConnectionLost, match="cut"):
        list(windows(bucket).one_by_one(writes([(str(n), "") for n in range(300)])))


def test_a_node_that_stays_away_is_an_error_after_the_limit() -> None:
    bucket = FaultyBucket()
    bucket.is_away = True
    with pytest.raises(ConnectionLost, match="nobody listens"):
        list(
            windows(bucket, is_reconnecting=True, retry_timeout_s=10.0, clock=_Clock()).one_by_one(writes([("a", "1")]))
        )


class _Clock:
    """Each look at it takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now

    def time_ns(self) -> int:
        return 0
