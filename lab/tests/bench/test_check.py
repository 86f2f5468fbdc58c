from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lab.bench import check

EXPECTED = {"decode.64.of_memcpy": 0.4, "decode.256.of_memcpy": 0.8, "decode.1024.of_memcpy": 0.9}


def measuring(*runs: dict[str, float]) -> tuple[check.Measure, list[str]]:
    """A measurement that yields these ratios, the last ones from then on, and the parts that were asked for."""
    asked: list[str] = []

    def measure(part: str) -> Mapping[str, Any]:
        asked.append(part)
        return {"ratios": runs[min(len(asked), len(runs)) - 1]}

    return measure, asked


@pytest.mark.parametrize(("value", "is_worse"), [(0.8, False), (0.7, False), (0.696, False), (0.69, True)])
def test_a_rate_may_lose_15_per_cent_of_cpu_time(value: float, is_worse: bool) -> None:
    measure, _ = measuring({**EXPECTED, "decode.256.of_memcpy": value})
    found, wrong = check.compare(["decode"], EXPECTED, measure)
    assert found["decode.256.of_memcpy"] == value
    assert bool(wrong) == is_worse


@pytest.mark.parametrize(("value", "is_worse"), [(3.0, False), (4.5, False), (4.7, True)])
def test_a_cost_may_grow_by_15_per_cent(value: float, is_worse: bool) -> None:
    names = check.COMPARED["over_socket"]
    measure, _ = measuring(dict.fromkeys(names, value))
    assert bool(check.compare(["over_socket"], dict.fromkeys(names, 4.0), measure)[1]) == is_worse


def test_the_best_of_three_counts() -> None:
    bad, good = {**EXPECTED, "decode.256.of_memcpy": 0.3}, {**EXPECTED, "decode.64.of_memcpy": 0.1}
    measure, asked = measuring(bad, good)
    assert check.compare(["decode"], EXPECTED, measure) == (EXPECTED, [])
    assert len(asked) == 2
    measure, asked = measuring(bad)
    wrong = check.compare(["decode"], EXPECTED, measure)[1]
    assert wrong == ["decode.256.of_memcpy: 0.3, expected 0.8: 167% more CPU time"]
    assert len(asked) == check.ATTEMPTS


def test_what_is_not_measured_is_wrong() -> None:
    found, wrong = check.compare(["ingest"], {}, lambda _: {"error": "it broke"})
    assert not found
    assert wrong == [f"{name}: not measured: it broke" for name in check.COMPARED["ingest"]]


def test_the_median_of_three_is_stored() -> None:
    lucky, slow, usual = ({**EXPECTED, "decode.256.of_memcpy": value} for value in (1.1, 0.5, 0.8))
    measure, asked = measuring(lucky, slow, usual)
    assert check.typical(["decode"], measure) == (EXPECTED, [])
    assert len(asked) == check.ATTEMPTS
    assert check.typical(["ingest"], measure)[1][0].endswith("not measured: the part does not report it")


def test_the_command_stores_and_compares(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ratios = dict(EXPECTED)
    monkeypatch.setattr(check, "run_part_in_child", lambda _part, _quick: {"ratios": ratios})
    path = tmp_path / "expected.json"
    arguments = ["--only", "decode", "--expected", str(path)]
    assert CliRunner().invoke(check.main, [*arguments, "--store"]).exit_code == 0
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert stored["ratios"] == EXPECTED
    assert stored["machine"]["cores"] >= 1
    assert CliRunner().invoke(check.main, arguments).exit_code == 0
    ratios["decode.64.of_memcpy"] = 0.2
    outcome = CliRunner().invoke(check.main, arguments)
    assert outcome.exit_code == 1
    assert "decode.64.of_memcpy: 0.2, expected 0.4: 100% more CPU time" in outcome.output


def test_every_compared_ratio_is_stored() -> None:
    stored = json.loads(check.EXPECTED.read_text(encoding="utf-8"))
    assert stored["machine"]["cpu"]
    assert set(stored["ratios"]) == {name for names in check.COMPARED.values() for name in names}
