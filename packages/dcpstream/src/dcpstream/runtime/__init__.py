"""The seams to the outside world: `Clock`, `Random`, `FileSystem`, each with the system's version of it.

Cores take these as arguments. A simulation hands in its own versions, and so controls the time, the random bits, and
the writes that a disk loses. `kernel` has the native code of this installation, if there is some.
"""

from dcpstream.runtime.clock import Clock, SystemClock, utc_now
from dcpstream.runtime.collector import held_collector, spare_what_is_loaded
from dcpstream.runtime.files import (
    DirectoryLock,
    File,
    FileSystem,
    SystemFileSystem,
    is_locked,
    make_durable_directory,
    make_private,
    replace_shared,
    write_whole,
)
from dcpstream.runtime.heap import keep_large_buffers_apart
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
    "held_collector",
    "is_locked",
    "keep_large_buffers_apart",
    "make_durable_directory",
    "make_private",
    "new_vbuuid",
    "replace_shared",
    "spare_what_is_loaded",
    "utc_now",
    "write_whole",
]
