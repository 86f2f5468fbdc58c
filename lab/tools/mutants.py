"""Break guards of the code one at a time, and count those that the tests of the protocol's rules notice.

    python lab/tools/mutants.py [--seed N,…] [--count 60] [--list] [--file PART] [--all]

A guard is an `if` (or `elif`) of the wire codec, the protocol's machines or the node's engine whose body rejects the
peer: it raises, refuses, drops or closes, or returns a refusal, an error status, or the text of a fault. (ConfigError
and LocalProtocolError are about our own caller, not about the protocol.) A seed, which is printed, draws the guards
from the functions that the rules' tests run, so code for the management of a node over HTTP or from files is not among
them. Each drawn guard gets one mutation:

    negate      `if a < b`             becomes `if not (a < b)`
    never       the guard is gone
    boundary    `<` becomes `<=`, `>=` becomes `>`, and so on
    constant    a number in the condition is one higher
    operand     of `a or b`, `a and b` one part is left out

Mutants that no test can notice are not drawn: tests/conformance/equivalent_mutants.toml lists them with the reasons,
together with the few guards that are bounds of our own. Only tests that name rules and for which the broken condition
differs from the right one are run, short ones first, up to the first failure. They run in forks of processes that have
collected them in temporary copies of the tree (tests/fixtures/guard_runs.py), and in a new process if the function
makes tables while modules are imported. The last line is `mutants: <n> of <count> caught`; exit status 0 if at most one
in sixty survived.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Queue
from threading import Lock
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from lab.layout import folders_of_tests, python_path, source_of  # noqa: E402
from tests.fixtures.guard_runs import Traced, Verdict, module_of, top_functions  # noqa: E402

PACKAGES = ("dcpstream/wire", "dcpstream/dcp", "dcpstream_node/engine")
EQUIVALENT = ROOT / "tests" / "conformance" / "equivalent_mutants.toml"
KEY = ("path", "function", "condition", "kind")
COPIED = ("packages", "tests", "lab", "conftest.py", "pyproject.toml", "docs", "README.md", "mkdocs.yml", "Makefile")
COUNT = 60
PATIENCE = "1"
"""PATIENCE of the tests on a broken tree: a wait for an event that never happens ends after the plain limit."""
WORKERS = 2
MUTANT_TIMEOUT_S = 600
TEST_TIMEOUT_S = 30
SEED_BITS = 32
ONE_SURVIVOR_IN = 60

SAYS_NO = ("refuse", "_refuse", "drop", "_drop", "close", "refuse_unknown", "not_my_vbucket", "refuse_with_reference")
"""Methods and functions that end or refuse something."""
REFUSALS = ("Refusal", "Refuse", "Rollback", "ControlAnswer", "Fault", "_no_access")
OF_OUR_CALLERS = ("ConfigError", "LocalProtocolError", "AssertionError")
"""Errors about the calling program, not about the peer; the protocol's rules do not cover them."""
ERROR_NAMES = ("INVALID", "UNSUPPORTED")
OTHER_SIDE = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}

NOTE_IMPORTS = """
import importlib, sys
found = set()
def note(frame, event, arg):
    if event == "call":
        found.add((frame.f_code.co_filename, frame.f_code.co_qualname))
sys.setprofile(note)
for name in sys.argv[1:]:
    importlib.import_module(name)
sys.setprofile(None)
print("\\n".join("\\t".join(pair) for pair in found))
"""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One guard, broken in one way.

    Attributes:
        path: of the file, relative to the root.
        line: of the condition.
        column: of the condition.
        function: the enclosing one.
        kind: of the mutation.
        start, stop: the replaced bytes of the file.
        before, after: the condition.
    """

    path: str
    line: int
    column: int
    function: str
    kind: str
    start: int
    stop: int
    before: str
    after: str

    def __str__(self) -> str:
        """Place and mutation."""
        return f"{self.path}:{self.line} {self.kind}: if {self.before}  ->  if {self.after}"

    @property
    def place(self) -> str:
        """The place of the guard: file, line and column."""
        return f"{self.path}:{self.line}:{self.column}"

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Its name in the list of equivalent mutants, without line numbers, which change often."""
        return self.path, self.function, self.before, self.kind


