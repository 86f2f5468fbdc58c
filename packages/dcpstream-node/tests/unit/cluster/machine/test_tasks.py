"""Procedures: values, errors, several outcomes at once, time."""

from __future__ import annotations

import pytest

from dcpstream_node.cluster.machine.tasks import Outcome, Procedure, Tasks


def test_a_procedure_gets_the_value_that_it_waits_for():
    tasks, outcome = Tasks(), Outcome[int]()

    def double() -> Procedure[int]:
        return 2 * (yield outcome)

    task = tasks.start(double())
    tasks.run()
    assert not task.is_done
    outcome.succeed(21)
    tasks.run()
    assert task.value == 42


def test_an_error_is_raised_where_the_procedure_waits():
    tasks, outcome = Tasks(), Outcome[int]()

    def careful() -> Procedure[str]:
        try:
            yield outcome
        except ValueError as error:
            return str(error)
        return "nothing"

    def careless() -> Procedure[None]:
        yield outcome

    first, second = tasks.start(careful()), tasks.start(careless())
    outcome.fail(ValueError("no"))
    tasks.run()
    assert first.value == "no"
    with pytest.raises(ValueError, match="no"):
        second.value  # noqa: B018 - it raises


def test_several_outcomes_are_waited_for_together():
    tasks = Tasks()
    outcomes = [Outcome[int](), Outcome.of(2), Outcome[int]()]

    def add() -> Procedure[int]:
        return sum((yield outcomes))

    task = tasks.start(add())
    tasks.run()
    outcomes[2].succeed(3)
    tasks.run()
    assert not task.is_done
    outcomes[0].succeed(1)
    tasks.run()
    assert task.value == 6


def test_nothing_to_wait_for_is_no_reason_to_wait():
    tasks = Tasks()

    def go() -> Procedure[list[int]]:
        return (yield [])

    task = tasks.start(go())
    tasks.run()
    assert task.value == []


def test_an_error_among_several_is_raised_when_all_are_there():
    tasks, late = Tasks(), Outcome[int]()

    def both() -> Procedure[None]:
        yield [Outcome.failed(ValueError("early")), late]

    task = tasks.start(both())
    tasks.run()
    assert not task.is_done
    late.succeed(1)
    tasks.run()
    assert isinstance(task.error, ValueError)


def test_procedures_wait_for_each_other():
    tasks = Tasks()

    def inner() -> Procedure[int]:
        yield tasks.pause(1.0)
        return 7

    def outer() -> Procedure[int]:
        first = yield tasks.start(inner())
        second = yield from inner()
        return int(first + second)

    task = tasks.start(outer())
    for now in (0.0, 1.0, 1.5, 2.0):
        tasks.now = now
        tasks.handle_timeout()
        tasks.run()
        assert task.is_done == (now == 2.0)
    assert task.value == 14
    assert tasks.next_timeout() is None


def test_the_first_end_of_an_outcome_counts():
    outcome = Outcome[int]()
    outcome.succeed(1)
    outcome.fail(ValueError("late"))
    outcome.succeed(2)
    assert outcome.value == 1


def test_quietly_there_is_none_in_place_of_an_error():
    assert Outcome[int].failed(ValueError("no")).quietly().value is None
    assert Outcome.of(3).quietly().value == 3


def test_within_a_time_an_outcome_comes_or_is_an_error():
    tasks = Tasks()
    early, late = Outcome[int](), Outcome[int]()
    in_time, too_late = tasks.within(early, 1.0, "this"), tasks.within(late, 1.0, "that")
    early.succeed(1)
    tasks.now = 1.0
    tasks.handle_timeout()
    late.succeed(2)
    assert in_time.value == 1
    assert str(too_late.error) == "that took more than 1 s"
    assert isinstance(tasks.within(Outcome[int].failed(ValueError("no")), 1.0, "x").error, ValueError)
