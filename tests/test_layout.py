"""Unit tests mirror the modules: `packages/dcpstream-node/tests/unit/store/test_metadata.py` tests `packages/dcpstream-node/src/dcpstream_node/store/metadata.py`."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
UNIT = ROOT / "tests" / "unit"

HOMES = {
    "bench": ROOT / "lab" / "bench",
    "chaos": ROOT / "lab" / "chaos",
    "demo": ROOT / "examples" / "demo" / "dcpstream_demo",
    "fuzz": ROOT / "lab" / "fuzz",
    "fixtures": ROOT / "tests" / "fixtures",
    "interop": ROOT / "lab" / "interop",
    "kit": ROOT / "tests" / "kit",
    "tools": ROOT / "lab" / "tools",
}
"""Folders whose modules lie outside the package."""

EXCEPTIONS = {
    "pages of the documentation, and the package as a reader of the README meets it": [
        "docs/*",
    ],
    "recorded conversations and published frames, through several modules": [
        "client/test_recorded.py",
        "client/test_recorded_conversations.py",
        "columnar/test_recordings.py",
        "protocol/producer/test_recorded.py",
        "wire/test_pages.py",
        "wire/test_recordings.py",
    ],
    "scripts and generators as they are called": [
        "lab/tools/test_reference_pages.py",
        "lab/tools/test_setup_scripts.py",
    ],
    "one behaviour of several modules": [
        "client/machine/reader/test_reader_collections.py",
        "node/engine/handlers/test_quiet.py",
        "node/engine/test_compression.py",
        "spark/test_batch_plans.py",
        "spark/test_pushdown.py",
        "node/engine/test_damage.py",
        "node/engine/test_manifest_steps.py",
        "node/engine/test_walks.py",
        "protocol/consumer/test_durability.py",
        "spark/test_planner_model.py",
        "store/test_format.py",
        "store/test_prepares.py",
    ],
    "rules of the whole package, and of these tests": [
        "cli/test_consistency.py",
        "test_layout.py",
        "test_sans_io.py",
    ],
}
"""Reason → tests that have no module of their own."""

TESTS = sorted(path.relative_to(UNIT) for path in UNIT.rglob("test_*.py"))


def is_excepted(path: Path) -> bool:
    return any(fnmatch(path.as_posix(), pattern) for patterns in EXCEPTIONS.values() for pattern in patterns)


def is_mirror(path: Path) -> bool:
    """Whether there is a module or a package of this name."""
    first, name = path.parts[0], path.stem.removeprefix("test_")
    home = HOMES[first].joinpath(*path.parts[1:-1]) if first in HOMES else ROOT / "src" / "dcpstream" / path.parent
    module = home / (f"{name}.py" if name != "init" else "__init__.py")
    return module.is_file() or (home / name / "__init__.py").is_file()


def test_every_unit_test_has_its_module() -> None:
    alone = [str(path) for path in TESTS if not is_excepted(path) and not is_mirror(path)]
    assert alone == [], "rename these tests as the modules are named, or say here why they have none"


def test_no_exception_is_stale() -> None:
    patterns = [pattern for group in EXCEPTIONS.values() for pattern in group]
    assert [pattern for pattern in patterns if not any(fnmatch(path.as_posix(), pattern) for path in TESTS)] == []
    assert [str(path) for path in TESTS if is_excepted(path) and is_mirror(path)] == []