def guards(path: Path) -> Iterator[Mutant]:
    """Every mutant of every guard of a file."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    name = path.relative_to(ROOT).as_posix()
    for function, node in top_functions(ast.parse(source)):
        for guard in ast.walk(node):
            if isinstance(guard, ast.If) and any(says_no(item) for item in guard.body):
                test = guard.test
                assert test.end_lineno is not None
                assert test.end_col_offset is not None
                start = starts[test.lineno - 1] + test.col_offset
                stop = starts[test.end_lineno - 1] + test.end_col_offset
                before = ast.unparse(test)
                for kind, after in mutations(test):
                    yield Mutant(name, test.lineno, test.col_offset, function, kind, start, stop, before, after)


def says_no(statement: ast.stmt) -> bool:
    """Whether a statement raises, refuses, drops, closes, or returns something that does."""
    if isinstance(statement, ast.Raise):
        return not (isinstance(statement.exc, ast.Call) and is_call_of(statement.exc, OF_OUR_CALLERS))
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return is_call_of(statement.value, SAYS_NO) or is_error_answer(statement.value)
    return isinstance(statement, ast.Return) and statement.value is not None and is_refusal(statement.value)


def is_call_of(call: ast.Call, names: tuple[str, ...]) -> bool:
    """Whether a function or method of one of these names is called."""
    function = call.func
    return (isinstance(function, ast.Name) and function.id in names) or (
        isinstance(function, ast.Attribute) and function.attr in names
    )


def is_error_answer(call: ast.Call) -> bool:
    """Whether this answers with the status of an error, or sends a refusal."""
    if is_call_of(call, ("send",)):
        return any(isinstance(item, ast.Call) and is_call_of(item, ("refuse",)) for item in call.args)
    return is_call_of(call, ("respond", "_answer", "answer")) and any(is_error_status(item) for item in call.args)


def is_error_status(value: ast.expr) -> bool:
    """Whether this is a `Status` other than success."""
    return (
        isinstance(value, ast.Attribute)
        and isinstance(value.value, ast.Name)
        and value.value.id == "Status"
        and value.attr != "SUCCESS"
    )


def is_refusal(value: ast.expr) -> bool:
    """Whether the returned value is a refusal, an error status, or the text of a fault."""
    if isinstance(value, ast.Call):
        return is_call_of(value, (*REFUSALS, "refuse"))
    if isinstance(value, ast.Tuple):
        return any(is_refusal(item) or isinstance(item, ast.JoinedStr) for item in value.elts)
    if isinstance(value, ast.Name):
        return value.id in ERROR_NAMES or (value.id.startswith("_") and value.id.isupper())
    is_text = isinstance(value, ast.JoinedStr) or (
        isinstance(value, ast.Constant) and isinstance(value.value, str) and bool(value.value)
    )
    return is_text or is_error_status(value)


def mutations(test: ast.expr) -> Iterator[tuple[str, str]]:
    """(kind, condition) of every mutation of a condition."""
    text = ast.unparse(test)
    yield "negate", f"not ({text})"
    yield "never", f"False and ({text})"
    compares = [node for node in ast.walk(test) if isinstance(node, ast.Compare)]
    for compare in compares:
        for index, operator in enumerate(compare.ops):
            other = OTHER_SIDE.get(type(operator))
            if other is not None:
                compare.ops[index] = other()
                yield "boundary", ast.unparse(test)
                compare.ops[index] = operator
        for constant in [compare.left, *compare.comparators]:
            if isinstance(constant, ast.Constant) and type(constant.value) is int:
                constant.value += 1
                yield "constant", ast.unparse(test)
                constant.value -= 1
    if isinstance(test, ast.BoolOp):
        whole = test.values
        for index in range(len(whole)):
            test.values = whole[:index] + whole[index + 1 :]
            yield "operand", ast.unparse(test) if len(test.values) > 1 else ast.unparse(test.values[0])
        test.values = whole


def all_mutants() -> list[Mutant]:
    """Every mutant of the packages, in order of place."""
    found: list[Mutant] = []
    for package in PACKAGES:
        for path in sorted(source_of(package).rglob("*.py")):
            found += guards(path)
    return found


def copy_tree(target: Path) -> None:
    """The parts of the project that a test run needs."""
    ignore = shutil.ignore_patterns("__pycache__", ".*")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=ignore)
        else:
            shutil.copy(ROOT / name, target / name)


def pytest_command(tree: Path, *more: str) -> tuple[list[str], dict[str, str]]:
    """Command and environment of a run in a tree."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-m", "rule"]
    command += ["-p", "tests.fixtures.guard_runs", "--no-header", "--timeout", str(TEST_TIMEOUT_S), *more]
    environment = {"PYTHONPATH": python_path(tree), "PYTHONDONTWRITEBYTECODE": "1", "PATIENCE": PATIENCE}
    return command, {**os.environ, **environment}


