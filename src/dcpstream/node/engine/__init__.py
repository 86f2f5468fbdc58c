"""The node without sockets, clocks and threads: what it answers to which bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dcpstream.node.engine import engine as _engine
from dcpstream.node.engine.access.groups import Group
from dcpstream.node.engine.access.roles import ALL_PRIVILEGES, KINDS, PERMISSIONS, Role, RoleKind, parse_roles
from dcpstream.node.engine.access.users import User, Users
from dcpstream.node.engine.bucket.bucket import Bucket
from dcpstream.node.engine.bucket.vbucket import VBucket
from dcpstream.node.engine.cluster_config import ClusterConfig
from dcpstream.node.engine.engine import MAX_OUTPUT_BYTES
from dcpstream.node.engine.handlers import COMMANDS
from dcpstream.node.engine.handlers.bulk import bulk_set
from dcpstream.node.engine.handlers.fast import fast_handlers
from dcpstream.node.engine.release import DEFAULT_VERSION, RELEASES, Release
from dcpstream.node.engine.session.session import Dispatch, Session
from dcpstream.runtime import Random
from dcpstream.wire import Frame

__all__ = [
    "ALL_PRIVILEGES",
    "COMMANDS",
    "DEFAULT_VERSION",
    "KINDS",
    "MAX_OUTPUT_BYTES",
    "PERMISSIONS",
    "RELEASES",
    "Bucket",
    "ClusterConfig",
    "Engine",
    "Group",
    "Release",
    "Role",
    "RoleKind",
    "Session",
    "User",
    "Users",
    "VBucket",
    "new_engine",
    "parse_roles",
]


Engine = _engine.Engine[Session]
"""The engine of a node whose sessions are `Session`."""


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
    dispatch = Dispatch(COMMANDS.without(config.release.unknown_opcodes), fast_handlers, bulk_set, dcp_handler)
    return Engine(
        users,
        config,
        random,
        open_session=lambda engine, peer, host, is_secure: Session(engine, dispatch, peer, host, is_secure=is_secure),
        dcp_stats=dcp_stats,
    )
