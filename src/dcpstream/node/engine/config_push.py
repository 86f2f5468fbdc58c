"""The cluster configuration as sessions get it beside what they ask for: with NOT_MY_VBUCKET, and when it changes.

Source: kv_engine docs/BinaryProtocol.md, daemon/connection.cc.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from dcpstream.wire import Datatype, Feature, Frame, Magic

if TYPE_CHECKING:
    from dcpstream.node.engine.session.session import Session

CLUSTERMAP_CHANGE = 0x01
"""Opcode of the server's own request that tells of a newer cluster configuration; needs no answer."""
_VERSION_PAIR = struct.Struct(">qq")


def config_to_send(session: Session) -> bytes:
    """The cluster configuration for a NOT_MY_VBUCKET answer; empty if the client has it and said so.

    A client that never showed that it knows configurations gets none, as from a server that was told of no cluster.
    """
    if not session.uses_maps:
        return b""
    version = session.engine.config_version(session.bucket)
    if Feature.DEDUPE_NOT_MY_VBUCKET in session.features and session.config_sent == version:
        return b""
    session.config_sent = version
    return session.engine.config_json(session.bucket, session.local_host)


def push_config(session: Session) -> None:
    """Send the cluster configuration unasked, or its version alone, to a client that negotiated that.

    Not what the client was sent before, for whatever reason; a session without a bucket gets the node's.
    """
    bucket = session.bucket
    is_full = Feature.CLUSTERMAP_NOTIFICATION in session.features
    if session.user is None or not (is_full or Feature.CLUSTERMAP_NOTIFICATION_BRIEF in session.features):
        return
    if session.out_bytes > session.engine.output_limit:
        return  # it does not read; when it does, it finds older ones, and asks or is told the next time
    version = session.engine.config_version(bucket)
    if session.config_sent == version:
        return
    if is_full:
        session.config_sent = version
    request = Frame(
        Magic.SERVER_REQUEST,
        CLUSTERMAP_CHANGE,
        datatype=Datatype.JSON if is_full and session.is_json else 0,
        extras=_VERSION_PAIR.pack(*version),
        key=b"" if bucket is None else bucket.name.encode(),
        value=session.engine.config_json(bucket, session.local_host) if is_full else b"",
    )
    session.send(request.encode())
    session.engine.ready.add(session)
