"""Handlers: the functions that answer requests, one module for each theme, and the table `COMMANDS` that finds them.

A session hands a handler itself and a frame whose shape was checked against the message table. The handler resolves
what the request names (`resolve`: vbucket, collection, key, expiration), reads or writes documents (`bucket`), and
answers with `Session.reply` or `refuse`. It may also answer later (`wait`) or in several steps (`stream`).

`native` answers the most frequent requests, plain GETs and SETs, without going through the table.
"""

from dcpstream_node.engine.commands import CommandTable
from dcpstream_node.engine.handlers import (
    admin,
    listing,
    login,
    mutate_with_meta,
    reads,
    scans,
    scopes,
    stat,
    subdoc,
    vbuckets,
    with_meta,
    writes,
)

COMMANDS: CommandTable = CommandTable()
"""Every command but those of DCP."""

for _module in (
    *(admin, listing, login, mutate_with_meta, reads, scans),
    *(scopes, stat, subdoc, vbuckets, with_meta, writes),
):
    _module.register(COMMANDS)

__all__ = ["COMMANDS"]
