"""The functions that answer commands, by theme, and the table that finds them."""

from dcpstream.node.engine.commands import CommandTable
from dcpstream.node.engine.handlers import (
    buckets,
    collections,
    listing,
    login,
    metadata,
    obsolete,
    operator,
    parameters,
    range_scans,
    reads,
    stats,
    subdoc,
    vbuckets,
    writes,
)

COMMANDS = CommandTable()
"""Every command but those of DCP."""

for _module in (
    login,
    buckets,
    reads,
    writes,
    listing,
    range_scans,
    metadata,
    subdoc,
    parameters,
    vbuckets,
    collections,
    stats,
    obsolete,
    operator,
):
    _module.register(COMMANDS)

__all__ = ["COMMANDS"]
