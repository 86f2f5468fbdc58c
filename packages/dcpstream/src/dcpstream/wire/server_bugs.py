"""Known bugs of servers: what the producers of some server versions do wrong, as a table.

A node has the bugs of the server version that it stands for, because clients of such a server meet them. Its option
`server_bugs` chooses others, or none. Code of the producer asks `Release.has_bug`, and the reference page
docs/reference/server-bugs.md is made of this table.

A bug that takes an unlucky moment in a server happens every time in a node. A node has such a bug only if it is named.

Sources: the commits of kv_engine that name the ticket, and its code in the tags before and after them.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class _Row(NamedTuple):
    """One row of the table; see `ServerBug`."""

    id: str
    text: str
    effect: str
    versions: str
    releases: tuple[str, ...] = ()
    is_rare: bool = False


_FAILS = "At such a change the server fails: its process ends, from 7.2.9 and 7.6.6 on the connection."


class ServerBug(Enum):
    """A bug of servers.

    Attributes:
        id: the name that users give: the ticket, if there is one.
        text: what such a server does.
        effect: what becomes of a client that trusts it.
        versions: the server versions that have it.
        releases: the releases of a node that stand for one of these versions.
        is_rare: a server does it only at an unlucky moment.
    """

    __hash__ = object.__hash__  # that of Enum is a function in Python, and each snapshot looks for some bugs

    def __init__(self, *row: object) -> None:
        self.id, self.text, self.effect, self.versions, self.releases, self.is_rare = _Row(*row)  # type: ignore[arg-type]

    KEYS_ONLY = _Row(
        id="MB-23898-keys-only",
        text="A stream that asked for neither values nor xattrs (open flag 0x08) has, from disk, only keys and seqnos: "
        "deletions and expirations are mutations. CAS, flags and expiry are 0, and the revision is 1.",
        effect="Deleted documents seem to exist.",
        versions="7.6.0 and later, also the development branch of August 2026",
        releases=("7.6", "8.0", "8.5"),
    )
    LOST_ADVANCE = _Row(
        id="MB-73354",
        text="A snapshot from memory of some collections ends with their prepare or abort, and a change of another "
        "collection follows. It is announced up to the prepare, but the SEQNO_ADVANCED to there never comes. A "
        "bounded stream ends with OK inside the snapshot.",
        effect="It waits for the snapshot's end for ever, or takes the end of the stream for an error.",
        versions="7.1.0 to 7.2.9, 7.6.0 to 7.6.12, 8.0.0 to 8.0.2",
        releases=("7.2", "7.6", "8.0"),
    )
    OSO_MARKER = _Row(
        id="oso-first-marker",
        text="The first snapshot marker after an out-of-order snapshot begins at 0, as the request did. In a server "
        "this takes a change that comes while the snapshot ends.",
        effect="The marker seems to go back behind what was received.",
        versions="7.0.0 and later, also the development branch of August 2026",
        is_rare=True,
    )
    CLOSE_QUEUED = _Row(
        id="close-queued-stream",
        text="CLOSE_STREAM of a stream whose last messages wait for room in the client's buffer gets KEY_ENOENT. "
        "Then the messages come, and a STREAM_END with OK.",
        effect="Messages come after the answer that there is no such stream.",
        versions="7.0.0 and later, also the development branch of August 2026",
        releases=("7.2", "7.6", "8.0", "8.5"),
    )
    EARLY_ADVANCE = _Row(
        id="MB-65581",
        text="A stream of some collections is resumed inside a snapshot. The first changes in memory, as many as a "
        "checkpoint has (a node: 256 KiB), are not for it. A marker and a SEQNO_ADVANCED to that snapshot's end come, "
        f"although changes up to there follow. {_FAILS}",
        effect="It resumes at the snapshot's end and never gets these changes.",
        versions="7.0.2 to 7.2.9, 7.6.0 to 7.6.5",
        releases=("7.2", "7.6"),
    )
    FUTURE_ADVANCE = _Row(
        id="MB-66612",
        text="A stream of some collections is resumed inside a snapshot, with nothing for it on disk and no change in "
        "memory. A marker and a SEQNO_ADVANCED come to the seqno that the next write will have. If that is a "
        "write for the stream, the server fails as with MB-65581.",
        effect="It resumes at that seqno and never gets that write.",
        versions="7.6.5-MP4 to 7.6.5-MP7",
    )
    END_ABOVE_HIGH = _Row(
        id="MB-62984",
        text="A stream of some collections is resumed at the start of a snapshot whose end was lost in a failover. A "
        "marker and a SEQNO_ADVANCED to that end come, above the vbucket's high seqno. At the next write for the "
        "stream the server fails as with MB-65581.",
        effect="It resumes at that end and never gets the writes up to there.",
        versions="7.0.2 to 7.2.5, 7.6.0 to 7.6.2",
    )
    OSO_HIGH_KEYS = _Row(
        id="MB-67551",
        text="An out-of-order snapshot leaves out documents whose keys begin with the byte 0xff and are longer.",
        effect="It never gets these documents.",
        versions="7.0.0 to 7.2.8, 7.6.0 to 7.6.7",
        releases=("7.2", "7.6"),
    )
    EMPTY_COMPRESSED = _Row(
        id="empty-compressed-value",
        text="SET of an empty value that the client has compressed stores the compressed form, one byte of 0x00, "
        "as the value.",
        effect="An empty document has one byte.",
        versions="7.2 as recorded; 8.0.1 stores an empty document",
        releases=("7.2",),
    )
