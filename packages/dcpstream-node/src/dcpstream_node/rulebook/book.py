"""The rules and the folder with their tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dcpstream.errors import ConfigError

SHIPPED = Path(__file__).parent / "shipped"
"""The copy in a wheel; see hatch_build.py."""
CHECKOUT = Path(__file__).parents[5]
TABLES = ("tests/data/recorded/rules.tsv", "tests/conformance/kv_rules.tsv")
TESTS = "tests/conformance"
RELEASE = "rules_release"
"""The attribute of pytest's configuration by which the tests know the release of the server they run on."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A testable rule.

    Attributes:
        rule_id: as `REQ-24`; those of key-value and vbucket commands begin with `KV-`.
        text: the rule.
        source: where it is from.
    """

    rule_id: str
    text: str
    source: str


def folder() -> Path:
    """The folder that has the tests, under `TESTS`. Raises: ConfigError: this installation has none."""
    for place in (SHIPPED, CHECKOUT):
        if (place / TESTS).is_dir():
            return place
    message = f"this installation has no tests of the rules: neither {SHIPPED} nor a checkout. Install the wheel again"
    raise ConfigError("--rules", None, "the tests of the rules", message=message)


@cache
def rules() -> Mapping[str, Rule]:
    """All rules by their ids, in the order of the tables."""
    found: dict[str, Rule] = {}
    for table in TABLES:
        for row in (folder() / table).read_text("utf-8").splitlines():
            if row:
                rule_id, _area, text, source = row.split("\t")
                found[rule_id] = Rule(rule_id, text, source)
    return found


def choose(beginnings: Sequence[str]) -> tuple[str, ...]:
    """The ids that begin with one of these words, in any case; all without words.

    Raises:
        ConfigError: no id begins with one of the words.
    """
    words = [word.upper() for word in beginnings]
    for word in words:
        if not any(rule_id.startswith(word) for rule_id in rules()):
            areas = ", ".join(dict.fromkeys(rule_id.rpartition("-")[0] for rule_id in rules()))
            raise ConfigError("RULE", word, f"a rule's id, or its beginning: one of {areas}")
    return tuple(rule_id for rule_id in rules() if not words or rule_id.startswith(tuple(words)))


def files(rule_ids: Sequence[str]) -> list[Path]:
    """The files with tests that name one of these rules."""
    found = []
    for path in sorted((folder() / TESTS).glob("test_*.py")):
        text = path.read_text("utf-8")
        if any(f'"{rule_id}"' in text for rule_id in rule_ids):
            found.append(path)
    return found
