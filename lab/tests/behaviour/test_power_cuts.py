"""Power cuts of a whole node: `lab/tools/power_cuts.py` with fewer moments, and a look at whether it can fail."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from lab.tools.kill_loop import Loss
from lab.tools.power_cuts import Inode, Run, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed (Debian: apt install strace)"),
]


def test_what_was_promised_survives_every_power_cut() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    images, survivors = run(90, 3, seed, shows_progress=False)
    assert images > 500
    assert survivors > 0


def test_the_judge_notices_a_disk_that_does_not_sync(tmp_path: Path) -> None:
    each = Run(tmp_path, "every", 1, heeds_syncs=False)
    calls = each.record()
    with pytest.raises(Loss):
        each.cut(calls, 40)


def test_the_judge_drops_tears_and_reorders_what_no_sync_covered() -> None:
    inode, found = Inode(), set()
    inode.write(0, b"a" * 512)
    inode.sync()
    inode.write(512, b"b" * 1024)
    inode.write(1536, b"c" * 512)
    for seed in range(200):
        left = inode.left("any part", random.Random(seed))
        assert left.startswith(b"a" * 512)
        found.add(bytes(left[512::512]).replace(b"\0", b"-"))
    assert {b"", b"bbc", b"b-c", b"-bc", b"--c", b"bb"} <= found
