"""Walk through the README's three doors as a new user, and write docs/tutorials/three-doors.md: `make three-doors`.

The wheels of this checkout are built first. For each door the README's own commands then run in an environment and a
home directory of their own, so that nothing is there from before. A door whose program prints
something else than the README says is an error.

    python -m lab.tools.three_doors [--no-page]     `--no-page` only walks, and writes no page
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
import tempfile
import time
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.tools.packages import build, requirements, run
from lab.tools.wrap_markdown import wrapped
from tests.kit.pages import parse

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "tutorials" / "three-doors.md"

OF_THIS_CHECKOUT = ("PYTHON", "PYTEST", "VIRTUAL_ENV", "JAVA", "SPARK", "DCPSTREAM", "XDG")
"""Prefixes of variables that a new user's environment does not have."""

INTRODUCTION = """# The three doors, recorded

<!-- Written by lab/tools/three_doors.py (make three-doors); do not edit. -->

A terminal session of what the README leads with. Each door begins with an empty environment and an empty home
directory: no Python package is installed or in a cache. Times are those of a clock on the wall, the network's share
included.

"""


@dataclass(frozen=True, kw_only=True)
class Door:
    """One door of the README.

    Attributes:
        title: its heading.
        install: the command that installs what it needs.
        program: the Python that it shows.
        is_test: whether pytest runs the program.
        output: what the program prints, as the README says; empty if it says nothing.
    """

    title: str
    install: str
    program: str
    is_test: bool
    output: str


@dataclass(frozen=True, kw_only=True)
class Visit:
    """The result at a door: the installation's seconds, the program's, and what it printed."""

    door: Door
    install_s: float
    run_s: float
    output: str


def doors_of(text: str) -> list[Door]:
    """The doors in the text of the README."""
    section = text.split("\n## Three doors\n")[1].split("\n## ", maxsplit=1)[0]
    return [door_of(part) for part in section.split("\n### ")[1:]]


def door_of(part: str) -> Door:
    """The door in one part of the section, which begins with its heading."""
    found = list(parse(part, README.name))
    install = next(block for block in found if block.language == "sh")
    program = next(block for block in found if block.language == "python")
    return Door(
        title=part.splitlines()[0],
        install=install.code.split("#")[0].strip(),
        program=program.code,
        is_test=program.kind == "pytest",
        output=program.output or "",
    )


def environment(folder: Path) -> dict[str, str]:
    """The variables of a door's programs: their own home directory, and nothing of this checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OF_THIS_CHECKOUT)}
    path = f"{folder / 'env' / 'bin'}:/usr/local/bin:/usr/bin:/bin"
    return {**kept, "HOME": str(folder / "home"), "PATH": path}


def timed(command: list[str], folder: Path) -> tuple[float, str]:
    """Run a command of a door's environment in its home directory: the seconds that it took, and what it printed.

    Raises:
        SystemExit: it failed; with what it printed.
    """
    began = time.monotonic()
    output = run(*command, cwd=folder / "home", env=environment(folder))
    return time.monotonic() - began, output


def needed(install: str, wheels: Mapping[str, Path]) -> list[str]:
    """The packages that a door's pip command installs, with wheels in the place of our packages."""
    return list(dict.fromkeys(one for word in shlex.split(install)[2:] for one in requirements(word, wheels)))


def visit(door: Door, wheels: Mapping[str, Path], folder: Path) -> Visit:
    """Install what a door needs, and run its program.

    Raises:
        SystemExit: a command failed, or the program printed something else than the README says.
    """
    (folder / "home").mkdir(parents=True)
    venv.create(folder / "env", with_pip=True)
    python = str(folder / "env" / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    install_s, _ = timed([*pip, *needed(door.install, wheels)], folder)
    name = "test_five_lines.py" if door.is_test else "program.py"
    (folder / "home" / name).write_text(door.program, encoding="utf-8")
    run_s, output = timed([python, "-m", "pytest", "-q", name] if door.is_test else [python, name], folder)
    if door.output and output.split() != door.output.split():
        raise SystemExit(f"{door.title}: the README says\n{door.output}and the program printed\n{output}")
    return Visit(door=door, install_s=install_s, run_s=run_s, output=output)


def page_of(visits: list[Visit]) -> str:
    """The page."""
    parts = [INTRODUCTION]
    for one in visits:
        command = "pytest -q test_five_lines.py" if one.door.is_test else "python program.py"
        output = re.sub(r"in [0-9.]+s", "in …", one.output).strip()
        parts.append(
            f"## {one.door.title}\n\n```text\n$ {one.door.install}\n# {one.install_s:.0f} s\n$ {command}\n{output}\n"
            f"# {one.run_s:.1f} s\n```\n\n"
        )
    cores, load = os.cpu_count(), os.getloadavg()[2]
    parts.append(
        f"Recorded with Python {platform.python_version()} on {platform.machine()} with {cores} cores, where "
        f"{load:.1f} programs ran at a time.\n"
    )
    return "".join(parts)


def main() -> int:
    """Walk, print, write. Returns the exit status."""
    visits: list[Visit] = []
    with tempfile.TemporaryDirectory(prefix="dcpstream-doors-") as name:
        wheels = build(Path(name))
        for number, door in enumerate(doors_of(README.read_text(encoding="utf-8"))):
            found = visit(door, wheels, Path(name) / str(number))
            visits.append(found)
            print(f"{door.title}: installed in {found.install_s:.0f} s, ran in {found.run_s:.1f} s", flush=True)
    if "--no-page" not in sys.argv:
        PAGE.write_text(wrapped(page_of(visits)), encoding="utf-8")
        print(f"wrote {PAGE.relative_to(ROOT)}")
    print("three doors: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
