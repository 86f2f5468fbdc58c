"""`Step`: the result of a call of a session, which its shell carries out."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dcpstream.wire.buffers import Buffer


class Wants(Enum):
    """The event that a session waits for."""

    INPUT = "at least `needed` bytes of input, with the rest that is kept"
    ROOM = "the rest of the input again, as soon as the client takes the answers"
    TURN = "another call after other connections had theirs"
    EVENT = "nothing: it is marked as ready when a request that waits can be answered"
    CLOSE = "the end of the connection after the output"


class Step(NamedTuple):
    """The orders of a session to the shell after a call.

    Attributes:
        output: bytes to send.
        wants: what the session waits for; input is read only for `INPUT`.
        used: bytes of the input that were answered; the shell keeps the rest.
        needed: bytes that the rest and the next input must have together; a whole frame if that is known.
        wake_at: time of the next time-out of a DCP connection, monotonic seconds; None for none.
    """

    output: Sequence[Buffer]
    wants: Wants
    used: int
    needed: int
    wake_at: float | None
