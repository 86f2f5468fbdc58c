from __future__ import annotations

import json
import multiprocessing
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lab.bench import steady
from lab.bench.steady import (
    Ages,
    Seen,
    changes_of,
    growth,
    line_through,
    percentile,
    series_of,
    status_numbers,
    summary,
)


def sample(minute: float, node_kb: int, **others: Any) -> dict[str, Any]:
    """A sample with two processes, as JSON would give it back."""
    usage = {"peak_kb": 200_000, "anonymous_kb": 1, "threads": 4, "descriptors": 20, "cpu_s": 3.0}
    return {
        "minute": minute,
        "load": 1.0,
        "changes": int(minute * 60),
        "processes": {"node": {"rss_kb": node_kb, **usage}, "batches": {"rss_kb": 100 * 1024, **usage}},
        "clients": {"batches": {"rows": {"mutation": 7}, "p50_ms": 2.0, "p99_ms": 9.0, "lost": 0}},
        "node": {"curr_items": 1000, "mem_used": 3 << 20, "ep_cache_size": 1 << 20},
        "directory": {".seg": 5 << 20, ".sqlite": 1 << 20},
        **others,
    }


def test_a_straight_rise_has_its_slope_and_no_error() -> None:
    line = line_through([1.0, 2.0, 3.0, 4.0], [10.0, 12.0, 14.0, 16.0])
    assert line is not None
    assert line.slope == pytest.approx(2.0)
    assert line.error == pytest.approx(0.0, abs=1e-9)
    assert line.middle == pytest.approx(13.0)
    assert line.is_growth


def test_the_error_of_unlike_neighbours_is_that_of_the_textbook() -> None:
    line = line_through([0.0, 1.0, 2.0, 3.0], [0.0, 3.0, 1.0, 4.0])
    assert line is not None
    # The residuals from 0.5 + x are -0.5, 1.5, -1.5, 0.5: a sum of squares of 5, two degrees of freedom, spread 5.
    assert (line.slope, line.error) == (pytest.approx(1.0), pytest.approx((5.0 / 2 / 5) ** 0.5))
    assert not line.is_growth


def test_neighbours_that_are_alike_make_the_error_larger() -> None:
    xs = [float(x) for x in range(24)]
    wave = [1.0 if x % 12 < 6 else -1.0 for x in range(24)]
    quick = [1.0 if x % 2 else -1.0 for x in range(24)]
    slow, fast = line_through(xs, wave), line_through(xs, quick)
    assert slow is not None
    assert fast is not None
    assert slow.error > 2 * fast.error


def test_a_constant_does_not_grow_and_neither_does_what_shrinks() -> None:
    constant = line_through([0.1, 0.2, 0.3, 0.4], [0.1 + 0.2] * 4)
    assert constant is not None
    assert (constant.slope, constant.error, constant.is_growth) == (0.0, 0.0, False)
    falling = line_through([1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0])
    assert falling is not None
    assert not falling.is_growth


