"""Recorded frames in a node's bucket; whole recordings are played in `packages/dcpstream-node/tests/unit/recording`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dcpstream
import dcpstream_node
from dcpstream.client import KvClient, StreamOptions
from dcpstream.errors import DcpstreamError
from dcpstream.model import FailoverLog, Manifest, StreamOffset
from dcpstream.wire import Frame, Opcode
from dcpstream.wire.frames import with_opaque
from dcpstream.wire.stored.block import Version, encode_stored_mutation
from dcpstream_node.recording import history

LOG = FailoverLog.of((77, 0))
BUCKET = "default"


@pytest.fixture
def node() -> Iterator[dcpstream_node.Node]:
    with dcpstream_node.Node(vbuckets=1) as node:
        node.begin_playback(BUCKET, Manifest.DEFAULT, "abcd")
        yield node


def row(seqno: int, key: bytes) -> bytes:
    stored = encode_stored_mutation(Version(b"\0" + key, b"{}", 3), vbid=0, by_seqno=seqno, cas=seqno << 20)
    return with_opaque(stored, 0)


def test_a_node_goes_on_with_played_history(node: dcpstream_node.Node) -> None:
    node.play(BUCKET, history.opened(0, StreamOffset.ZERO, LOG) + history.marker(0, 0, 7) + row(7, b"old"))
    with KvClient(node.connection_string, "Administrator", "password", BUCKET) as kv:
        document = kv.get("old")
        assert document is not None
        assert document.cas == 7 << 20
        token = kv.set("new", "{}")
    assert (token.seqno, token.vbuuid) == (8, 77)


def test_seqnos_without_a_message_stay_taken(node: dcpstream_node.Node) -> None:
    node.play(BUCKET, history.opened(0, StreamOffset.ZERO, LOG) + row(2, b"a") + history.advanced(0, 5))
    login = {"username": "Administrator", "password": "password", "bucket": BUCKET}
    with dcpstream.Client(node.connection_string, **login) as client:  # type: ignore[arg-type]
        assert client.cluster.high_seqnos() == {0: 5}
        found = list(client.changes(StreamOptions(end="latest")))
        assert [change.key for change in found] == [b"a"]
        assert client.cluster.map.uuid == "abcd"


def test_a_message_that_cannot_be_is_refused(node: dcpstream_node.Node) -> None:
    broken = Frame(0x80, Opcode.DCP_DELETION, extras=bytes(7) + b"\1" + bytes(10), key=b"\0k")
    with pytest.raises(DcpstreamError, match="is refused"):
        node.play(BUCKET, broken.encode())


def test_a_reader_learns_of_a_branch_that_begins(node: dcpstream_node.Node) -> None:
    """As at the source: the failover ended its stream, and it went on without a rollback."""
    node.play(BUCKET, history.opened(0, StreamOffset.ZERO, LOG) + row(1, b"a"))
    login = {"username": "Administrator", "password": "password", "bucket": BUCKET}
    with dcpstream.Client(node.connection_string, **login) as client:  # type: ignore[arg-type]
        changes = client.changes(StreamOptions(on_rollback="rewind"))
        assert next(changes).vbuuid == 77
        node.play(BUCKET, history.opened(0, StreamOffset(77, 1, 1, 1), FailoverLog.of((88, 1), (77, 0))) + row(2, b"b"))
        after = next(changes)
        changes.close()
    assert (after.op, after.key, after.vbuuid) == ("mutation", b"b", 88)
