"""The seams to the outside: time, chance, files. Cores take them as arguments; the real versions stand beside them.

A simulation puts its own behind the same protocols and so decides what time it is and what the disk loses.
"""

from dcpstream.runtime.clock import Clock, SystemClock, utc_now
from dcpstream.runtime.files import (
    DirectoryLock,
    File,
    FileSystem,
    SystemFileSystem,
    is_locked,
    make_durable_directory,
    make_private,
    write_whole,
)
from dcpstream.runtime.random import Random, SystemRandom, new_vbuuid

__all__ = [
    "Clock",
    "DirectoryLock",
    "File",
    "FileSystem",
    "Random",
    "SystemClock",
    "SystemFileSystem",
    "SystemRandom",
    "is_locked",
    "make_durable_directory",
    "make_private",
    "new_vbuuid",
    "utc_now",
    "write_whole",
]
