"""Judge our node by the recordings of real servers, with the command that is shipped.

    python -m lab.tools.judge [SCENARIO ...]          a prefix such as s15 is enough; without any, all of them

Starts nodes with 1,024 vbuckets and the users of the scenarios, and runs `dcpstream judge` against them. A node keeps
its data on disk like the real server; with `--memory`, steps that need persistence differ. The exit status is that of
the command: 0 only if nothing differs.

`--release 7.6` plays the scenarios that 7.2 and 8.0 have against a 7.6 node, of which nothing was recorded: steps in
which both recordings agree must be equal, and the others as in one of the two (`lab.tools.judge_between`).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from itertools import groupby

import dcpstream_node
from dcpstream.runtime import SystemClock
from dcpstream_node.judge import Endpoint, Target, playing
from dcpstream_node.judge.scenarios import SCENARIOS
from dcpstream_node.judge.transcript import Recorder
from lab.tools import judge_between as between
from tests.kit import recorded

RELEASES = ("7.2", "7.6", "8.0")
"""The releases of which recordings are there, and one that is judged by those around it."""
BETWEEN = "7.6"
USERS = {
    "readonly": {"password": "password", "privileges": ["DcpProducer", "Read"]},
    "nodcp": {"password": "password", "privileges": ["Read", "Upsert", "Insert", "Delete"]},
}


def main() -> int:
    """Start, play, compare; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", help="prefixes of names; all if none is given")
    parser.add_argument("--release", choices=RELEASES, default=RELEASES[0], help="of node and recordings")
    parser.add_argument("--memory", action="store_true", help="a node that keeps nothing on disk")
    arguments, options = parser.parse_known_args()
    prefixes = tuple(arguments.scenarios)
    is_between = arguments.release == BETWEEN
    known = between.names() if is_between else recorded.scenario_names(arguments.release)
    names = [name for name in known if name.startswith(prefixes or "s")]
    if not names:
        parser.error(f"no scenario begins with {' or '.join(prefixes)}")
    return max(
        play(list(group), arguments.release, options, in_memory=arguments.memory)
        for _, group in groupby(names, recorded.server_of)
    )


def play(names: list[str], release: str, options: list[str], *, in_memory: bool) -> int:
    """Play scenarios against a fresh node; the command's exit status."""
    with (
        tempfile.TemporaryDirectory(prefix="dcpstream-judge-") as directory,
        dcpstream_node.Node(
            vbuckets=1024,
            path=None if in_memory else directory,
            username="@admin",
            password="password",
            users=USERS,
            release=release,
            system_scope=False,  # an engine without a manager was recorded
        ) as node,
    ):
        if not recorded.had_map(names[0], release):
            node.inject("no_map")
        if release == BETWEEN:
            return play_between(names, node)
        command = [sys.executable, "-m", "dcpstream", "judge", f"couchbase://127.0.0.1:{node.port}"]
        login = ["--user", "@admin", "--password", "password"]
        return subprocess.run([*command, *names, *login, "--release", release, *options], check=False).returncode


def play_between(names: list[str], node: dcpstream_node.Node) -> int:
    """Play scenarios against a node of a release that was not recorded; 0 if nothing differs from both neighbours."""
    endpoint = Endpoint(host="127.0.0.1", port=node.port)
    target = Target(endpoint=endpoint, user="@admin", password="password", bucket="default")
    found = []
    for name in names:
        recorder = Recorder(name, playing.SCENARIO_TIMEOUT_S, between.NEWER, SystemClock())
        playing.play(SCENARIOS[name], target, recorder)
        found.append(between.judge(name, recorder.lines))
        each = found[-1]
        counts = f"{each.agreed} agreed, {each.open} open: {each.as_older} as 7.2, {each.as_newer} as 8.0"
        counts += f", {each.mixed} mixed"
        print(f"{name:28} {counts}, {len(each.differences)} differ", flush=True)
        for text in each.differences:
            print(f"    {text:.160}")
    agreed, opened = sum(each.agreed for each in found), sum(each.open for each in found)
    differ = sum(len(each.differences) for each in found)
    print(f"{len(found)} scenarios, {agreed} steps agreed and {opened} open, {differ} differ from both recordings")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
