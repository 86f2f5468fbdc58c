"""The functions that answer commands, by theme, and the table that finds them."""

from dcpstream.node.engine.commands import CommandTable
from dcpstream.node.engine.handlers import (
    admin,
    listing,
    login,
    reads,
    scans,
    scopes,
    stat,
    subdoc,
    vbuckets,
    with_meta,
    writes,
)
from dcpstream.node.engine.session.session import Session

COMMANDS: CommandTable[Session] = CommandTable()
"""Every command but those of DCP."""

for _module in (admin, listing, login, reads, scans, scopes, stat, subdoc, vbuckets, with_meta, writes):
    _module.register(COMMANDS)

__all__ = ["COMMANDS"]
