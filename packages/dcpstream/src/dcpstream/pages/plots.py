"""Places of live plots. The script draws what it has seen since the browser's tab was opened."""

from __future__ import annotations

from dataclasses import dataclass

from dcpstream.pages.markup import text


@dataclass(frozen=True, slots=True)
class Series:
    """A rate over time.

    Attributes:
        title: of the plot.
        key: names the count in this page.
        count: the count that the rate is made of.
        is_bytes: whether it counts bytes.
    """

    title: str
    key: str
    count: int
    is_bytes: bool = False

    def marks(self) -> str:
        """The attributes that the script reads."""
        return f' data-count="{self.count}"{" data-bytes" if self.is_bytes else ""}'


@dataclass(frozen=True, slots=True)
class Level:
    """A value over time that is shown as it is.

    Attributes:
        title: of the plot.
        key: names the value in this page.
        value: now; None if it is not known.
    """

    title: str
    key: str
    value: int | None

    def marks(self) -> str:
        """The attributes that the script reads."""
        return "" if self.value is None else f' data-level="{self.value}"'


def plots(*places: Series | Level) -> str:
    """Plots side by side."""
    figures = "".join(
        f'<figure class="plot" data-key="plot-{text(each.key)}"{each.marks()}>'
        f'<figcaption>{text(each.title)}</figcaption><p class="now">{"&nbsp;" if each.marks() else "unknown"}</p>'
        "</figure>"
        for each in places
    )
    return f'<div class="plots">{figures}</div>'
