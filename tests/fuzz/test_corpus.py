"""Every kept input of the fuzzer goes through its target again: what once broke a promise never does so anew."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator

import pytest

from lab.fuzz import corpus
from lab.fuzz.targets import NAMES, quiet
from tests.kit.cases import each_case


@pytest.fixture(autouse=True)
def quiet_logs() -> Iterator[None]:
    root = logging.getLogger()
    before = list(root.handlers)
    quiet()
    yield
    root.handlers[:] = before


@each_case("name", NAMES)
def test_kept_inputs(name: str) -> None:
    pytest.importorskip("pyarrow", reason="columns need pyarrow")
    target = importlib.import_module(f"lab.fuzz.targets.{name}")
    inputs = corpus.load(name)
    assert inputs
    for data, reason in inputs.items():
        try:
            target.check(data)
        except Exception as error:
            raise AssertionError(f"{data!r} ({reason or 'no finding before'})") from error


def test_the_corpus_is_small_and_of_known_targets() -> None:
    files = sorted(corpus.FOLDER.iterdir())
    assert [path.stem for path in files] == sorted(NAMES)
    assert sum(path.stat().st_size for path in files) <= corpus.MAX_BYTES
