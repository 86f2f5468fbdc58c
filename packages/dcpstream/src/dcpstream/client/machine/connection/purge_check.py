"""The purge seqno of the copy that a guarded stream reads.

A guarded stream is requested with purged deletions ignored, by a reader that knows up to where they do not matter (see
`StreamOffset.purge_limit`). The node does not say at the request what it has purged, and a compaction may run until
the snapshot is taken. So the question is answered after that, when the first marker has come:

- A marker of version 2.2 has the purge seqno of the very file that the snapshot is read from.
- After any other marker the session asks STAT for the purge seqno, and then requests the stream again. While the
  stream lives, the node refuses that with KEY_EEXISTS. A node replaces its copy of a vbucket only after the streams of
  it have ended. So the answer of STAT is that of the copy from which the snapshot was taken. The purge seqno of a copy
  never falls, so that of the snapshot is no higher.

The session holds the stream's rows back until then. They count in the flow-control window meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from dcpstream.client.machine.connection.events import PurgeChecked, Stream, StreamStopped
from dcpstream.wire import Frame, Opcode, Status, StreamEndReason
from dcpstream.wire.layout import Request
from dcpstream.wire.messages.kv import Stat

_MAX_DIGITS = 20
"""Digits of the largest u64."""


@dataclass(slots=True, eq=False)
class PurgeCheck:
    """One stream's questions, and what is known of their answers.

    Attributes:
        stream: the stream.
        found: the purge seqno that STAT gave, if it did.
        has_ended: whether the answer of STAT is whole.
    """

    stream: Stream
    found: int | None = None
    has_ended: bool = False

    def question(self) -> Request:
        """The request for the statistics of the stream's vbucket."""
        return Stat(key=b"vbucket-seqno %d" % self.stream.vbid)

    def takes_item(self, frame: Frame) -> bool:
        """Take one item of the statistics; False for what ends them, and for any other answer."""
        if frame.opcode != Opcode.STAT or frame.status != Status.SUCCESS or not frame.key:
            return False
        text = bytes(frame.value)
        if frame.key == b"vb_%d:purge_seqno" % self.stream.vbid and text.isdigit() and len(text) <= _MAX_DIGITS:
            self.found = int(text)
        return True

    def take(self, frame: Frame) -> PurgeChecked | StreamStopped | None:
        """Take the end of the statistics, or the answer to the repeated request of the stream, which is the last.

        Returns: the result, once it is there; the end of the stream if it does not live any more.
        """
        if frame.opcode == Opcode.STAT:
            self.has_ended = frame.status == Status.SUCCESS
            return None
        if frame.status != Status.KEY_EEXISTS:
            return StreamStopped(self.stream, StreamEndReason.STATE_CHANGED)
        return PurgeChecked(self.stream, self.found if self.has_ended else None)
