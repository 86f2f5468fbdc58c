"""Tests of reading a program's lines, and of carrying out its orders."""

from __future__ import annotations

import sys
from functools import partial

import pytest

from dcpstream_node.embedded import Node
from lab.interop import running

ASKING = """
print("ok first", flush=True)
print("DO restart", flush=True)
assert input() == "DONE"
print("ok second")
print("OK 2 parts")
"""


def test_parts_pass_or_fail() -> None:
    lines = ["ok a", "FAIL b: why: because", "FAIL c: known", "ok d", "noise", "FAIL 2 of 4 parts"]
    outcome = running.judged(lines, 1)
    assert (outcome.passed, outcome.failed) == (["a", "d"], {"b": "why: because", "c": "known"})
    assert not outcome.is_fine
    assert running.judged(["ok a", "OK 1 part"], 0).is_fine


@pytest.mark.parametrize(
    ("lines", "code", "trouble"),
    [
        (["ok a"], 0, "it ended with 0"),
        ([], 3, "it ended with 3"),
        (["ok a", "OK 1 parts"], -11, "it was ended by SIGSEGV"),
        (["FAIL to begin: no node"], 1, "to begin: no node"),
        (["OK 0 parts"], 0, ""),
    ],
)
def test_a_program_that_does_not_end_well_is_not_fine(lines: list[str], code: int, trouble: str) -> None:
    outcome = running.judged(lines, code)
    assert outcome.trouble == trouble
    assert not outcome.is_fine


def test_a_program_may_have_its_node_started_again() -> None:
    with running.served(options={"vbuckets": 1}) as node:
        before = node.port, node.mgmt_port, node.engine
        outcome = running.run([sys.executable, "-c", ASKING], partial(running.order, node))
        assert outcome.is_fine, outcome.output
        assert outcome.passed == ["first", "second"]
        assert (node.port, node.mgmt_port) == before[:2]
        assert node.engine is not before[2]


def test_a_program_that_dies_is_reported_with_its_last_words() -> None:
    code = "import os, sys; print('ok a', flush=True); print('the end', file=sys.stderr, flush=True); os.abort()"
    outcome = running.run([sys.executable, "-c", code], lambda action: None)
    assert not outcome.is_fine
    assert outcome.trouble == "it was ended by SIGABRT: the end"


def test_an_unknown_order_is_an_error() -> None:
    with Node(vbuckets=1) as node, pytest.raises(ValueError, match="restart or crash"):
        running.order(node, "explode")
