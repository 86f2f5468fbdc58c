"""The limit of files and connections that a process may have open."""

from __future__ import annotations

import resource

OTHER_DESCRIPTORS = 256
"""Descriptors for files and libraries, in addition to those that are counted."""


def allow_descriptors(count: int) -> int:
    """Raise this process's limit of open files to `count` and `OTHER_DESCRIPTORS`, as far as the system allows.

    Returns:
        How many of them it allows; the limit itself may have been higher before.
    """
    wanted = count + OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed
