"""The page about statistics names every group and every parameter, with its groups and its default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dcpstream.wire.release import NEWEST
from dcpstream_node.engine.bucket.parameters import CONFIG, DCP, FLUSH, PARAMETERS
from dcpstream_node.engine.stats.vbucket import PER_VBUCKET
from tests.kit.engine import Talker, engine_of

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "statistics.md").read_text(encoding="utf-8")
ROWS = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
GROUP_NAMES = {FLUSH: "flush", DCP: "dcp", CONFIG: "config"}


def groups() -> set[str]:
    """Names of groups on the page, without arguments."""
    found = {name for row in ROWS if len(row) == 2 for name in re.findall(r"`([^`]+)`", row[0])}
    return {re.sub(r" [\[N0].*| KEY.*", "", name) for name in found}


def test_every_group_about_vbuckets_is_there():
    assert {name.replace("diskinfo-detail", "diskinfo detail") for name in PER_VBUCKET} <= groups()


@pytest.mark.parametrize("group", sorted(groups()))
def test_every_group_on_the_page_is_answered(group):
    client = Talker(engine_of())
    client.set("k", b"v")
    argument = {"key": " k 0", "key-byid": " k 0 0x0", "dcp-vbtakeover": " 0"}.get(group, "")
    assert client.stats(group + argument)


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_every_parameter_is_there(name):
    (row,) = [row for row in ROWS if len(row) == 4 and f"`{name}`" in row[0]]
    assert row[1] == ", ".join(GROUP_NAMES[group] for group in PARAMETERS[name].groups)
    place = re.findall(r"`([^`]+)`", row[0]).index(name)
    default = row[2].split(", ")[place].replace("2 GiB", str(2 << 30))
    assert Talker(engine_of(release=NEWEST.name)).stats("config")[f"ep_{name}"] == default
