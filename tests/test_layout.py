"""Unit tests mirror the modules: a package's tests/unit/store/test_metadata.py tests its module store/metadata.py."""

from __future__ import annotations

import importlib
from fnmatch import fnmatch
from pathlib import Path

from lab.layout import PACKAGES, ROOT, modules

LAB = ROOT / "lab" / "tests"

MIRRORS = {
    **{ROOT / "packages" / folder / "tests" / "unit": ROOT / "packages" / folder / "src" / name
       for folder, name in PACKAGES.items()},
    LAB / "bench": ROOT / "lab" / "bench",
    LAB / "chaos": ROOT / "lab" / "chaos",
    LAB / "demo": ROOT / "examples" / "demo" / "dcpstream_demo",
    LAB / "fuzz": ROOT / "lab" / "fuzz",
    LAB / "fixtures": ROOT / "tests" / "fixtures",
    LAB / "interop": ROOT / "lab" / "interop",
    LAB / "kit": ROOT / "tests" / "kit",
    LAB / "simulation": ROOT / "lab" / "simulation",
    LAB / "tools": ROOT / "lab" / "tools",
}  # fmt: skip
"""A folder of unit tests → the folder of the modules that they test."""

EXCEPTIONS = {
    "recorded conversations and published frames, through several modules": [
        "client/test_recorded.py",
        "client/test_recorded_conversations.py",
        "arrow/test_recordings.py",
        "dcp/producer/test_recorded.py",
        "wire/test_pages.py",
        "wire/test_recordings.py",
    ],
    "scripts and generators as they are called": [
        "test_reference_pages.py",
        "test_setup_scripts.py",
    ],
    "the build of the kernel, whose file lies beside the project file of the core": [
        "test_build_kernel.py",
    ],
    "one behaviour of several modules": [
        "client/machine/reader/test_reader_collections.py",
        "engine/access/test_system_collections.py",
        "engine/test_compression.py",
        "engine/test_config_only.py",
        "engine/test_damage.py",
        "engine/test_manifest_steps.py",
        "engine/test_release.py",
        "engine/test_walks.py",
        "engine/handlers/test_get_ex.py",
        "dcp/consumer/test_durability.py",
        "source/test_batch_plans.py",
        "source/test_planner_model.py",
        "source/test_pushdown.py",
        "store/test_format.py",
        "store/test_prepares.py",
        "tables/test_clock_jumps.py",
        "tables/test_full_disk.py",
    ],
    "the kernel beside plain Python": [
        "arrow/test_native_rows.py",
        "arrow/test_rows.py",
        "client/machine/connection/test_decoders.py",
    ],
    "rules of the whole package": [
        "cli/test_consistency.py",
    ],
}
"""Reason → tests that have no module of their own."""

TESTS = sorted(
    (home, path.relative_to(folder)) for folder, home in MIRRORS.items() for path in folder.rglob("test_*.py")
)


def is_excepted(path: Path) -> bool:
    return any(fnmatch(path.as_posix(), pattern) for patterns in EXCEPTIONS.values() for pattern in patterns)


def is_mirror(home: Path, path: Path) -> bool:
    """Whether there is a module or a package of this name."""
    folder, name = home / path.parent, path.stem.removeprefix("test_")
    module = folder / (f"{name}.py" if name != "init" else "__init__.py")
    return module.is_file() or (folder / name / "__init__.py").is_file()


def test_every_unit_test_has_its_module() -> None:
    alone = [str(path) for home, path in TESTS if not is_excepted(path) and not is_mirror(home, path)]
    assert alone == [], "rename these tests as the modules are named, or say here why they have none"


def test_no_exception_is_stale() -> None:
    patterns = [pattern for group in EXCEPTIONS.values() for pattern in group]
    assert [pattern for pattern in patterns if not any(fnmatch(path.as_posix(), pattern) for _, path in TESTS)] == []
    assert [str(path) for home, path in TESTS if is_excepted(path) and is_mirror(home, path)] == []


def test_every_public_name_of_a_package_can_be_loaded() -> None:
    fronts = [
        ".".join(path.parent.relative_to(folder).parts)
        for folder, path in modules()
        if path.name == "__init__.py" and "lazy_names(" in path.read_text(encoding="utf-8")
    ]
    assert len(fronts) > 3
    for package in map(importlib.import_module, fronts):
        assert set(package.__all__) <= set(dir(package))
        assert all(getattr(package, name) is not None for name in package.__all__)
