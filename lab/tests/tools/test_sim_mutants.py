"""Every planted bug fits the code as it is."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest

from lab.layout import source_of
from lab.tools.sim_mutants import MISSED, MUTANTS, ROOT, Misfit, Mutant, plant


def test_there_are_enough() -> None:
    assert len(MUTANTS) >= 20
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.name for mutant in MUTANTS} >= MISSED.keys()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_can_be_planted(mutant: Mutant, tmp_path: Path) -> None:
    original = source_of(mutant.path)
    path = tmp_path / original.relative_to(ROOT)
    path.parent.mkdir(parents=True)
    shutil.copy(original, path)
    before = path.read_text()
    plant(mutant, tmp_path)
    assert path.read_text() != before
    ast.parse(path.read_text())


def test_a_mutant_that_does_not_fit(tmp_path: Path) -> None:
    folder = tmp_path / "packages" / "dcpstream" / "src" / "dcpstream"
    folder.mkdir(parents=True)
    with pytest.raises(Misfit, match="no module"):
        plant(Mutant("one", "dcpstream/nothing.py", "", ""), tmp_path)
    (folder / "some.py").write_text("a = 1\na = 1\n")
    with pytest.raises(Misfit, match="2 times"):
        plant(Mutant("other", "dcpstream/some.py", "a = 1", "a = 2"), tmp_path)
