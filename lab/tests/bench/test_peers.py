from __future__ import annotations

import sys

import pytest

from lab.bench import peers
from lab.bench.peers import Peer, Spent, drained, plot, table, written

OURS, OTHER = Peer("ours", "1", ("a",)), Peer("other", "2", ("b",))
SPENT = {"ours": Spent([1.0, 3.0, 2.0], [5.0, 5.0, 5.0], [0.5, 0.5, 0.5]), "other": Spent([7.0], [4.0], [1.0])}


def test_the_table_has_medians_and_what_a_start_costs() -> None:
    lines = table([OURS, OTHER], SPENT, ["java (no JDK)"])
    assert "| ours | 1 | 2.00 | 1.50 | 1.0 | 5.00 | 1.00 to 3.00 |" in lines
    assert "| other | 2 | 7.00 | 6.00 | 4.0 | 4.00 | 7.00 to 7.00 |" in lines
    assert lines[-1] == "Left out: java (no JDK)."


def test_the_page_keeps_the_rest_of_its_text() -> None:
    page = f"before\n\n{peers.FIRST}\n\nold\n\n{peers.LAST}\n\nafter\n"
    assert written(page, ["new"]) == f"before\n\n{peers.FIRST}\n\nnew\n\n{peers.LAST}\n\nafter\n"


def test_the_plot_names_every_client() -> None:
    picture = plot([OURS, OTHER], SPENT)
    assert picture.startswith("<svg")
    assert ">other</text>" in picture
    assert ">7.00 s</text>" in picture


@pytest.mark.parametrize(("program", "is_right"), [("print(argv[2])", True), ("print(3)", False), ("exit(1)", False)])
def test_a_client_must_bring_every_document(program: str, is_right: bool) -> None:
    peer = Peer("some", "1", (sys.executable, "-c", "from sys import argv, exit; " + program))
    if is_right:
        cpu, wall = drained(peer, "couchbase://x", 5)
        assert cpu > 0
        assert wall > 0
    else:
        with pytest.raises(RuntimeError, match="some: exit status"):
            drained(peer, "couchbase://x", 5)
