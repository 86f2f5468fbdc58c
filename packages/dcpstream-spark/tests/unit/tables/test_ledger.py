"""The ledger of several tables, also after a death in the middle of a file."""

from __future__ import annotations

from pathlib import Path

from dcpstream_spark.tables.ledger import Entries, Entry, Ledger
from dcpstream_spark.tables.small_files import LocalFiles


def test_the_newest_file_that_is_whole_counts(tmp_path: Path) -> None:
    ledger = Ledger(lambda: LocalFiles(tmp_path / "tables"))
    assert ledger.read() == Entries()
    one = Entries("a", None).with_places({("s", "c"): "s.c"})
    ledger.save(one)
    assert ledger.read() == one
    two = Entries("a", 7, {"s.c": Entry((("s", "c"),), 7, 10), "t": Entry((("s", "d"), ("s", "e")), None, 0)})
    ledger.save(two)
    assert ledger.read() == two
    (tmp_path / "tables" / "2").write_bytes(two.to_bytes()[:20])
    (tmp_path / "tables" / "notes.txt").write_text("of somebody")
    assert ledger.read() == two
    ledger.save(one)
    assert ledger.read() == one
    # It has replaced the damaged one.
    assert (tmp_path / "tables" / "2").read_bytes() == one.to_bytes()


def test_the_file_is_replaced(tmp_path: Path) -> None:
    ledger = Ledger(lambda: LocalFiles(tmp_path))
    for folded in range(3):
        ledger.save(Entries("a", folded))
        assert [one.name for one in tmp_path.iterdir()] == ["0"]
    assert ledger.read() == Entries("a", 2)


def test_collections_join_a_table() -> None:
    entries = Entries().with_places({("s", "b"): "s", ("s", "a"): "s", ("t", "a"): "t"})
    assert entries.tables == {"s": Entry((("s", "a"), ("s", "b"))), "t": Entry((("t", "a"),))}
    assert entries.with_places({("s", "a"): "s"}) == entries
