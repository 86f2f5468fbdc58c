"""What the system tells of this process and its machine; zeros where it does not."""

from __future__ import annotations

import os
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def resident_bytes() -> int:
    """Memory that this process has at the moment; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


def memory_bytes() -> tuple[int, int]:
    """(total, free) memory of the machine; zeros where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES, os.sysconf("SC_AVPHYS_PAGES") * _PAGE_BYTES
    except (AttributeError, ValueError, OSError):
        return 0, 0
