"""Places of live plots. The script draws the rates that it has seen since the browser's tab was opened."""

from __future__ import annotations

from dataclasses import dataclass

from dcpstream.node.http.ui.markup import text


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


def plots(*series: Series) -> str:
    """Plots side by side."""
    figures = "".join(
        f'<figure class="plot" data-plot="{text(each.key)}" data-key="plot-{text(each.key)}" '
        f'data-count="{each.count}"{" data-bytes" if each.is_bytes else ""}>'
        f'<figcaption>{text(each.title)}</figcaption><p class="now">&nbsp;</p></figure>'
        for each in series
    )
    return f'<div class="plots">{figures}</div>'
