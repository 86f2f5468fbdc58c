"""Every page of the documentation stands in its navigation."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    named = re.findall(r"- (?:.+: )?(\S+\.md)$", navigation, re.MULTILINE)
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(named) == sorted(pages)


def test_building_the_documentation_shows_and_counts_warnings() -> None:
    recipe = next(
        line for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines() if "mkdocs build" in line
    )
    assert "--strict" in recipe
    assert "--quiet" not in recipe, "--quiet hides warnings from --strict, which then lets them pass"


def test_no_page_names_a_script_or_font_of_another_site() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "font: false" in settings, "fonts would come from a server of Google's"
    assert "- offline" not in settings, "the plugin loads a script from unpkg.com"
