"""Pictures of flows as SVG: boxes, and an arrow from each box to those that it feeds.

Widths are shares of the page's and heights are pixels, so texts keep their size on every screen. A picture is one image
for a screen reader; the table beside it has the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dcpstream.pages.markup import text

TITLE_CHARS_MAX = 17
"""Longest title of a box: what fits into two fifths of a screen of 360 pixels."""
NAMED_ARROWS_MAX = 60
"""Arrows up to which each has its texts and a width; with more, the picture would be longer than a few screens."""

_ROW, _BARE_ROW, _TITLE, _GAP, _TOP = 18, 4, 24, 10, 22
"""Pixels: height of an arrow's place at a box, with and without texts; of a title; between boxes; above them."""
_THIN, _THICK = 1.5, 6.0
"""Pixels: the least and the greatest width of a line."""


@dataclass(frozen=True, slots=True)
class Arrow:
    """A box that feeds another one.

    Attributes:
        source, target: numbers of the boxes.
        weight: its share of the line's width, against the heaviest arrow.
        before, after: texts at its ends.
        is_late: whether the target has not got everything.
    """

    source: int
    target: int
    weight: float
    before: str
    after: str
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """A box in a chain.

    Attributes:
        title: its name.
        fact: a line below.
        arrow: the text at the arrow that leads to it.
        is_late: whether it has not got everything.
    """

    title: str
    fact: str
    arrow: str = ""
    is_late: bool = False


def sides(names: tuple[str, str], sources: Sequence[str], targets: Sequence[str], arrows: Sequence[Arrow]) -> str:
    """Boxes that feed at the left, boxes that are fed at the right, and arrows between them.

    Args:
        names: of the two sides.
        sources, targets: titles of the boxes.
    """
    has_texts = len(arrows) <= NAMED_ARROWS_MAX
    row = _ROW if has_texts else _BARE_ROW
    by_source = sorted(range(len(arrows)), key=lambda at: (arrows[at].source, arrows[at].target))
    by_target = sorted(range(len(arrows)), key=lambda at: (arrows[at].target, arrows[at].source))
    left, begins, left_end = _column(sources, [(at, arrows[at].source, arrows[at].before) for at in by_source], row)
    right, ends, right_end = _column(targets, [(at, arrows[at].target, arrows[at].after) for at in by_target], row)
    height = max(left_end, right_end)
    top = max((arrow.weight for arrow in arrows), default=0.0) or 1.0
    lines, heads = [], []
    for at, arrow in sorted(enumerate(arrows), key=lambda item: item[1].is_late):  # those are drawn on top
        y, to = begins[at], ends[at]
        kind = " late" if arrow.is_late else ""
        width = _THIN + (_THICK - _THIN) * arrow.weight / top if has_texts else 1.0
        lines.append(f'<path class="arrow{kind}" stroke-width="{width:.1f}" d="M0 {y}C55 {y} 45 {to} 98 {to}"/>')
        if has_texts:
            heads.append(f'<path class="head{kind}" d="M-9 {to - 5}l9 5l-9 5z"/>')
    return _picture(
        f"{names[0]} at the left, {names[1]} at the right. The table has the numbers.",
        height,
        f'<text class="side" x="0" y="12">{text(names[0])}</text>'
        f'<text class="side" x="100%" y="12" text-anchor="end">{text(names[1])}</text>'
        f'<svg x="40%" width="18%" height="{height}" viewBox="0 0 100 {height}" preserveAspectRatio="none">'
        f"{''.join(lines)}</svg>"
        f'<svg width="40%" height="{height}">{left}</svg>'
        f'<svg x="58%" width="42%" height="{height}">{right}{"".join(heads)}</svg>',
    )


def _column(titles: Sequence[str], ports: Sequence[tuple[int, int, str]], row: int) -> tuple[str, dict[int, int], int]:
    """The boxes of one side, the middle of each arrow's place, and where the column ends.

    Args:
        ports: arrow, box and text, in the order of the boxes.
    """
    parts, places, y = [], {}, _TOP
    for box, title in enumerate(titles):
        own = [port for port in ports if port[1] == box]
        height = _TITLE + row * len(own) + 4
        parts.append(_box(y, height, shortened(title, TITLE_CHARS_MAX)))
        for index, (arrow, _, said) in enumerate(own):
            at = y + _TITLE + row * index
            places[arrow] = at + row // 2
            if row == _ROW:
                parts.append(f'<text x="9" y="{at + 13}">{text(said)}</text>')
        y += height + _GAP
    return "".join(parts), places, y - _GAP + 2


def chain(stages: Sequence[Stage]) -> str:
    """Boxes from top to bottom, each of which feeds the next."""
    parts, y = [], 1
    for stage in stages:
        if stage is not stages[0]:
            kind = " late" if stage.is_late else ""
            parts.append(
                f'<path class="arrow{kind}" stroke-width="2" d="M20 {y}v24"/>'
                f'<path class="head{kind}" d="M14.5 {y + 24}h11l-5.5 8z"/>'
                f'<text class="at{kind}" x="36" y="{y + 21}">{text(stage.arrow)}</text>'
            )
            y += 33
        parts.append(f'{_box(y, 46, stage.title)}<text x="9" y="{y + 37}">{text(stage.fact)}</text>')
        y += 46
    names = ", ".join(stage.title for stage in stages)
    return _picture(f"Each part feeds the next one: {names}. The table has the numbers.", y + 1, "".join(parts))


def with_table(picture: str, html: str) -> str:
    """A picture and its table side by side; on a narrow screen one below the other."""
    return f'<div class="beside"><div>{picture}</div><div>{html}</div></div>'


def shortened(title: str, chars: int) -> str:
    """A title, its middle left out if it is too long: hosts differ at the end, programs at the beginning."""
    if len(title) <= chars:
        return title
    return f"{title[: chars // 2]}…{title[-(chars - 1 - chars // 2) :]}"


def _box(y: int, height: int, title: str) -> str:
    return (
        f'<rect class="box" x="0" y="{y}" width="100%" height="{height}" rx="5"/>'
        f'<text class="name" x="9" y="{y + 17}">{text(title)}</text>'
    )


def _picture(about: str, height: int, content: str) -> str:
    return f'<svg class="flow" width="100%" height="{height}" role="img" aria-label="{text(about)}">{content}</svg>'
