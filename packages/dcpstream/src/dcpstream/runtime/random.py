"""The seam for randomness."""

from __future__ import annotations

import secrets
from typing import Protocol


class Random(Protocol):
    """A source of random bits."""

    def getrandbits(self, count: int) -> int:
        """An integer of `count` random bits."""
        ...


class SystemRandom:
    """The operating system's randomness."""

    def getrandbits(self, count: int) -> int:
        """An integer of `count` random bits."""
        return secrets.randbits(count)


def new_vbuuid(random: Random) -> int:
    """A vbuuid for a new branch: 48 random bits as in the server, never 0."""
    while True:
        vbuuid = random.getrandbits(48)
        if vbuuid:
            return vbuuid
