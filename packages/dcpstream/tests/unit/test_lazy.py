"""Names of packages that are loaded when they are first used."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

import dcpstream
import dcpstream.client
from dcpstream.lazy import lazy_names
from tests.kit.cases import each_case


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("lazy_package")
    monkeypatch.setitem(sys.modules, "lazy_package", module)
    return module


def test_a_name_is_loaded_once(package: ModuleType) -> None:
    load, names = lazy_names("lazy_package", {"fractions": ["Fraction"]})
    assert "Fraction" in names()
    assert not hasattr(package, "Fraction")
    found = load("Fraction")
    assert package.__dict__["Fraction"] is found


def test_another_name_is_the_usual_error(package: ModuleType) -> None:
    load, _ = lazy_names(package.__name__, {})
    with pytest.raises(AttributeError, match="module 'lazy_package' has no attribute 'other'"):
        load("other")


@each_case("module", [dcpstream, dcpstream.client])
def test_every_public_name_can_be_loaded(module: ModuleType) -> None:
    assert all(getattr(module, name) is not None for name in module.__all__)
    assert set(module.__all__) <= set(dir(module))
