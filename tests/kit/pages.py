"""The fenced blocks of the project's pages, and how each of them is run.

A comment in the line before a block says how it is run. Blocks of Python, of a shell and of SQL need to be run or to
have a reason; others (output, settings, diagrams) are not run.

| comment | means |
| --- | --- |
| none, before Python | a whole program: run alone, in a fresh folder |
| `<!-- pytest -->` | a test module: run by pytest |
| `<!-- in order -->` | run after the blocks of the page that stand before it, in one folder |
| `<!-- in order: background -->` | a shell command that goes on while later blocks run, such as `dcpstream node` |
| `<!-- in order: file NAME -->` | a file that later blocks of the page use |
| `<!-- fragment -->` | part of a program on Spark: `packages/dcpstream-spark/tests/spark/test_pages.py` runs those of a
page in order | | `<!-- run by: FILE -->` | this test runs it |
| `<!-- not run: REASON -->` | not run |

A block of text right after a run block is its output. Pages write the usual ports, 11210 and 8091. Their nodes get free
ports here, and the addresses in the blocks are replaced.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path

from lab.layout import python_path
from lab.tools.patience import patient
from tests.kit.waiting import wait_until

ROOT = Path(__file__).parents[2]
RUN_LANGUAGES = frozenset({"python", "sh", "bash", "console", "sql"})
KINDS = ("not run", "run by", "in order", "fragment", "pytest")
TIMEOUT_S = patient(150)

_FENCE = re.compile(r"(?P<indent> *)(?P<fence>```+)(?P<language>\w*)$")
_COMMENT = re.compile(r" *<!-- (?P<kind>[a-z ]+?)(?:: (?P<argument>.+))? -->$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block.

    Attributes:
        page: path from the root of the repository.
        line: of the opening fence, from 1.
        language: of the fence; empty if it has none.
        kind: how it is run, one of KINDS; empty for a block without a comment.
        argument: what follows the kind.
        code: the text, without the indentation of its fence.
        output: the text of the block of text right behind it, or None.
    """

    page: str
    line: int
    language: str
    kind: str
    argument: str
    code: str
    output: str | None = None

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_program(self) -> bool:
        """Whether it is run alone."""
        return self.language == "python" and not self.kind


def pages() -> list[Path]:
    """The README and all pages of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def all_blocks() -> list[Block]:
    """Every block of every page that is to be run, or says why not."""
    return [
        block for page in pages() for block in blocks(page) if block.language in RUN_LANGUAGES or block.kind in KINDS
    ]


def blocks(page: Path) -> list[Block]:
    """The blocks of one page, in order."""
    return list(parse(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT))))


def parse(text: str, page: str) -> Iterator[Block]:
    """The blocks of a page's text."""
    found = list(_fenced(text.split("\n"), page))
    for block, following in zip_longest(found, found[1:]):
        end = block.line + block.code.count("\n") + 1
        if following is not None and following.language == "text" and following.line == end + 2:
            yield replace(block, output=following.code)
        else:
            yield block


def _fenced(lines: list[str], page: str) -> Iterator[Block]:
    at = 0
    while at < len(lines):
        opening = _FENCE.match(lines[at])
        if opening is None:
            at += 1
            continue
        end = at + 1
        while lines[end].strip() != opening["fence"]:
            end += 1
        comment = _COMMENT.match(lines[at - 1]) if at else None
        yield Block(
            page=page,
            line=at + 1,
            language=opening["language"],
            kind=comment["kind"] if comment else "",
            argument=(comment["argument"] or "") if comment else "",
            code=textwrap.dedent("".join(f"{line}\n" for line in lines[at + 1 : end])),
        )
        at = end + 1


def mistake(block: Block) -> str | None:
    """The errors in the comment of a block that is to be run."""
    if not block.kind:
        return None if block.language == "python" else "say in a comment how it is run, or why it is not"
    if block.kind not in KINDS:
        return f"the comment '{block.kind}' is not known; known are {', '.join(KINDS)}"
    if block.kind == "not run" and not block.argument:
        return "say why: <!-- not run: REASON -->"
    if block.argument.startswith("file ") and block.output is not None:
        return "a file has no output; show the command that runs it"
    if block.kind == "run by" and not (ROOT / block.argument).is_file():
        return f"there is no test {block.argument}"
    return None


