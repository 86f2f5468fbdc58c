"""Run the tests that name rules of the protocol, and count the rules that pass, fail or have no test, by area.

    python lab/tools/conformance.py            run the tests that name rules, print, write docs/reference/conformance.md
    python lab/tools/conformance.py --page     run nothing; write the page from the tests' markers
    python lab/tools/conformance.py --check    run nothing; check the page against the tests' markers

The last line printed is `conformance: <n> of <all> covered or explained, <m> failing` for the rules of the protocol
(tests/data/recorded/rules.tsv). The line before it counts the explained ones. The line before that has the key-value
rules (tests/conformance/kv_rules.tsv): `key-value rules: <n> of <all> covered or explained, <m> failing`.
Exit status 0 only if no covered rule of either table fails.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from lab.tools.pages import publish  # noqa: E402
from lab.tools.patience import patient  # noqa: E402
from tests.kit import recorded, rule_coverage  # noqa: E402
from tests.kit import rules as rulebook  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "conformance.md"
WORKERS = 2
RUN_TIMEOUT_S = patient(600)


@dataclass(slots=True)
class Tally:
    """Rules of one area."""

    passes: int = 0
    fails: int = 0
    explained: int = 0
    missing: int = 0

    @property
    def all(self) -> int:
        """The number of rules."""
        return self.passes + self.fails + self.explained + self.missing

    def __iadd__(self, other: Tally) -> Tally:
        """Add another area."""
        self.passes += other.passes
        self.fails += other.fails
        self.explained += other.explained
        self.missing += other.missing
        return self


def tally(rules: Iterable[recorded.Rule], covered: Iterable[str], failing: Iterable[str]) -> dict[str, Tally]:
    """Area → its tally; areas in the order of the table of rules."""
    covered, failing, explained = set(covered), set(failing), rule_coverage.explained()
    areas: dict[str, Tally] = {}
    for item in rules:
        area = areas.setdefault(item.area, Tally())
        if item.rule_id in failing:
            area.fails += 1
        elif item.rule_id in covered:
            area.passes += 1
        elif item.rule_id in explained:
            area.explained += 1
        else:
            area.missing += 1
    return areas


def total(areas: Mapping[str, Tally]) -> Tally:
    """All areas together."""
    whole = Tally()
    for area in areas.values():
        whole += area
    return whole


def result(name: str, areas: Mapping[str, Tally]) -> str:
    """The figures of one table in a line."""
    whole = total(areas)
    done = whole.passes + whole.fails + whole.explained
    return f"{name}: {done} of {whole.all} covered or explained, {whole.fails} failing"


def summary(areas: Mapping[str, Tally], kv_areas: Mapping[str, Tally]) -> list[str]:
    """The three closing lines."""
    explained = total(areas).explained + total(kv_areas).explained
    return [
        result("key-value rules", kv_areas),
        f"explained: {explained} (at most {rule_coverage.EXPLAINED_MAX})",
        result("conformance", areas),
    ]


def table(areas: Mapping[str, Tally]) -> list[str]:
    """The figures by area, as a table in Markdown, which is also readable on a terminal."""
    rows = [(name, area) for name, area in areas.items()] + [("all", total(areas))]
    width = max(len(name) for name, _ in rows)
    lines = [
        f"| {'area'.ljust(width)} | rules | passes | fails | explained | not covered |",
        f"| {'-' * width} | ----: | -----: | ----: | --------: | ----------: |",
    ]
    lines += [
        f"| {name.ljust(width)} | {area.all:5} | {area.passes:6} | {area.fails:5} | {area.explained:9}"
        f" | {area.missing:11} |"
        for name, area in rows
    ]
    return lines


def page(tests: Mapping[str, list[str]], failing: Iterable[str] = ()) -> str:
    """The page of the reference."""
    failing = set(failing)
    areas = tally(recorded.rules(), tests, failing)
    kv_areas = tally(rulebook.kv_rules(), tests, failing)
    explained, corrections = rule_coverage.explained(), rule_coverage.corrections()
    lines = [
        "# Conformance",
        "",
        "<!-- Written by lab/tools/conformance.py (make conformance); do not edit. -->",
        "",
        "Every rule of the protocol as this project understands it, and the tests that fail if it is broken.",
        "The rules are in `tests/data/recorded/rules.tsv`; the tests name them with the marker `@rule`.",
        "",
        *table(areas),
        "",
        "In addition to the protocol there are the key-value and vbucket commands of the node. Their rules are in",
        "`tests/conformance/kv_rules.tsv`; they say what a 7.2 server answers.",
        "",
        *table(kv_areas),
        "",
        *(f"- {line}." for line in summary(areas, kv_areas)),
        "",
    ]
    if explained:
        lines += ["## Explained", "", "Rules that cannot apply here.", ""]
        lines += [f"- **{rule_id}**: {note.reason} ({note.evidence})" for rule_id, note in sorted(explained.items())]
        lines.append("")
    if corrections:
        lines += ["## Corrected", "", "Rules that a recording of the real server contradicts; the recording holds.", ""]
        lines += [f"- **{rule_id}**: {note.reason} ({note.evidence})" for rule_id, note in sorted(corrections.items())]
        lines.append("")
    lines += ["## Rules and their tests", "", *listing(recorded.rules(), areas, tests, failing)]
    lines += ["## Key-value rules and their tests", "", *listing(rulebook.kv_rules(), kv_areas, tests, failing)]
    return "\n".join(lines)


def listing(
    rules: Sequence[recorded.Rule], areas: Iterable[str], tests: Mapping[str, list[str]], failing: set[str]
) -> list[str]:
    """The rules of a table by area, each with its tests."""
    explained, corrections = rule_coverage.explained(), rule_coverage.corrections()
    lines: list[str] = []
    for name in areas:
        lines += [f"### {name}", "", "| rule | says | tests |", "| --- | --- | --- |"]
        for item in rules:
            if item.area == name:
                marks = [f"`{test}`" for test in tests.get(item.rule_id, [])]
                if not marks:
                    marks = ["explained" if item.rule_id in explained else "**none**"]
                if item.rule_id in failing:
                    marks.append("**failing**")
                star = " (corrected)" if item.rule_id in corrections else ""
                lines.append(f"| {item.rule_id}{star} | {escaped(item.text)} | {'<br>'.join(marks)} |")
        lines.append("")
    return lines


def escaped(text: str) -> str:
    """The text, escaped for a table in Markdown."""
    for sign in "\\|<>*_[]":
        text = text.replace(sign, f"\\{sign}")
    return text


def run_tests() -> tuple[dict[str, dict[str, str]], str]:
    """(rule → test → outcome, pytest's output) of all tests that name rules."""
    with tempfile.TemporaryDirectory() as directory:
        results = Path(directory) / "rules.json"
        paths = sorted({test.partition("::")[0] for tests in rule_coverage.tests_by_rule().values() for test in tests})
        command = [sys.executable, "-m", "pytest", "-q", "-n", str(WORKERS), "-m", "rule"]
        command += ["-p", "tests.fixtures.rule_results", "--rule-results", str(results), "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, *paths],
            cwd=ROOT, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False,
        )  # fmt: skip
        if not results.exists() or done.returncode not in (0, 1):
            sys.exit(f"the tests did not run:\n{done.stdout}\n{done.stderr}")
        return json.loads(results.read_text(encoding="utf-8")), done.stdout


def main() -> int:
    """Run and write, or only check."""
    by_rule = rule_coverage.tests_by_rule()
    if "--check" in sys.argv or "--page" in sys.argv:
        return publish({PAGE: page(by_rule)}, "make conformance")
    results, output = run_tests()
    failing = {rule_id for rule_id, tests in results.items() if "failed" in tests.values()}
    skipped = sorted(rule_id for rule_id, tests in results.items() if set(tests.values()) == {"skipped"})
    if failing:
        print(output)
    publish({PAGE: page(by_rule, failing)})
    areas, kv_areas = tally(recorded.rules(), by_rule, failing), tally(rulebook.kv_rules(), by_rule, failing)
    print("\n".join([*table(areas), "", *table(kv_areas), ""]))
    missing = [item.rule_id for item in (*recorded.rules(), *rulebook.kv_rules()) if item.rule_id not in by_rule]
    missing = [rule_id for rule_id in missing if rule_id not in rule_coverage.explained()]
    for name, ids in (("failing", sorted(failing)), ("not covered", missing), ("skipped here", skipped)):
        if ids:
            print(f"{name}: {' '.join(ids)}")
    print("\n".join(summary(areas, kv_areas)))
    return 1 if failing else 0


if __name__ == "__main__":
    sys.exit(main())
