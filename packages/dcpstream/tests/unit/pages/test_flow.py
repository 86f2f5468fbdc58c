"""Pictures of flows: boxes and the arrows between them."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from dcpstream.pages.flow import NAMED_ARROWS_MAX, TITLE_CHARS_MAX, Arrow, Stage, chain, shortened, sides


def texts(picture: str) -> list[str]:
    return ["".join(found.itertext()) for found in ET.fromstring(picture).iter("text")]


def ends(picture: str) -> list[tuple[int, int]]:
    """The two ends of each line, in pixels from above."""
    return [(int(y), int(to)) for y, to in re.findall(r'd="M0 (\d+)C.*? 98 (\d+)"', picture)]


def test_each_arrow_has_a_place_of_its_own_at_both_boxes() -> None:
    arrows = [Arrow(1, 0, 5, "five", "late", is_late=True), Arrow(0, 0, 10, "ten", "-"), Arrow(0, 1, 10, "also", "-")]
    picture = sides(("from", "to"), ["<a>", "b"], ["c", "d"], arrows)
    assert texts(picture) == ["from", "to", "<a>", "ten", "also", "b", "five", "c", "-", "late", "d", "-"]
    begins, arrivals = zip(*ends(picture), strict=True)  # the late one comes last, on top of the others
    assert len(set(begins)) == len(set(arrivals)) == 3
    assert begins[0] < begins[1] < begins[2], "by source"
    assert arrivals[0] < arrivals[2] < arrivals[1], "by target"
    widths = re.findall(r'class="arrow( late)?" stroke-width="(.*?)"', picture)
    assert widths == [("", "6.0"), ("", "6.0"), (" late", "3.8")]


def test_a_picture_of_many_arrows_leaves_their_texts_to_the_table() -> None:
    def picture(count: int) -> str:
        return sides(("from", "to"), ["a"], ["b"], [Arrow(0, 0, 1, f"x{at}", f"y{at}") for at in range(count)])

    assert "x0" in picture(NAMED_ARROWS_MAX)
    assert "x0" not in picture(NAMED_ARROWS_MAX + 1)
    assert len(ends(picture(NAMED_ARROWS_MAX + 1))) == NAMED_ARROWS_MAX + 1
    assert ET.fromstring(sides(("from", "to"), ["a"], ["b"], [])).get("role") == "img"


def test_a_chain_shows_its_parts_in_order_each_with_what_it_waits_for() -> None:
    picture = chain([Stage("bucket", "3"), Stage("tables", "2", "1 <behind>", is_late=True), Stage("live", "2", "-")])
    assert texts(picture) == ["bucket", "3", "1 <behind>", "tables", "2", "-", "live", "2"]
    assert re.findall(r'class="arrow(.*?)"', picture) == [" late", ""]


@pytest.mark.parametrize(
    ("title", "shown"),
    [
        ("127.0.0.1:65535", "127.0.0.1:65535"),
        ("[fd00:1234:5678::1]:65535", "[fd00:12…1]:65535"),
        ("dcpstream client of somebody", "dcpstrea…somebody"),
    ],
)
def test_a_long_title_keeps_both_ends(title: str, shown: str) -> None:
    assert shortened(title, TITLE_CHARS_MAX) == shown
    assert len(shown) <= TITLE_CHARS_MAX
