"""Plays a recording into a node: at once, or at the pace at which the changes arrived."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dcpstream.errors import DcpstreamError
from dcpstream_node.embedded import Node
from dcpstream_node.recording.file import Block, Header, RecordingReader
from dcpstream_node.recording.history import Histories

MAX_PAUSE_S = 1.0
"""Longest single pause between two looks at `is_over`."""


@dataclass(frozen=True, slots=True)
class Played:
    """The result of playing a recording.

    Attributes:
        changes: mutations, deletions and expirations.
        incomplete: vbuckets whose last snapshot is incomplete, because the recording was cut.
        is_cut: whether the file ends in an incomplete block.
        seconds: between the arrival of the first and of the last changes.
    """

    changes: int
    incomplete: int
    is_cut: bool
    seconds: float


def header_of(path: Path) -> Header:
    """The first line of a recording: its source and extent.

    Raises: ConfigError: it is none. CorruptLog: it is damaged. OSError: it cannot be read.
    """
    with RecordingReader(path) as reader:
        return reader.header


def play(
    path: Path,
    node: Node,
    bucket: str,
    *,
    speed: float | None = None,
    pause: Callable[[float], bool] | None = None,
    begun: Callable[[], None] | None = None,
) -> Played:
    """Play a recording into an empty bucket of a running node.

    Args:
        path: the file.
        node: with the bucket.
        bucket: its name; it has as many vbuckets as the recording.
        speed: 1 for the pace at which the changes arrived, 10 for ten times that; None for at once.
        pause: waits so many seconds and says whether to stop; needed with a speed.
        begun: called when the bucket has the identity and the collections of the recording, before its first change. A
            client that came earlier would take it for a bucket that was deleted and created again.

    Raises:
        ConfigError: the bucket is not empty, or the file is no recording.
        CorruptLog: the file is damaged; what comes before is in the bucket.
        DcpstreamError: somebody else wrote into the bucket.
    """
    histories = Histories()
    first_ns = last_ns = 0
    with RecordingReader(path) as reader:
        node.begin_playback(bucket, reader.header.manifest, reader.header.bucket_uuid)
        if begun is not None:
            begun()
        for block in reader.blocks():
            first_ns = first_ns or block.time_ns
            if speed is not None and last_ns and _waits(block, last_ns, speed, pause):
                break
            last_ns = max(last_ns, block.time_ns)
            node.play(bucket, block.frames)
            histories.take(block.frames)
        return Played(histories.changes, histories.incomplete, reader.is_cut, (last_ns - first_ns) / 1e9)


def _waits(block: Block, last_ns: int, speed: float, pause: Callable[[float], bool] | None) -> bool:
    """Wait until a block is due; returns whether to stop."""
    if pause is None:
        raise DcpstreamError("playing at a speed needs a function that waits")
    left_s = max(block.time_ns - last_ns, 0) / 1e9 / speed
    while left_s > 0:
        step_s = min(left_s, MAX_PAUSE_S)
        if pause(step_s):
            return True
        left_s -= step_s
    return False
