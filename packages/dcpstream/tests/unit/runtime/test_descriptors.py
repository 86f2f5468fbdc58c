"""The limit of open files."""

from __future__ import annotations

import resource

import pytest

from dcpstream.runtime.descriptors import OTHER_DESCRIPTORS, allow_descriptors

WANTED = 1000 + OTHER_DESCRIPTORS


@pytest.mark.parametrize(
    ("soft", "hard", "then"),
    [
        (1024, 100_000, WANTED),
        (1024, 1100, 1100),
        (1024, resource.RLIM_INFINITY, WANTED),
        (5000, 5000, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)
def test_the_limit_rises_as_far_as_needed_and_allowed(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, then: int | None
) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))
    assert allow_descriptors(1000) == (then or WANTED)
    assert given == ([] if then is None else [(then, hard)])
