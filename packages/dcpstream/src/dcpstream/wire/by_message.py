"""`ByMessage`: a table of one thing for each message, such as the functions that handle them.

It is filled entry by entry, where the functions are: `@handlers.of(Mutation, Deletion)`. `require` then refuses a table
that lacks a message, so that one that is declared later cannot be forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from dcpstream.wire.layout import Layout, Request

T = TypeVar("T")


class ByMessage(dict[int, T]):
    """Opcode → the entry of the message with that opcode.

    Args:
        owner: the owner of the table, for errors, as "a producer".
    """

    def __init__(self, owner: str) -> None:
        super().__init__()
        self.owner = owner

    def of(self, *messages: type[Request]) -> Callable[[T], T]:
        """A decorator that enters a function for these messages; also called with an entry that is no function.

        Raises:
            TypeError: a message has an entry already.
        """

        def enter(entry: T) -> T:
            for each in messages:
                if self.setdefault(each.layout.opcode, entry) is not entry:
                    raise TypeError(f"{self.owner} has two entries for {each.__name__}")
            return entry

        return enter

    def require(self, layouts: Iterable[Layout], *, but: Iterable[type[Request]] = ()) -> None:
        """Check that every message has an entry.

        Args:
            layouts: the messages.
            but: those that need none; they must not have one.

        Raises:
            TypeError: names the messages that have none, or that have one although `but` names them.
        """
        wanted = {layout.opcode: layout.name for layout in layouts}
        left_out = {each.layout.opcode for each in but}
        missing = [name for opcode, name in wanted.items() if opcode not in self and opcode not in left_out]
        if missing:
            raise TypeError(f"{self.owner} has no entry for {', '.join(missing)}: write a function for each")
        twice = [name for opcode, name in wanted.items() if opcode in self and opcode in left_out]
        if twice:
            raise TypeError(f"{self.owner} has an entry for {', '.join(twice)}, which is noted to need none")
