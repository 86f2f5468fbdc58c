"""Every planted bug fits the code as it is."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest

from lab.tools.sim_mutants import MISSED, MUTANTS, ROOT, Misfit, Mutant, plant


def test_there_are_enough() -> None:
    assert len(MUTANTS) >= 20
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.name for mutant in MUTANTS} >= MISSED.keys()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_can_be_planted(mutant: Mutant, tmp_path: Path) -> None:
    path = tmp_path / "dcpstream" / mutant.path
    path.parent.mkdir(parents=True)
    shutil.copy(ROOT / "src" / "dcpstream" / mutant.path, path)
    before = path.read_text()
    plant(mutant, tmp_path)
    assert path.read_text() != before
    ast.parse(path.read_text())


def test_a_mutant_that_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(Misfit, match="no module"):
        plant(Mutant("one", "nothing.py", "", ""), tmp_path)
    (tmp_path / "dcpstream").mkdir()
    (tmp_path / "dcpstream" / "some.py").write_text("a = 1\na = 1\n")
    with pytest.raises(Misfit, match="2 times"):
        plant(Mutant("other", "dcpstream/some.py".removeprefix("dcpstream/"), "a = 1", "a = 2"), tmp_path)
