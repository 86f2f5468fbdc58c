"""Names of a package that are loaded when they are first used, so that importing the package is quick."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def lazy_names(
    package: str, names_in: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package whose names live elsewhere.

    Args:
        package: its name.
        names_in: module → the names that it has.
    """
    namespace = sys.modules[package].__dict__
    homes = {name: module for module, names in names_in.items() for name in names}

    def load(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home), name)
        namespace[name] = value
        return value

    return load, lambda: sorted({*namespace, *homes})
