"""Pieces of HTML: nothing that anybody chose becomes markup."""

from __future__ import annotations

from dcpstream.pages import markup
from tests.kit.cases import each_case


@each_case(
    ("value", "shown"), [(0, "0 B"), (1023, "1,023 B"), (1024, "1.0 KiB"), (150_000, "146 KiB"), (1 << 50, "1,024 TiB")]
)
def test_sizes(value: int, shown: str) -> None:
    assert markup.size(value) == (shown, value)


@each_case(("seconds", "shown"), [(0.9, "0 s"), (61, "1 min 1 s"), (3660, "1 h 1 min"), (90_000, "1 d 1 h")])
def test_durations(seconds: float, shown: str) -> None:
    assert markup.duration(seconds) == shown


def test_a_table_names_rows_and_cells_for_screen_readers_and_narrow_screens() -> None:
    columns = (markup.Column("Bucket"), markup.Column("Items", is_number=True))
    html = markup.table("b", "Buckets", columns, [markup.Row("k", ("<i>x</i>", markup.number(1234)))], "none")
    assert '<th scope="row" role="rowheader" class="name"><div><i>x</i></div></th>' in html
    assert '<td role="cell" class="number" data-value="1234" data-label="Items"><div>1,234</div></td>' in html
    assert 'aria-labelledby="b-h"' in html
    assert markup.table("b", "Buckets", columns, [], "Nothing.").count("Nothing.") == 1