def test_too_few_samples_have_no_line() -> None:
    assert line_through([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) is None
    assert growth([]) is None
    assert growth([(float(minute), 1.0) for minute in range(1, 7)]) is None


def test_growth_is_per_hour_and_looks_at_the_second_half_only() -> None:
    rising = [(float(minute), 100.0 + minute) for minute in range(1, 21)]
    line = growth(rising)
    assert line is not None
    assert line.slope == pytest.approx(60.0)
    settled = growth([(minute, min(value, 110.0)) for minute, value in rising])
    assert settled is not None
    assert settled.slope == 0.0


def test_a_value_is_json_of_the_size_with_its_burst_at_the_stamp() -> None:
    value = steady.value_of(123, 4567)
    assert len(value) == steady.VALUE_BYTES
    assert int(value[steady.STAMP]) == 4567
    assert json.loads(value)["document"] == 123


def test_changes_keep_to_the_documents_and_the_shares() -> None:
    lasting, expiring = changes_of(random.Random(1), 1000, 9, 10_000)
    kinds = Counter("deletion" if value is None else "update" for _, value in lasting)
    assert len(expiring) + len(lasting) == 10_000
    assert len(expiring) == pytest.approx(10_000 * steady.EXPIRE_SHARE, rel=0.15)
    assert kinds["deletion"] == pytest.approx(10_000 * steady.DELETE_SHARE, rel=0.15)
    assert all(value is not None for _, value in expiring)
    assert {key for key, _ in lasting + expiring} == {f"document-{number:08d}" for number in range(1000)}


def test_ages_count_from_the_acknowledgement_and_each_burst_once() -> None:
    ages = Ages()
    assert ages.between({1: 10.0, 2: 10.5}, {1: 10.25}, now=11.0) == [0.25]
    assert ages.between({3: 12.0}, {3: 11.9, 2: 11.5, 1: 12.0, 0: 5.0}, now=12.0) == [0.0, 1.0]
    assert ages.lost == 0


def test_a_burst_on_its_way_between_two_answers_is_not_lost() -> None:
    ages = Ages()
    assert ages.between({1: 10.0}, {1: 10.5, 2: 10.9}, now=11.0) == [0.5]
    assert ages.between({2: 10.8}, {}, now=12.0) == [pytest.approx(0.1)]
    assert ages.between({3: 13.0}, {2: 12.5}, now=200.0) == []
    assert ages.lost == 1


def test_a_burst_that_no_client_sees_is_lost() -> None:
    ages = Ages()
    ages.between({1: 10.0, 2: 90.0}, {}, now=100.0)
    assert ages.between({}, {}, now=10.0 + steady.FORGOTTEN_S + 1) == []
    assert ages.lost == 1
    assert ages.between({}, {1: 140.0, 2: 141.0}, now=141.0) == [51.0]


def test_percentiles_are_by_nearest_rank() -> None:
    values = [float(value) for value in range(100)]
    assert (percentile(values, 50), percentile(values, 99), percentile([5.0], 99)) == (50.0, 99.0, 5.0)
    assert percentile([], 50) is None


def test_a_client_answers_with_what_is_new() -> None:
    ours, theirs = multiprocessing.Pipe()
    seen = Seen()
    seen.note("mutation", [b"00000003", b"00000003"], 2)
    seen.note("deletion", [], 1)
    seen.answer(theirs)
    assert not ours.poll()
    for bursts in ({3}, set()):
        ours.send("answer")
        seen.answer(theirs)
        answer = ours.recv()
        assert set(answer["bursts"]) == bursts
        assert answer["changes"] == {"mutation": 2, "deletion": 1}


def test_the_kernel_says_what_a_process_takes() -> None:
    text = "Name:\tpython\nUmask:\t0022\nState:\tS (sleeping)\nVmHWM:\t   12345 kB\nThreads:\t3\nEmpty:\n"
    assert status_numbers(text) == {"Umask": 22, "VmHWM": 12345, "Threads": 3}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
def test_a_peak_starts_over_and_a_process_that_has_ended_is_left_out() -> None:
    mine = os.getpid()
    block = bytearray(64 << 20)
    del block
    before = steady.usages_of({"me": mine, "gone": 2**22 + 1})
    assert set(before) == {mine}
    assert before[mine].descriptors >= 3
    after = steady.usages_of({"me": mine})[mine]
    assert after.peak_kb < before[mine].peak_kb
    assert steady.parent_of(mine) == os.getppid()


def test_the_bytes_of_a_directory_are_by_suffix(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    for name, size in (("bucket/1.seg", 10), ("bucket/2.seg", 20), ("meta.sqlite", 5), ("lock", 1)):
        (tmp_path / name).write_bytes(bytes(size))
    assert steady.directory_bytes(tmp_path) == {".seg": 30, ".sqlite": 5, "lock": 1}


def test_every_series_has_a_row_with_its_verdict() -> None:
    samples = [sample(float(minute), (100 + minute) * 1024) for minute in range(1, 21)]
    del samples[0]["processes"]["batches"]  # a process that began later
    series = series_of(samples)
    assert series["node"][0] == (1.0, 101.0)
    assert series["batches"][0] == (2.0, 100.0)
    assert series["node's directory"][0] == (1.0, 6.0)
    assert series["node's index and buffers"][0] == (1.0, 2.0)
    lines = {line.split("  ")[0]: line for line in summary(samples).splitlines()}
    assert lines["node"].endswith("grows")
    assert "+60.00" in lines["node"]
    assert lines["batches"].endswith("constant")
    assert "p50 2.0 ms" in next(line for name, line in lines.items() if name.startswith("batches:"))
    assert "node 5.0%" in next(line for name, line in lines.items() if name.startswith("share"))


def test_a_minute_is_one_line() -> None:
    line = steady.minute_line(sample(3.0, 120 * 1024))
    assert "\n" not in line
    assert "node 120.0/195.3 batches 100.0/195.3" in line
    assert "6.0 MiB of data, 1,000 items; p50/p99 ms: batches 2.0/9.0; load 1.0" in line
