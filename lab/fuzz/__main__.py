"""Fuzz: `python -m lab.fuzz [TARGET …] [--seconds 60] [--keep] [--input FILE]`.

Each target gets its own process and its share of time, starting from the kept corpus and the target's seeds. What is
new is kept below `.cache/fuzz/TARGET` for the next run; a finding is an input there, with its traceback. `--keep`
chooses the smallest set of inputs that reaches the same code and writes it to tests/fuzz/corpus. `--input` hands one
file to a target and shows what it raises, without atheris.

The last line is `fuzz: <n> targets, <m> inputs, <k> findings`; exit status 0 if there are none.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from lab.fuzz import corpus
from lab.fuzz.targets import NAMES

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".cache" / "fuzz"
SECONDS = 60
INPUT_TIMEOUT_S = 20
"""A single input that takes longer is a finding; the slowest ones that are right take less than one."""
MEMORY_MIB = 1500
"""A process that needs more is a finding; importing everything takes about 200."""
GRACE_S = 300
"""Beyond its time, for the replay of a large corpus at the start."""
_INPUTS = re.compile(r"^(?:stat::number_of_executed_units:\s*|#)(\d+)", re.MULTILINE)


class Result(NamedTuple):
    """The result of one target's search.

    Attributes:
        inputs: how many were tried.
        findings: names of what was found.
    """

    inputs: int
    findings: list[str]


def main(arguments: list[str] | None = None) -> int:
    """Fuzz as the command line says; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"all by default: {' '.join(NAMES)}")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="for each target (%(default)s)")
    parser.add_argument("--keep", action="store_true", help="write the smallest corpus to tests/fuzz/corpus")
    parser.add_argument("--input", type=Path, help="hand this file to the one target, and do nothing else")
    options = parser.parse_args(arguments)
    names = options.targets or list(NAMES)
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        parser.error(f"no target is named {unknown[0]}; there are {' '.join(NAMES)}")
    if options.input is not None:
        if len(names) != 1:
            parser.error("--input needs one target")
        importlib.import_module(f"lab.fuzz.targets.{names[0]}").check(options.input.read_bytes())
        print("nothing was raised")
        return 0
    if not has_atheris():
        parser.error("atheris is missing; `make fuzz` installs it")
    results = {}
    for name in names:
        results[name] = result = search(name, options.seconds)
        print(f"{name}: {result.inputs} inputs, {len(result.findings)} findings", flush=True)
        for finding in result.findings:
            print(f"   {(FOLDER / name / 'findings' / finding).relative_to(ROOT)}", flush=True)
        if options.keep:
            keep(name)
    findings = sum(len(result.findings) for result in results.values())
    inputs = sum(result.inputs for result in results.values())
    print(f"fuzz: {len(results)} targets, {inputs} inputs, {findings} findings")
    return 1 if findings else 0


def has_atheris() -> bool:
    """Whether the fuzzer is installed."""
    return importlib.util.find_spec("atheris") is not None


def search(name: str, seconds: int) -> Result:
    """Fuzz one target."""
    folder = FOLDER / name
    inputs, findings = folder / "corpus", folder / "findings"
    shutil.rmtree(findings, ignore_errors=True)
    findings.mkdir(parents=True)
    target = importlib.import_module(f"lab.fuzz.targets.{name}")
    corpus.fill(inputs, [*corpus.load(name), *target.seeds()])
    output = child(
        name,
        [f"-max_total_time={seconds}", f"-artifact_prefix={findings}/", "-print_final_stats=1", str(inputs)],
        seconds + GRACE_S,
    )
    counts = [int(count) for count in _INPUTS.findall(output)]
    from lab.fuzz.findings import Findings

    found = Findings(findings).names()
    if not counts and not found:
        raise SystemExit(f"the search for {name} ended without a count:\n{output[-3000:]}")
    return Result(max(counts, default=0), found)


def keep(name: str) -> None:
    """Choose the smallest corpus and write it, with the inputs that have a reason."""
    folder = FOLDER / name
    merged = folder / "merged"
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir(parents=True)
    child(name, ["-merge=1", f"-artifact_prefix={folder}/", str(merged), str(folder / "corpus")], GRACE_S)
    chosen = dict.fromkeys((path.read_bytes() for path in merged.iterdir()), "")
    chosen |= {data: reason for data, reason in corpus.load(name).items() if reason}
    corpus.save(name, chosen)
    print(f"   {len(chosen)} inputs kept, {corpus.path_of(name).stat().st_size} bytes", flush=True)


def child(name: str, options: list[str], timeout_s: float) -> str:
    """Run libFuzzer on a target; what it printed."""
    target = importlib.import_module(f"lab.fuzz.targets.{name}")
    command = [
        *(sys.executable, "-m", "lab.fuzz.child", name, str(FOLDER / name)),
        *(f"-max_len={target.MAX_BYTES}", f"-timeout={INPUT_TIMEOUT_S}", f"-rss_limit_mb={MEMORY_MIB}"),
        *options,
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
    log = FOLDER / name / "log"
    with log.open("w") as file:
        try:
            subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                timeout=timeout_s,
                check=False,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        except subprocess.TimeoutExpired:
            print(f"{name}: ended after {timeout_s:g} s; the machine is busy, or an input hangs: see {log}", flush=True)
    return log.read_text(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