def test_files(tree: Path) -> list[str]:
    """The files with tests that name rules."""
    paths = (path for folder in folders_of_tests(tree) for path in folder.glob("*/**/test_*.py"))
    return sorted(path.relative_to(tree).as_posix() for path in paths if "@rule(" in path.read_text(encoding="utf-8"))


class Runner:
    """Processes that have collected the tests, in a copy of the tree, and run them in forks of themselves."""

    def __init__(self, tree: Path) -> None:
        copy_tree(tree)
        self.tree = tree
        self._path = tree / "runner.log"
        self._log = self._path.open("w", encoding="utf-8")
        mine, others = zip(*(Pipe() for _ in range(WORKERS)), strict=True)
        numbers = [other.fileno() for other in others]
        command, environment = pytest_command(tree, "-s", *test_files(tree))
        self._process = subprocess.Popen(
            command,
            cwd=tree, env={**environment, "GUARD_PIPES": ",".join(map(str, numbers))}, pass_fds=numbers,
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
        )  # fmt: skip
        for other in others:
            other.close()
        self._pipes = mine
        self._free: Queue[Connection] = Queue()
        for pipe in mine:
            self._free.put(pipe)

    def ask(self, *request: object) -> Any:
        """Send a request to a process and wait for the answer."""
        pipe = self._free.get()
        try:
            pipe.send(request)
            return pipe.recv()
        except (EOFError, OSError):
            sys.exit(f"pytest ended:\n{self._path.read_text(encoding='utf-8')[-4000:]}")
        finally:
            self._free.put(pipe)

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()
        self._process.wait()
        self._log.close()


def trace(runner: Runner, pool: ThreadPoolExecutor, mutants: list[Mutant]) -> Traced:
    """The tests that can notice each mutant; each process takes its share of the tests."""
    guards: dict[str, dict[tuple[int, int], list[str]]] = {}
    for mutant in mutants:
        guards.setdefault(mutant.path, {}).setdefault((mutant.line, mutant.column), []).append(mutant.after)
    whole = Traced()
    for failed, traced in pool.map(lambda part: runner.ask("trace", guards, part, WORKERS), range(WORKERS)):
        if failed:
            sys.exit("the tests must pass before anything is broken; failed: " + " ".join(failed))
        whole.add(traced)
    return whole


