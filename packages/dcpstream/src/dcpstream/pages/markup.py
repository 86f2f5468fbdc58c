"""Pieces of HTML: texts, numbers, states, tiles and tables.

Functions take and return HTML. Only `text` takes what a client or an administrator chose, and escapes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import NamedTuple
from urllib.parse import quote

NONE = '<span class="muted" aria-label="none">&ndash;</span>'
"""In a cell without a value."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_KIB = 1024
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


class Cell(NamedTuple):
    """A cell of a table.

    Attributes:
        html: what is shown.
        value: what the table is sorted by; empty: by the text that is shown.
    """

    html: str
    value: float | str = ""


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        name: its head.
        is_number: whether its cells are numbers, which stand at the right.
        is_sortable: whether its head is a button that sorts.
    """

    name: str
    is_number: bool = False
    is_sortable: bool = True


def heads(*names: str) -> tuple[Column, ...]:
    """The columns of a table by name; a `#` before the name is for numbers, a `-` for a head that does not sort."""
    return tuple(
        Column(name.lstrip("#-"), is_number=name.startswith("#"), is_sortable=not name.startswith("-"))
        for name in names
    )


class Row(NamedTuple):
    """A row of a table.

    Attributes:
        key: unique in the table, and the same when the page is loaded again.
        cells: one for each column; the first names the row.
    """

    key: str
    cells: Sequence[Cell | str]


def text(value: object) -> str:
    """A text that may have been chosen by anybody."""
    return escape(str(value))


def path(*parts: str) -> str:
    """A path of the management port, its parts quoted."""
    return escape("/" + "/".join(quote(part, safe="") for part in parts))


def link(href: str, html: str) -> str:
    """A link to a path that `path` made."""
    return f'<a href="{href}">{html}</a>'


def number(value: int) -> Cell:
    """A number with separators."""
    return Cell(f"{value:,}", value)


def size(value: int) -> Cell:
    """A number of bytes."""
    amount = float(value)
    for unit in _UNITS:
        if amount < _KIB or unit == _UNITS[-1]:
            break
        amount /= _KIB
    digits = 0 if unit == "B" or amount >= 100 else 1
    return Cell(f"{amount:,.{digits}f} {unit}", value)


def duration(seconds: float) -> str:
    """A time in its two largest units."""
    whole = int(seconds)
    if whole >= _DAY:
        return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"
    if whole >= _HOUR:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _MINUTE} min {whole % _MINUTE} s" if whole >= _MINUTE else f"{whole} s"


def moment(unix_s: int) -> str:
    """A moment, in UTC; the script writes it in the browser's time."""
    shown = datetime.fromtimestamp(unix_s, UTC)
    return f'<time data-unix="{unix_s}">{shown:%Y-%m-%d %H:%M:%S} UTC</time>'


def plural(count: int, noun: str, nouns: str = "") -> str:
    """A number and its noun; `nouns` is the plural of one that takes more than an s."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def small(html: str) -> str:
    """A second line in a cell."""
    return f'<span class="small">{html}</span>'


def state(name: str, kind: str = "") -> str:
    """A state with its mark; `kind` is empty for a good one, or `warning`, `critical`, `idle`."""
    return f'<span class="state {kind}">{text(name)}</span>'


def counter(key: str, count: int) -> str:
    """The place of a rate: what the count grew by in a second since the page was loaded last."""
    return f'<span class="rate" data-key="{text(key)}" data-count="{count}">{NONE}</span>'


def node_name(host: str, mgmt_port: int) -> str:
    """A node, which may listen on any address of its machine."""
    return text(f"{host}:{mgmt_port}" if host else f"port {mgmt_port}")


def meter(share: float, label: str, *, is_critical: bool = False) -> str:
    """A bar that is filled to a share of 1."""
    width = min(100.0, max(0.0, 100 * share))
    shown = max(1.0, width) if share > 0 else 0.0
    return (
        f'<svg class="meter{" full" if is_critical else ""}" viewBox="0 0 100 6" preserveAspectRatio="none" role="img" '
        f'aria-label="{text(label)}"><rect width="100" height="6" class="track"/>'
        f'<rect width="{shown:.1f}" height="6" class="fill"/></svg>'
    )


def tiles(found: Iterable[tuple[str, str, str]]) -> str:
    """Figures side by side: label, value, and a line below."""
    cells = "".join(
        f'<div class="tile"><dt>{label}</dt><dd class="value">{value}</dd><dd class="more">{more}</dd></div>'
        for label, value, more in found
    )
    return f'<dl class="tiles">{cells}</dl>'


def section(ident: str, title: str, html: str, *, note: str = "") -> str:
    """A part of a page with its heading."""
    more = f'<div class="note">{note}</div>' if note else ""
    return f'<section id="{ident}" aria-labelledby="{ident}-h"><h2 id="{ident}-h">{title}</h2>{more}{html}</section>'


def empty(html: str) -> str:
    """Instead of a table without rows."""
    return f'<p class="none">{html}</p>'


def table(
    ident: str, title: str, columns: Sequence[Column], rows: Sequence[Row], nothing: str, *, note: str = ""
) -> str:
    """A section with a table; the script lets people sort and filter it.

    Args:
        nothing: shown instead if there is no row.
    """
    if not rows:
        return section(ident, title, empty(nothing), note=note)
    heads = "".join(
        f'<th scope="col" role="columnheader"{_mark(column)}{"" if column.is_sortable else " data-plain"}>'
        f"{column.name}</th>"
        for column in columns
    )
    body = "".join(_row(columns, row) for row in rows)
    content = (
        f'<div class="scroll" role="group" tabindex="0" aria-labelledby="{ident}-h"><table role="table" '
        f'aria-labelledby="{ident}-h"><thead role="rowgroup"><tr role="row">{heads}</tr></thead>'
        f'<tbody role="rowgroup">{body}</tbody></table></div>'
    )
    return section(ident, title, content, note=note)


def _row(columns: Sequence[Column], row: Row) -> str:
    cells = []
    for index, (column, given) in enumerate(zip(columns, row.cells, strict=True)):
        cell = given if isinstance(given, Cell) else Cell(given)
        sorted_by = f' data-value="{text(cell.value)}"' if cell.value != "" else ""
        if index:
            label = f' data-label="{column.name}"' if column.name else ""
            cells.append(f'<td role="cell"{_mark(column)}{sorted_by}{label}><div>{cell.html}</div></td>')
        else:
            cells.append(f'<th scope="row" role="rowheader" class="name"{sorted_by}><div>{cell.html}</div></th>')
    return f'<tr role="row" data-key="{text(row.key)}">{"".join(cells)}</tr>'


def _mark(column: Column) -> str:
    return ' class="number"' if column.is_number else ""
