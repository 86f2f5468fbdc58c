"""Every planted bug fits the code as it is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.chaos.host import ROOT
from lab.chaos.mutants import MUTANTS, Misfit, Mutant, plant


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mutants")
    shutil.copytree(ROOT / "packages", path / "packages", ignore=shutil.ignore_patterns("__pycache__", "tests"))
    return path


@pytest.fixture
def source(copy: Path) -> Iterator[Path]:
    originals = {path: path.read_text() for path in copy.rglob("*.py")}
    yield copy
    for path, original in originals.items():
        if path.read_text() != original:
            path.write_text(original)


def test_there_are_enough() -> None:
    assert len(MUTANTS) >= 12
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_can_be_planted(source: Path, mutant: Mutant) -> None:
    plant(mutant, source)


def test_a_mutant_that_does_not_fit(source: Path) -> None:
    with pytest.raises(Misfit, match="nothing_like_it"):
        plant(Mutant("one", "dcpstream.errors", "nothing_like_it()\n", ("parquet",)), source)
    with pytest.raises(Misfit, match="no module"):
        plant(Mutant("other", "dcpstream.no module", "", ("parquet",)), source)
