"""The recordings of real servers: the transcript of each scenario, by release.

The archive beside this module is the only copy, and is what a real server sent, bit for bit: `steps` decides what of it
counts. Unpacked it is eighteen megabytes of text, of which nearly all stands there several times.
"""

from __future__ import annotations

import tarfile
from functools import cache
from importlib import resources

from dcpstream_node.judge.transcript import Line, from_text

ARCHIVE = "recordings.tar.xz"


def releases() -> tuple[str, ...]:
    """The recorded releases, ascending, as `8.0`."""
    return tuple(sorted(_texts(), key=release_key))


def release_key(release: str) -> tuple[int, ...]:
    """A key by which releases are sorted."""
    return tuple(int(number) for number in release.split("."))


def names(release: str) -> tuple[str, ...]:
    """The scenarios that were recorded of a release."""
    return tuple(sorted(_texts()[release]))


def lines(release: str, name: str) -> list[Line]:
    """The transcript of a scenario."""
    return from_text(text(release, name))


def text(release: str, name: str) -> str:
    """The same as the file has it: one JSON object a line."""
    return _texts()[release][name].decode()


@cache
def _texts() -> dict[str, dict[str, bytes]]:
    found: dict[str, dict[str, bytes]] = {}
    archive = resources.files("dcpstream_node.judge").joinpath(ARCHIVE)
    with archive.open("rb") as packed, tarfile.open(fileobj=packed, mode="r:xz") as tar:
        for member in tar:
            release, _, file = member.name.partition("/")
            content = tar.extractfile(member)
            assert content is not None, member.name
            found.setdefault(release, {})[file.removesuffix(".jsonl")] = content.read()
    return found