def run_at_import(tree: Path, mutants: list[Mutant]) -> set[tuple[str, str]]:
    """(path, function) of what runs while the modules with guards are imported, as it makes tables."""
    modules = sorted({module_of(mutant.path) for mutant in mutants})
    done = subprocess.run(
        [sys.executable, "-c", NOTE_IMPORTS, *modules],
        cwd=tree, env={**os.environ, "PYTHONPATH": python_path(tree)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = (line.split("\t") for line in done.stdout.splitlines())
    return {
        (str(Path(path).relative_to(tree)), function) for path, function in found if Path(path).is_relative_to(tree)
    }


class Judge:
    """Runs tests on a mutant and finds whether one fails."""

    def __init__(self, runner: Runner, tree: Path, at_import: set[tuple[str, str]], traced: Traced) -> None:
        self._runner = runner
        self._tree, self._tree_lock = tree, Lock()
        self._at_import = at_import
        self._traced = traced

    def is_caught(self, mutant: Mutant) -> bool:
        """Run the tests with the broken guard, up to the first that fails. One that hangs fails by its own limit."""
        tests = self._traced.tests_for(mutant.place, mutant.after)
        if not tests:
            return False
        original = (self._runner.tree / mutant.path).read_bytes()
        broken = original[: mutant.start] + f"({mutant.after})".encode() + original[mutant.stop :]
        verdict = self._runner.ask("judge", mutant.path, mutant.function, broken.decode(), tests, MUTANT_TIMEOUT_S)
        if verdict is Verdict.NO_END:
            print(f"no verdict within {MUTANT_TIMEOUT_S} s, counted as survived", flush=True)
        is_unsure = verdict is Verdict.SURVIVED and (mutant.path, mutant.function) in self._at_import
        if verdict is Verdict.AFRESH or is_unsure:
            with self._tree_lock:
                return is_caught_afresh(mutant, self._tree, broken, tests)
        return verdict is Verdict.CAUGHT


def is_caught_afresh(mutant: Mutant, tree: Path, broken: bytes, tests: list[str]) -> bool:
    """Break the tree, run the tests in a new process, restore the tree."""
    path = tree / mutant.path
    original = path.read_bytes()
    order = tree / "order.txt"
    order.write_text("\n".join(tests), encoding="utf-8")
    command, environment = pytest_command(tree, "-x", *sorted({name.partition("::")[0] for name in tests}))
    try:
        path.write_bytes(broken)
        done = subprocess.run(
            command,
            cwd=tree, env={**environment, "GUARD_TESTS": str(order)}, capture_output=True,
            timeout=MUTANT_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        print(f"no verdict within {MUTANT_TIMEOUT_S} s, counted as survived", flush=True)
        return False
    finally:
        path.write_bytes(original)
    return done.returncode != 0


def left_out(mutants: list[Mutant]) -> list[Mutant]:
    """The mutants without the listed ones that cannot be noticed, and without guards that no rule covers."""
    listed = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))
    same = {tuple(entry[name] for name in KEY) for entry in listed.get("mutant", []) if entry["reason"]}
    ours = {tuple(entry[name] for name in KEY[:-1]) for entry in listed.get("no_rule", []) if entry["reason"]}
    stale = (same - {item.key for item in mutants}) | (ours - {item.key[:-1] for item in mutants})
    if stale:
        sys.exit(f"{EQUIVALENT.name} lists what is no longer there: {sorted(stale)}")
    return [item for item in mutants if item.key not in same and item.key[:-1] not in ours]


def draw(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """One mutant of each of `count` guards."""
    chance = random.Random(seed)
    by_guard: dict[tuple[str, int, int], list[Mutant]] = {}
    for mutant in mutants:
        by_guard.setdefault((mutant.path, mutant.line, mutant.start), []).append(mutant)
    places = chance.sample(sorted(by_guard), min(count, len(by_guard)))
    return [chance.choice(by_guard[place]) for place in places]


def main() -> int:
    """Trace, draw, break, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", default="", help="one or several, 1,2,3: a draw each, after one tracing run")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--file", default="", help="only guards of files whose path has one of these parts, a,b,c")
    parser.add_argument("--list", action="store_true", help="only say which guards there are")
    parser.add_argument("--all", action="store_true", help="every mutation of every guard; takes long")
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seed.split(",") if seed] or [random.SystemRandom().getrandbits(SEED_BITS)]
    parts = arguments.file.split(",")
    mutants = [item for item in left_out(all_mutants()) if any(part in item.path for part in parts)]
    if arguments.list:
        print("\n".join(map(str, mutants)))
        return 0
    is_good = True
    with ThreadPoolExecutor(WORKERS) as pool, tempfile.TemporaryDirectory(prefix="dcpstream-mutants-") as directory:
        whole, spare = Path(directory).resolve() / "whole", Path(directory).resolve() / "spare"
        runner = Runner(whole)
        copy_tree(spare)
        traced = trace(runner, pool, mutants)
        reached = [item for item in mutants if f"{item.path}::{item.function}" in traced.entered]
        guard_count = len({item.place for item in reached})
        judge = Judge(runner, spare, run_at_import(spare, mutants), traced)

        def is_caught(mutant: Mutant) -> bool:
            caught = judge.is_caught(mutant)
            if not caught:
                print(f"survived: {mutant}  [{mutant.function}]", flush=True)
            return caught

        for seed in seeds:
            drawn = reached if arguments.all else draw(reached, arguments.count, seed)
            which = "all" if arguments.all else f"seed {seed}"
            print(f"{which}: {len(drawn)} mutants of {guard_count} guards in functions that the tests run", flush=True)
            survivors = list(pool.map(is_caught, drawn)).count(False)
            print(f"mutants: {len(drawn) - survivors} of {len(drawn)} caught", flush=True)
            is_good = is_good and survivors * ONE_SURVIVOR_IN <= len(drawn)
            if arguments.all:
                break
        runner.close()
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
