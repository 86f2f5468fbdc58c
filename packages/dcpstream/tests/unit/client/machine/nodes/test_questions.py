"""The rounds of an observation; how questions are sent and repeated is tested with the shells that use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dcpstream.client.machine.nodes.questions import Observer
from dcpstream.client.machine.resume import BranchState
from dcpstream.model import FailoverLog, NodeAddress, VbucketMap
from dcpstream.wire.messages.kv import GetAllVbSeqnos
from dcpstream.wire.values import encode_failover_log, encode_vbucket_seqnos

FOUND = VbucketMap(1, 1, "default", (NodeAddress("127.0.0.1", 11210),), ((0,), (0,)))
A, B = FailoverLog.of((0xA, 0)), FailoverLog.of((0xB, 5), (0xA, 0))


def observe(
    observer: Observer, script: Sequence[Mapping[Any, Any]], high_seqnos: Mapping[int, int] | None = None
) -> dict[int, BranchState]:
    """One observation whose rounds are answered by the script: logs, or high seqnos."""
    states: dict[int, BranchState] = {}
    answers = iter(script)
    for questions in observer.rounds([0, 1], FOUND, states, high_seqnos):
        given = next(answers)
        for question in questions:
            if isinstance(question.request, GetAllVbSeqnos):
                question.answer = encode_vbucket_seqnos((vbid, high) for vbid, high in given.items())
            elif question.vbid in given:
                question.answer = encode_failover_log(given[question.vbid])
    assert next(answers, None) is None, "a round was not asked for"
    return states


def test_the_log_of_one_observation_is_the_first_one_of_the_next() -> None:
    observer = Observer()
    assert observe(observer, [{0: A, 1: A}, {0: 7, 1: 8}, {0: A, 1: A}]) == {
        0: BranchState(0xA, 7, A),
        1: BranchState(0xA, 8, A),
    }
    states = observe(observer, [{0: 9, 1: 9}, {0: A, 1: A}])
    assert [state.high_seqno for state in states.values()] == [9, 9]


def test_a_branch_that_changed_is_observed_again() -> None:
    """The high seqno between two different logs may belong to either branch."""
    observer = Observer()
    observe(observer, [{0: A, 1: A}, {0: 7, 1: 8}, {0: A, 1: A}])
    states = observe(observer, [{0: 6, 1: 8}, {0: B, 1: A}, {0: 7, 1: 8}, {0: B}])
    assert states == {0: BranchState(0xB, 7, B), 1: BranchState(0xA, 8, A)}
    states = observe(observer, [{0: 6, 1: 8}, {0: A, 1: A}, {0: 7, 1: 8}, {0: B}])
    assert list(states) == [1], "changed a second time"


def test_known_high_seqnos_are_not_asked_again() -> None:
    observer = Observer()
    observe(observer, [{0: A, 1: A}, {0: 7, 1: 8}, {0: A, 1: A}])
    states = observe(observer, [{0: A, 1: A}], {0: 9, 1: 9})
    assert [state.high_seqno for state in states.values()] == [9, 9]


def test_known_high_seqnos_are_asked_again_after_a_first_log_and_after_another_branch() -> None:
    """They are older than the log that they would have to follow."""
    observer = Observer()
    states = observe(observer, [{0: A, 1: A}, {0: 8, 1: 8}, {0: A, 1: A}], {0: 7, 1: 7})
    assert [state.high_seqno for state in states.values()] == [8, 8]
    states = observe(observer, [{0: B, 1: A}, {0: 7, 1: 8}, {0: B}], {0: 6, 1: 8})
    assert states == {0: BranchState(0xB, 7, B), 1: BranchState(0xA, 8, A)}


def test_a_vbucket_without_an_answer_is_left_out() -> None:
    observer = Observer()
    assert list(observe(observer, [{0: A}, {0: 7, 1: 8}, {0: A}])) == [0]
    assert list(observe(observer, [{1: A}, {1: 8}, {0: A, 1: A}])) == [1]
