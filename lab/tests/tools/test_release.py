"""A tag is released only if everything that names a version agrees; the workflows call what exists."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from lab.layout import PACKAGES, ROOT
from lab.tools.release import notes_of, problems_of


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files of this checkout that name a version, with a dated section of 0.1.0."""
    for project, package in PACKAGES.items():
        for part in ("pyproject.toml", f"src/{package}/__init__.py"):
            place = tmp_path / "packages" / project / part
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / "packages" / project / part, place)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "changelog.md").write_text(
        "# Changelog\n\n## 0.2.0, unreleased\n\nLater.\n\n## 0.1.0, 2026-12-01\n\nFirst version.\n\n### Node\n\n- x\n"
    )
    for init in tmp_path.glob("packages/*/src/*/__init__.py"):
        init.write_text(re.sub(r'__version__ = "[^"]+"', '__version__ = "0.1.0"', init.read_text()))
    return tmp_path


def test_a_tag_that_agrees_is_released_with_its_section(checkout: Path) -> None:
    assert problems_of("v0.1.0", checkout) == []
    assert notes_of("0.1.0", checkout) == "First version.\n\n### Node\n\n- x\n"


def test_each_disagreement_is_named(checkout: Path) -> None:
    init = checkout / "packages/dcpstream-node/src/dcpstream_node/__init__.py"
    init.write_text(init.read_text().replace('"0.1.0"', '"0.1.1"'))
    (problem,) = problems_of("v0.1.0", checkout)
    assert problem == "packages/dcpstream-node/src/dcpstream_node/__init__.py has version 0.1.1, the tag 0.1.0"


def test_packages_must_need_each_other_in_the_released_version(checkout: Path) -> None:
    for init in checkout.glob("packages/*/src/*/__init__.py"):
        init.write_text(init.read_text().replace('"0.1.0"', '"0.2.0"'))
    found = problems_of("v0.2.0", checkout)
    assert "dcpstream-node needs dcpstream>=0.1,<0.2; with version 0.2.0 it must need dcpstream>=0.2,<0.3" in found
    assert "docs/changelog.md: 0.2.0 has no date such as 2026-11-28, but 'unreleased'" in found


@pytest.mark.parametrize("tag", ["0.1.0", "v0.1", "v0.1.0-1", "release"])
def test_a_tag_of_another_form_is_refused(checkout: Path, tag: str) -> None:
    assert problems_of(tag, checkout) == [f"the tag is {tag!r}; a release has a tag such as v0.1.0 or v0.2.0rc1"]


def test_a_version_that_the_changelog_lacks_is_refused(checkout: Path) -> None:
    assert "docs/changelog.md has no section '## 0.3.0, DATE'" in problems_of("v0.3.0", checkout)


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_what_exists(path: Path) -> None:
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    text = path.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= targets
    for file in re.findall(r"(?:lab|packages|requirements)/[\w./-]*\w", text):
        assert (ROOT / file).exists() or list(ROOT.glob(file + "*")), file
    for name, job in jobs.items():
        if "uses" in job:
            assert (ROOT / job["uses"]).is_file()
        else:
            assert job["timeout-minutes"] > 0, name
            assert all("@" in step["uses"] for step in job["steps"] if "uses" in step), name


def test_the_supported_pythons_are_those_that_are_tested_on_each_push() -> None:
    ci = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    tested = set(ci["jobs"]["test"]["strategy"]["matrix"]["python"])
    for project in PACKAGES:
        text = (ROOT / "packages" / project / "pyproject.toml").read_text(encoding="utf-8")
        assert set(re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)) == tested
