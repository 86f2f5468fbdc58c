"""The results of the rules as text for people, as JSON for programs, and as JUnit XML for what shows test results."""

from __future__ import annotations

from collections import Counter
from typing import Any
from xml.etree import ElementTree as ET

from dcpstream_node.judge.report import fit
from dcpstream_node.rulebook import book
from dcpstream_node.rulebook.runner import DIFFERS, HELD, UNDECIDED, RulesVerdict, TestResult

DETAIL_LINES = 8
"""Lines of a difference that are printed."""
NEEDS = 8
"""Reasons for which tests decide nothing that are printed."""


def lines_of(verdict: RulesVerdict, shown: int, *, has_frames: bool) -> list[str]:
    """The rules that differ, and why; then what was not decidable.

    Args:
        shown: how many tests of a rule are printed.
        has_frames: whether the last frames before a difference are printed as well.
    """
    lines = []
    printed: set[str] = set()
    for rule_id, result in verdict.results().items():
        if result != DIFFERS:
            continue
        lines.append(f"{rule_id:12} differs  {book.rules()[rule_id].text}")
        failed = [test for test in verdict.of_rule(rule_id) if test.result == DIFFERS]
        for test in failed[:shown]:
            lines.append(f"    {test.name}")
            if test.name in printed:
                lines.append("        as above")
                continue
            printed.add(test.name)
            lines += _detail(test, has_frames=has_frames)
        if len(failed) > shown:
            lines.append(f"    … and {len(failed) - shown} more")
    undecided = [rule_id for rule_id, result in verdict.results().items() if result == UNDECIDED]
    if undecided:
        lines.append(f"not decidable from outside: {' '.join(undecided)}")
        needs = Counter(test.detail for test in verdict.tests if test.result == UNDECIDED).most_common()
        for need, count in needs[:NEEDS]:
            lines.append(f"    {count:4} {'test needs' if count == 1 else 'tests need'} {need}")
        if len(needs) > NEEDS:
            lines.append(f"    … and {len(needs) - NEEDS} more reasons")
    return lines


def _detail(test: TestResult, *, has_frames: bool) -> list[str]:
    text = test.detail.splitlines()
    lines = [f"        {line}" for line in text[:DETAIL_LINES]]
    if len(text) > DETAIL_LINES:
        lines.append(f"        … and {len(text) - DETAIL_LINES} more lines")
    if has_frames:
        lines += [f"        {frame}" for frame in test.frames]
    return lines


def summary(verdict: RulesVerdict) -> dict[str, int]:
    """The numbers of rules."""
    counts = Counter(verdict.results().values())
    partly = [
        rule_id
        for rule_id, result in verdict.results().items()
        if result == HELD and any(test.result == UNDECIDED for test in verdict.of_rule(rule_id))
    ]
    return {
        "rules": len(verdict.chosen),
        "held": counts[HELD],
        "held_in_part": len(partly),
        "differ": counts[DIFFERS],
        "not_decidable": counts[UNDECIDED],
        "tests": len(verdict.tests),
    }


def total_of(verdict: RulesVerdict) -> str:
    """One line about all."""
    counts = summary(verdict)
    return (
        f"{counts['rules']} rules: {counts['held']} held ({counts['held_in_part']} of them in a part of their tests), "
        f"{counts['differ']} differ, {counts['not_decidable']} not decidable from outside"
        + ("" if verdict.is_whole else f"; the run was interrupted after {len(verdict.tests)} tests")
    )


def as_dicts(verdict: RulesVerdict) -> list[dict[str, Any]]:
    """The rules for JSON, each with its tests and their frames."""
    return [
        {
            "rule": rule_id,
            "text": book.rules()[rule_id].text,
            "source": book.rules()[rule_id].source,
            "result": result,
            "tests": [
                {"test": test.name, "result": test.result, "detail": test.detail, "frames": list(test.frames)}
                for test in verdict.of_rule(rule_id)
            ],
        }
        for rule_id, result in verdict.results().items()
    ]


def junit(suite: str, verdict: RulesVerdict) -> bytes:
    """JUnit XML: a rule is a test case; one that is not decidable is skipped."""
    results = verdict.results()
    counts = summary(verdict)
    root = ET.Element(
        "testsuite",
        name=suite,
        tests=str(len(results)),
        failures=str(counts["differ"]),
        skipped=str(counts["not_decidable"]),
        errors="0",
    )
    for rule_id, result in results.items():
        case = ET.SubElement(root, "testcase", classname="dcpstream.rules", name=rule_id)
        tests = [test for test in verdict.of_rule(rule_id) if test.result == result]
        if result == DIFFERS:
            lines = [line for test in tests for line in (test.name, test.detail, *test.frames)]
            ET.SubElement(case, "failure", message=fit(book.rules()[rule_id].text)).text = fit("\n".join(lines))
        elif result == UNDECIDED:
            needs = dict.fromkeys(test.detail for test in tests)
            ET.SubElement(case, "skipped", message=fit("; ".join(needs) or "no test of it ran"))
    ET.indent(root)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True))