def environment() -> dict[str, str]:
    """The environment of programs that pages show: this interpreter, and the package of this repository."""
    path = python_path()
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    others = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return {**others, "PYTHONPATH": path, "PATH": programs}


def run_program(arguments: list[str], folder: Path, output: str | None) -> None:
    """Run a program to its end and compare what it prints.

    Raises:
        AssertionError: it failed, or printed something else.
    """
    done = subprocess.run(
        arguments, cwd=folder, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if output is not None:
        assert done.stdout == output


def run_test_module(block: Block, folder: Path) -> None:
    """Run a block that is a test module, with the fixtures of dcpstream and of pytest-asyncio."""
    (folder / "test_page.py").write_text(block.code, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n", encoding="utf-8")
    plugins = ["-p", "dcpstream_node.pytest_plugin", "-p", "pytest_asyncio.plugin", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, "test_page.py"],
        cwd=folder,
        env={**environment(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{block.name}\n{done.stdout}{done.stderr}"


@dataclass(slots=True)
class Walk:
    """Runs the blocks of a page one after the other in one folder.

    Attributes:
        folder: where they run.
        ports: usual port → the port of the node in the background.
    """

    folder: Path
    ports: dict[str, str] = field(default_factory=dict)
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(self, block: Block) -> None:
        """Run one block, and compare its output.

        Raises:
            AssertionError: it failed, or printed something else.
        """
        if block.argument.startswith("file "):
            (self.folder / block.argument.removeprefix("file ")).write_text(self._here(block.code), encoding="utf-8")
        elif block.argument == "background":
            self._start(block)
        elif block.language == "python":
            script = self.folder / ".block.py"
            script.write_text(self._here(block.code), encoding="utf-8")
            self._shell(f"python {script.name}", block)
        else:
            self._shell(self._here(block.code), block)

    def close(self) -> None:
        """End what runs in the background."""
        for process in self._running:
            os.killpg(process.pid, signal.SIGTERM)
        for process in self._running:
            process.wait(TIMEOUT_S)

    def _shell(self, code: str, block: Block) -> None:
        """Variables that one block sets are known to the next."""
        saved = ".variables"
        whole = f"[ ! -e {saved} ] || . ./{saved}\nset -a\n{code}\nexport -p > {saved}\n"
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", whole],
            cwd=self.folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{block.name}\n{done.stdout}{done.stderr}"
        if block.output is not None:
            printed = self._there(done.stdout)
            assert printed.rstrip("\n") == block.output.rstrip("\n"), f"{block.name} printed\n{printed}"

    def _start(self, block: Block) -> None:
        ready, log = self.folder / ".ready.json", self.folder / ".background.log"
        ready.unlink(missing_ok=True)
        code = block.code.replace("dcpstream node", f"dcpstream node --port 0 --mgmt-port 0 --ready-file {ready}")
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-eu", "-c", code],
                cwd=self.folder,
                env=environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running.append(process)

        def is_ready() -> bool:
            assert process.poll() is None, f"{block.name}\n{log.read_text(encoding='utf-8')}"
            return ready.exists()

        wait_until(is_ready)
        ports = json.loads(ready.read_text(encoding="utf-8"))
        self.ports = {"11210": str(ports["kv"]), "8091": str(ports["mgmt"])}
        if (expected := block.output) is not None:
            wait_until(lambda: self._there(log.read_text(encoding="utf-8")).startswith(expected))

    def _here(self, code: str) -> str:
        code = re.sub(r"couchbase://127\.0\.0\.1(?!:)", "couchbase://127.0.0.1:11210", code) if self.ports else code
        for usual, port in self.ports.items():
            code = re.sub(rf"(127\.0\.0\.1|localhost):{usual}\b", rf"\1:{port}", code)
        return code

    def _there(self, output: str) -> str:
        for usual, port in self.ports.items():
            output = output.replace(f":{port}", f":{usual}")
        return output
