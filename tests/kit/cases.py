"""Tables of cases that one test goes through."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

goes_on_after_failures = False
"""True: a test tries the cases after one that fails, too. The rules on a server show everything that differs."""


def each_case(
    names: str | Sequence[str], cases: Iterable[Any], ids: Iterable[str] | Callable[[Any], object] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `pytest.mark.parametrize`, in one test: for cases that take less than a test of their own would.

    The cases share the test's fixtures, so it is for tests whose fixtures no case changes. A failure names its case.
    """
    split = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [_values(case, is_alone=len(split) == 1) for case in cases]
    assert table, "a test without cases proves nothing"
    labels = ["-".join(str(ids(value)) for value in case) for case in table] if callable(ids) else list(ids or ())

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def all_cases(*args: Any, **kwargs: Any) -> None:
            errors: list[BaseException] = []
            for number, values in enumerate(table):
                case = dict(zip(split, values, strict=True))
                try:
                    test(*args, **kwargs, **case)
                except BaseException as error:
                    error.add_note(f"in case {labels[number] if labels else number}: {case}")
                    if not goes_on_after_failures or isinstance(error, KeyboardInterrupt):
                        raise
                    errors.append(error)
            if errors:
                errors.sort(key=lambda error: not isinstance(error, Exception))  # what decides nothing comes last
                for other in errors[1:]:
                    if isinstance(other, Exception):
                        errors[0].add_note(f"{str(other).splitlines()[:1]}: {' '.join(other.__notes__)}")
                raise errors[0]

        assert not inspect.iscoroutinefunction(test), "the cases of a coroutine are tests of their own"
        signature = inspect.signature(test)
        given = [one for name, one in signature.parameters.items() if name not in split]
        all_cases.__signature__ = signature.replace(parameters=given)  # type: ignore[attr-defined]
        return all_cases

    return decorate


def _values(case: Any, *, is_alone: bool) -> tuple[Any, ...]:
    if type(case).__name__ == "ParameterSet":
        assert not case.marks, "a case with marks is a test of its own"
        return tuple(case.values)
    return (case,) if is_alone else tuple(case)
