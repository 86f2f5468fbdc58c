"""Large buffers have pages of their own, so buffers that grow leave no gaps."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

GROWING = """
import random
import sys
from pathlib import Path
from dcpstream.runtime.heap import keep_large_buffers_apart

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if sys.argv[1] == "apart":
    assert keep_large_buffers_apart()
large = bytearray(16 * 1024 * 1024)
del large  # the allocator takes it for a size that comes and goes
chance, before, piece = random.Random(1), resident(), bytes(1000)
buffers = [bytearray() for _ in range(64)]
for _ in range(40_000):
    buffer = chance.choice(buffers)
    buffer += piece
print((resident() - before) / sum(map(len, buffers)))
"""


def memory_of_growing(how: str) -> float:
    """Memory of a process, divided by the content of its buffers, which grow to about ten times the limit."""
    command = [sys.executable, "-c", GROWING, how]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the setting")
def test_buffers_that_grow_leave_no_gaps():
    assert memory_of_growing("apart") < 1.15
    assert memory_of_growing("as usual") > 1.25, "without the setting there are gaps"
