"""Verdicts as text for people, as JSON for programs, and as JUnit XML for what shows test results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree as ET

from dcpstream_node.judge.comparison import Difference
from dcpstream_node.judge.playing import Verdict

SHOWN = 8
"""Differences of a scenario that are printed, unless the user wants another number."""
TEXT_MAX = 240
"""Characters of a frame's description that are printed."""
HEX_MAX = 320
"""Characters of a frame's bytes that are printed."""
_XML_UNFIT = {code: "\N{REPLACEMENT CHARACTER}" for code in range(32) if chr(code) not in "\t\n\r"}


def line_of(verdict: Verdict) -> str:
    """One line about a scenario."""
    comparison = verdict.comparison
    words = [f"{comparison.steps} steps", f"{comparison.equal} equal"]
    if comparison.failures:
        words.append(f"{len(comparison.failures)} different")
    if verdict.variations:
        words.append(f"{len(verdict.variations)} vary")
    if comparison.skipped:
        words.append(f"{comparison.skipped} optional ones refused")
    if verdict.attempt > 1:
        words.append(f"at attempt {verdict.attempt}")
    line = f"{verdict.scenario.name:28} {verdict.result:12} {', '.join(words)}"
    if not verdict.stopped:
        return line
    return f"{line}; stopped after {comparison.steps} of {verdict.steps_whole}: {verdict.stopped}"


def lines_of(verdict: Verdict, shown: int = SHOWN, *, has_bytes: bool = False) -> list[str]:
    """A scenario's line, and what differs and what varies below it."""
    failures = verdict.comparison.failures
    lines = [line_of(verdict)]
    for difference in failures[:shown]:
        lines += _difference(difference, has_bytes=has_bytes)
    if len(failures) > shown:
        lines.append(f"    … and {len(failures) - shown} more")
    for reason in dict.fromkeys(each.varies for each in verdict.variations):
        count = sum(each.varies == reason for each in verdict.variations)
        lines.append(f"    varies: {count} {'time' if count == 1 else 'times'}: {reason}")
    return lines


def _difference(difference: Difference, *, has_bytes: bool) -> list[str]:
    lines = [f"    {difference.connection}: {difference.kind}"]
    rows = (
        ("request", difference.request, difference.request_hex),
        ("expected", difference.expected, difference.expected_hex),
        ("got", difference.got, difference.got_hex),
    )
    for name, text, frame in rows:
        if text:
            lines.append(f"        {name + ':':10}{_short(text, TEXT_MAX)}")
        if has_bytes and frame:
            lines.append(f"        {'':10}{_short(frame, HEX_MAX)}")
    if difference.detail:
        lines.append(f"        {'differ:':10}{_short(difference.detail, 2 * TEXT_MAX)}")
    return lines


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def total_of(verdicts: Sequence[Verdict]) -> str:
    """One line about all."""
    counts = summary(verdicts)
    words = [f"{counts['steps']:,} steps", f"{counts['equal']:,} equal", f"{counts['different']:,} different"]
    if counts["vary"]:
        words.append(f"{counts['vary']:,} vary")
    words += [f"{counts[name]} {text}" for name, text in _ENDS.items() if counts[name]]
    return f"{counts['scenarios']} scenarios: {', '.join(words)}"


_ENDS = {"equal_so_far": "stopped early", "left_out": "left out"}


def summary(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """The numbers of all."""
    comparisons = [each.comparison for each in verdicts]
    return {
        "scenarios": len(verdicts),
        "steps": sum(each.steps for each in comparisons),
        "equal": sum(each.equal for each in comparisons),
        "different": sum(len(each.failures) for each in comparisons),
        "vary": sum(len(each.variations) for each in verdicts),
        "equal_so_far": sum(each.result == "equal so far" for each in verdicts),
        "left_out": sum(each.result == "left out" for each in verdicts),
    }


def as_dict(verdict: Verdict) -> dict[str, Any]:
    """A verdict for JSON; with all differences and their frames."""
    comparison = verdict.comparison
    return {
        "scenario": verdict.scenario.name,
        "about": verdict.scenario.title,
        "result": verdict.result,
        "seconds": round(verdict.seconds, 3),
        "steps": comparison.steps,
        "steps_whole": verdict.steps_whole,
        "setup": comparison.setup,
        "equal": comparison.equal,
        "different": len(comparison.failures),
        "optional_refused": comparison.skipped,
        "stopped": verdict.stopped,
        "attempt": verdict.attempt,
        "differences": [asdict(each) for each in comparison.differences],
    }


def junit(suite: str, verdicts: Iterable[Verdict]) -> bytes:
    """JUnit XML: a scenario is a test case; what varies, and where it stopped, is its output."""
    found = list(verdicts)
    root = ET.Element(
        "testsuite",
        name=suite,
        tests=str(len(found)),
        failures=str(sum(each.result == "differs" for each in found)),
        skipped=str(sum(each.result == "left out" for each in found)),
        errors="0",
        time=f"{sum(each.seconds for each in found):.3f}",
    )
    for verdict in found:
        name = verdict.scenario.name
        case = ET.SubElement(root, "testcase", classname="dcpstream.judge", name=name, time=f"{verdict.seconds:.3f}")
        if verdict.result == "differs":
            text = "\n".join(lines_of(verdict, len(verdict.comparison.failures), has_bytes=True))
            ET.SubElement(case, "failure", message=fit(line_of(verdict))).text = fit(text)
        elif verdict.result == "left out":
            ET.SubElement(case, "skipped", message=fit(verdict.stopped))
        elif verdict.stopped or verdict.variations:
            ET.SubElement(case, "system-out").text = fit("\n".join(lines_of(verdict)))
    ET.indent(root)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True))


def fit(text: str) -> str:
    """The text without characters that XML cannot have."""
    return text.translate(_XML_UNFIT)
