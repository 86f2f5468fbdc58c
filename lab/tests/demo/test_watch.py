from __future__ import annotations

import json
from pathlib import Path

from dcpstream.model import FailoverEntry, FailoverLog, StreamOffset
from dcpstream_demo.watch import CheckpointWatch, Committed, History, NodeSeqnos, Sample, ahead_of
from dcpstream_spark.source.offsets import SourceOffset, VbucketOffset


def at(vbuuid: int, seqno: int) -> StreamOffset:
    return StreamOffset(vbuuid, seqno, seqno, seqno)


def log(*entries: tuple[int, int]) -> FailoverLog:
    return FailoverLog(tuple(FailoverEntry(vbuuid, seqno) for vbuuid, seqno in entries))


def write_batch(directory: Path, batch: int, seqnos: dict[int, int], *, committed: bool) -> None:
    for name in ("offsets", "commits"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    offset = SourceOffset("b", None, {vbid: VbucketOffset(at(9, seqno)) for vbid, seqno in seqnos.items()})
    text = "\n".join(["v1", "{}", json.dumps(offset.to_json())])
    (directory / "offsets" / str(batch)).write_text(text, encoding="utf-8")
    (directory / "offsets" / f".{batch}.crc").write_bytes(b"")
    if committed:
        (directory / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}', encoding="utf-8")


def test_nothing_is_committed_before_the_first_batch(tmp_path: Path) -> None:
    watch = CheckpointWatch(tmp_path / "checkpoint", "b")
    assert watch.look() == Committed()
    write_batch(tmp_path / "checkpoint", 0, {0: 5}, committed=False)
    assert watch.look() == Committed(-1, is_batch_open=True)


def test_committed_positions_are_those_of_the_last_committed_batch(tmp_path: Path) -> None:
    watch = CheckpointWatch(tmp_path, "b")
    for batch in range(11):
        write_batch(tmp_path, batch, {0: batch, 1: 2 * batch}, committed=True)
    write_batch(tmp_path, 11, {0: 99, 1: 99}, committed=False)
    found = watch.look()
    assert (found.batch_id, found.is_batch_open, found.total) == (10, True, 30)
    assert found.positions[1] == at(9, 20)


def test_tables_are_ahead_where_they_hold_more_than_the_node_kept() -> None:
    committed = Committed(3, positions={0: at(1, 10), 1: at(1, 5), 2: at(1, 7)})
    assert ahead_of(committed, {0: 8, 1: 5}) == {0: 2}


def test_all_is_there_only_on_history_that_the_node_knows() -> None:
    node = {0: NodeSeqnos(2, 12, 12)}
    new_branch = {0: log((2, 8), (1, 0))}
    assert Committed(3, positions={0: at(2, 12)}).has_all_of(node, new_branch)
    assert not Committed(3, positions={0: at(2, 11)}).has_all_of(node, new_branch), "something is missing"
    assert not Committed(3, positions={0: at(1, 20)}).has_all_of(node, new_branch), "void history may be longer"
    assert not Committed(3, positions={}).has_all_of(node, new_branch)
    assert not Committed(3, is_batch_open=True, positions={0: at(2, 12)}).has_all_of(node, new_branch)
    # Nothing was written since the restart: the position is still one of the old branch, and good.
    assert Committed(3, positions={0: at(1, 8)}).has_all_of({0: NodeSeqnos(2, 8, 8)}, new_branch)
    assert Committed(3, positions={0: StreamOffset.ZERO}).has_all_of({0: NodeSeqnos(2, 0, 0)}, {0: log((2, 0))})


def test_lag_is_how_long_ago_the_node_was_where_the_tables_are() -> None:
    history = History()
    for time, high, tables in [(0.0, 10, 0), (1.0, 20, 10), (2.0, 30, 20), (3.0, 30, 30)]:
        history.add(Sample(time, high, high, tables))
    assert history.lags_s() == [(0.0, 0.0), (1.0, 0.0), (2.0, 0.0), (3.0, 0.0)]
    history.add(Sample(4.0, 40, 40, 30))
    history.add(Sample(9.0, 50, 50, 30))
    assert history.lags_s()[-2:] == [(4.0, 0.0), (9.0, 5.0)]


def test_lag_after_a_rollback_counts_only_what_the_node_still_has() -> None:
    history = History()
    history.add(Sample(0.0, 100, 100, 100))
    history.add(Sample(1.0, 100, None, 100))
    history.add(Sample(2.0, 100, 60, 0))
    history.add(Sample(5.0, 100, 80, 0))
    history.add(Sample(6.0, 100, 80, 80))
    assert history.lags_s() == [(0.0, 0.0), (1.0, 0.0), (2.0, 0.0), (5.0, 3.0), (6.0, 0.0)]


def test_rates_are_taken_over_a_window_and_never_negative() -> None:
    history = History()
    for second in range(6):
        history.add(Sample(float(second), 100 * second, 100 * second, 0 if second == 5 else 50 * second))
    rates = history.rates(window_s=2.0)
    assert rates[2] == (3.0, 100.0, 50.0)
    assert rates[-1][2] == 0.0, "a rollback is no negative rate"
