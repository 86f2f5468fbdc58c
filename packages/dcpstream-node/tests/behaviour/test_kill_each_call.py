"""SIGKILL at every system call by which a bucket is made, SQLite's own calls among them; strace gives the signal."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from dcpstream_node.directory.directory import DataDirectory
from dcpstream_node.store import DiskBucketStore
from dcpstream_node.store.closed.check import check_store
from lab.tools.patience import patient

CALLS = ("mkdir", "pwrite64", "write", "writev", "fsync", "fdatasync", "rename", "unlink", "ftruncate", "chmod")
"""Those that change something; `openat` makes files too, and is looked at from the mark on."""
VBUCKETS = 4
MAKE = """
import os, random, sys
from pathlib import Path
from dcpstream_node.directory.directory import DataDirectory
from tests.kit.engine import engine_of
import dcpstream_node.store.disk
os.write(2, b"the mark")
directory = DataDirectory(Path(sys.argv[1]), random.Random(1))
store = directory.open("shop", int(sys.argv[2]))
directory.remember([engine_of().add_bucket("shop", store)])
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed (Debian: apt install strace)"),
]


def make(path: Path, *options: str) -> str:
    """Make a bucket beside another one, under strace; what that says."""
    shutil.rmtree(path, ignore_errors=True)
    DiskBucketStore(path / "default", VBUCKETS).close()
    command = ["strace", "-f", *options, sys.executable, "-c", MAKE, str(path), str(VBUCKETS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(60), check=False)
    return done.stderr


def count_calls(path: Path) -> tuple[Counter[str], Counter[str]]:
    """The number of calls by name: before the mark, and in all."""
    before: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for line in make(path, "-e", f"trace=openat,{','.join(CALLS)}").splitlines():
        match = re.match(r"(?:\[pid +\d+\] )?(\w+)\(", line)
        if match is not None:
            found[match[1]] += 1
        if "the mark" in line:
            before = Counter(found)
    return before, found


def check_left(path: Path, why: str) -> bool:
    """The next node finds the other bucket, and this one whole or not at all; whether it is there."""
    directory = DataDirectory(path, random.Random(2))
    try:
        assert "default" in directory.known, why
        assert {entry.name for entry in path.iterdir()} <= {"default", "shop", ".node.json"}, why
        was_there = "shop" in directory.known
        for name in ("default", "shop"):
            directory.open(name, VBUCKETS).close()
            assert check_store(path / name).is_sound, why
    finally:
        directory.close()
    return was_there


def test_a_kill_at_any_call_leaves_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "data"
    before, found = count_calls(path)
    assert before.total() < found.total()
    there = Counter[bool]()
    for call in ("openat", *CALLS):
        for number in range(before[call] + 1, found[call] + 1):
            make(path, "-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={number}")
            there[check_left(path, f"killed at {call} {number}")] += 1
    assert there[False] > 10
    assert there[True] > 10
