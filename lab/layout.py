"""Places in the repository that tools, benches and tests need."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"dcpstream": "dcpstream", "dcpstream-node": "dcpstream_node", "dcpstream-spark": "dcpstream_spark"}
"""Folder under packages/ → the package that it holds."""


def sources(root: Path = ROOT) -> tuple[Path, ...]:
    """The folders that make the packages importable, in a checkout or in a copy of its packages/."""
    return tuple(root / "packages" / folder / "src" for folder in PACKAGES)


def folders_of_tests(root: Path = ROOT) -> tuple[Path, ...]:
    """The folders with tests of the packages, and the one with those that cross them."""
    return (*(root / "packages" / folder / "tests" for folder in PACKAGES), root / "tests")


def source_of(path: str, root: Path = ROOT) -> Path:
    """A file of a package, by its path as code imports it: dcpstream_node/store/disk.py."""
    (found,) = (folder / path for folder in sources(root) if (folder / path.partition("/")[0]).is_dir())
    return found


def modules(root: Path = ROOT) -> Iterator[tuple[Path, Path]]:
    """Each Python file of the packages: (the folder of `sources`, the file)."""
    for folder in sources(root):
        for path in sorted(folder.rglob("*.py")):
            yield folder, path


def python_path(root: Path = ROOT, *more: Path) -> str:
    """PYTHONPATH for a process that uses the packages, lab and tests of this checkout or of a copy of it.

    Args:
        root: of the packages; lab and tests come from `more`, or else from there too.
        more: folders that come after the packages.
    """
    return os.pathsep.join(map(str, (*sources(root), *(more or (root,)))))
