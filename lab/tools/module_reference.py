"""Write the map of the modules: docs/reference/modules.md, and the packages in docs/explanation/architecture.md.

    python lab/tools/module_reference.py [--check]

Every line is the first sentence of a module's docstring.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from lab.layout import sources  # noqa: E402
from lab.tools.pages import publish  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "modules.md"
ARCHITECTURE = ROOT / "docs" / "explanation" / "architecture.md"
BEGIN, END = "<!-- packages: make reference -->", "<!-- end of the packages -->"

INTRODUCTION = """# Modules

<!-- Written by lab/tools/module_reference.py (make reference); do not edit. -->

Every module with the first sentence of its docstring, package by package. Which package may import which is in
[Architecture](../explanation/architecture.md).
"""


def summary(path: Path) -> str:
    """The first sentence of a module's docstring, fit for a cell of a table."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    sentence = paragraph.partition(". ")[0].rstrip(".:")
    return sentence.replace("|", "\\|")


def packages() -> list[Path]:
    """The folders of all packages, outer ones first."""
    return [
        package
        for source in sources()
        for package in sorted({path.parent for path in source.rglob("__init__.py")}, key=lambda path: path.parts)
    ]


def dotted(path: Path) -> str:
    """The name of a package."""
    return str(path).partition("/src/")[2].replace("/", ".")


def modules_of(package: Path) -> list[Path]:
    """The modules of a package but its own `__init__`."""
    return sorted(path for path in package.glob("*.py") if path.name != "__init__.py")


def page() -> str:
    """The page of all modules."""
    lines = [INTRODUCTION]
    for package in packages():
        lines += [f"## {dotted(package)}", "", f"{summary(package / '__init__.py')}.", ""]
        if modules := modules_of(package):
            lines += ["| module | what it is |", "| --- | --- |"]
            lines += [f"| `{path.stem}` | {summary(path)} |" for path in modules]
            lines.append("")
    return "\n".join(lines)


def package_table() -> str:
    """The packages and the rooms in them, with their number of modules."""
    lines = ["", "| package | what it is | modules |", "| --- | --- | ---: |"]
    for package in packages():
        link = f"[`{dotted(package)}`](../reference/modules.md#{anchor(package)})"
        lines.append(f"| {link} | {summary(package / '__init__.py')} | {len(modules_of(package))} |")
    return "\n".join(lines) + "\n\n"


def anchor(package: Path) -> str:
    """The anchor that the table of contents gives to a package's heading."""
    return dotted(package).replace(".", "")


def architecture() -> str:
    """The page on the architecture, with its table of packages as it is now."""
    text = ARCHITECTURE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{package_table()}{END}{rest.partition(END)[2]}"


def main() -> int:
    """Write both pages, or with `--check` compare them."""
    return publish({PAGE: page(), ARCHITECTURE: architecture()})


if __name__ == "__main__":
    sys.exit(main())
