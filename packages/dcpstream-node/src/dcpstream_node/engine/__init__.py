"""The node without sockets, clocks and threads: bytes in, bytes out.

Nouns: `Engine` holds the buckets, users and the cluster configuration; `Bucket` holds `VBucket`s; a `Session` is one
client connection. The rows, from the bottom:

- `cluster_config`, `error_map`, `limit_log`: the configuration's JSON, the attributes of statuses, and a log with a
  bounded rate.
- `access` and `bucket`: what users may do; the documents and the rules of writing to them.
- `engine`: `Engine`. `subdocument`: paths inside JSON documents.
- `commands`: opcode → shape, privilege and handler. `stats`: contents of STAT groups.
- `session`: takes frames out of the bytes, checks them against the command table, and keeps the output.
- `handlers`: one function for each command; `native` answers plain GETs and SETs in the kernel.

A shell calls `set_time`, `Session.receive` and, once per turn of its loop, `end_turn`; it then calls `Session.send` of
the sessions that `end_turn` returns. Both calls of a session return a `Step`, which says what the shell has to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from dcpstream.runtime import Random
from dcpstream.wire import Frame
from dcpstream.wire.release import Release
from dcpstream_node.engine.access.groups import Group
from dcpstream_node.engine.access.roles import ALL_PRIVILEGES, KINDS, PERMISSIONS, Role, RoleKind, parse_roles
from dcpstream_node.engine.access.users import User, Users
from dcpstream_node.engine.bucket.bucket import Bucket
from dcpstream_node.engine.bucket.vbucket import VBucket
from dcpstream_node.engine.cluster_config import ClusterConfig
from dcpstream_node.engine.commands import CommandTable
from dcpstream_node.engine.engine import MAX_OUTPUT_BYTES, Engine
from dcpstream_node.engine.handlers import COMMANDS
from dcpstream_node.engine.handlers.native import answer_plain, plain_opcodes
from dcpstream_node.engine.session.session import Dispatch, Session

__all__ = [
    "ALL_PRIVILEGES",
    "COMMANDS",
    "KINDS",
    "MAX_OUTPUT_BYTES",
    "PERMISSIONS",
    "Bucket",
    "ClusterConfig",
    "Engine",
    "Group",
    "Role",
    "RoleKind",
    "Session",
    "User",
    "Users",
    "VBucket",
    "new_engine",
    "parse_roles",
]


@lru_cache(maxsize=16)
def _commands_of(release: Release) -> CommandTable:
    return COMMANDS.known_to(release)


def new_engine(
    users: Users,
    config: ClusterConfig,
    random: Random,
    dcp_handler: Callable[[Session, Frame, float], None],
    dcp_stats: Callable[[Bucket, str, str], Iterator[tuple[str, str]] | int],
) -> Engine:
    """An engine that knows every command.

    Args:
        dcp_handler: answers DCP frames.
        dcp_stats: keys and values of a STAT group about DCP connections and its argument, or the status.
    """
    dispatch = Dispatch(_commands_of(config.release), plain_opcodes, answer_plain, dcp_handler)
    return Engine(
        users,
        config,
        random,
        open_session=lambda engine, peer, host, is_secure: Session(engine, dispatch, peer, host, is_secure=is_secure),
        dcp_stats=dcp_stats,
    )
