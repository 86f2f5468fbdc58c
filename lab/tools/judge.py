"""Run recorded scenarios against our node and compare its answers with the real server's.

    python lab/tools/judge.py [SCENARIO ...]          a prefix such as s15 is enough; without any, all of them

Starts a node with 1,024 vbuckets and the three users of the scenarios, runs lab/scenarios/run.py against it, and
compares with lab/scenarios/compare.py. `--release` says which server the node is, and so which recordings judge it. The
node keeps its data on disk like the real server; with `--memory`, steps
that need persistence differ. Exit status 0 only if every scenario ran and nothing differs.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import dcpstream_node
from tests.kit import recorded

ROOT = Path(__file__).parents[2]
SCENARIOS = ROOT / "lab" / "scenarios"
RELEASES = ("7.2", "8.0")
"""The releases of which recordings are here."""
USERS = {
    "readonly": {"password": "password", "privileges": ["DcpProducer", "Read"]},
    "nodcp": {"password": "password", "privileges": ["Read", "Upsert", "Insert", "Delete"]},
}
SCENARIO_TIMEOUT_S = 240
RUN_TIMEOUT_S = 30 * 60


def main() -> int:
    """Start, run, compare; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", help="prefixes of names; all if none is given")
    parser.add_argument("--out", type=Path, default=ROOT / ".cache" / "judge", help="where the recordings go")
    parser.add_argument("--show", type=int, default=8, help="differences to print of each scenario")
    parser.add_argument("--timeout", type=int, default=SCENARIO_TIMEOUT_S, help="seconds a scenario may take")
    parser.add_argument("--release", choices=RELEASES, default=RELEASES[0], help="of node and judge")
    parser.add_argument("--memory", action="store_true", help="a node that keeps nothing on disk")
    arguments = parser.parse_args()
    prefixes = tuple(arguments.scenarios)
    chosen = [name for name in recorded.scenario_names(arguments.release) if name.startswith(prefixes or "s")]
    if not chosen:
        parser.error(f"no scenario begins with {' or '.join(prefixes)}")
    shutil.rmtree(arguments.out, ignore_errors=True)
    arguments.out.mkdir(parents=True)

    ran = 0
    for server in sorted(set(map(recorded.server_of, chosen))):
        ran |= play([name for name in chosen if recorded.server_of(name) == server], arguments)

    status, reference = ran, str(recorded.folder_of(arguments.release))
    for name in sorted(path.stem for path in arguments.out.glob("*.jsonl")):
        status |= run(
            "compare.py",
            reference,
            str(arguments.out),
            "--scenario",
            name,
            "--show",
            str(arguments.show),
        )
    print("no difference" if status == 0 else "there are differences, or a scenario that did not run to its end")
    return status


def play(names: list[str], arguments: argparse.Namespace) -> int:
    """Play scenarios against a fresh node; 0 if all of them ran."""
    with tempfile.TemporaryDirectory(prefix="dcpstream-judge-") as directory:
        path = None if arguments.memory else directory
        release = arguments.release
        with dcpstream_node.Node(
            vbuckets=1024,
            path=path,
            username="@admin",
            password="password",
            users=USERS,
            release=release,
            system_scope=False,  # an engine without a manager was recorded
        ) as node:
            if not recorded.had_map(names[0], release):
                node.inject("no_map")
            print(f"node on port {node.port}, recordings in {arguments.out}", flush=True)
            address = ["--port", str(node.port), "--out", str(arguments.out), "--timeout", str(arguments.timeout)]
            return run("run.py", *address, "--release", release, *names)


def run(script: str, *arguments: str) -> int:
    """Run one of the scripts and return 0 or 1; its output goes to the terminal."""
    command = [sys.executable, str(SCENARIOS / script), *arguments]
    sys.stdout.flush()
    return int(subprocess.run(command, timeout=RUN_TIMEOUT_S, check=False).returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
