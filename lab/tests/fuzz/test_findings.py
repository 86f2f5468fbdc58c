"""One finding for each place and kind of error."""

from __future__ import annotations

from pathlib import Path

from lab.fuzz.findings import Findings, signature_of


def caught(call: object) -> BaseException:
    try:
        call()  # type: ignore[operator]
    except Exception as error:  # noqa: BLE001 - it is what is looked at
        return error
    raise AssertionError("nothing was raised")


def deep(levels: int) -> None:
    if levels:
        deep(levels - 1)
    raise ValueError(levels)


def divide() -> float:
    return 1 / 0


def test_a_signature_distinguishes_places_and_kinds() -> None:
    first = signature_of(caught(lambda: deep(1)))
    assert first == signature_of(caught(lambda: deep(5)))
    assert first.startswith("ValueError-")
    assert signature_of(caught(divide)).startswith("ZeroDivisionError-")


def test_the_smallest_input_of_each_finding_is_kept(tmp_path: Path) -> None:
    findings = Findings(tmp_path)
    error = caught(divide)
    for data in (b"x" * 100, b"y" * 99, b"z" * 10, b"w" * 200):
        findings.add(data, error)
    findings.add(b"another", caught(lambda: deep(0)))
    (tmp_path / "timeout-1234").write_bytes(b"of libFuzzer")
    names = findings.names()
    assert len(names) == 3
    assert "timeout-1234" in names
    assert (tmp_path / f"{signature_of(error)}.input").read_bytes() == b"z" * 10
    assert "ZeroDivisionError: division by zero" in (tmp_path / f"{signature_of(error)}.txt").read_text()
