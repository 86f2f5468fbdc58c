"""The known bugs of servers on a node: each with its bug, and beside it without."""

from __future__ import annotations

from typing import Any

import pytest

import dcpstream_node
from dcpstream.errors import ConfigError
from dcpstream.wire import Opcode, Status, StreamEndReason
from dcpstream.wire.release import RELEASES, Release, release_of
from dcpstream.wire.server_bugs import ServerBug
from dcpstream_node.testing.simulation import Peer, SimulatedNode
from tests.conformance.test_durability import WITH_REPLICA, requirement
from tests.kit.cases import each_case
from tests.kit.rules import rule
from tests.kit.streams import (
    ACTIVE,
    DISK,
    FIRST,
    FRUIT_KEY,
    GARDEN,
    VEG_KEY,
    drain,
    end,
    garden,
    new_checkpoint,
    read,
    sent,
    set_manifest,
)

FRUIT = b'{"collections":["8"]}'
OSO = (b"enable_out_of_order_snapshots", b"true")
LARGE = b"x" * 100_000
"""Three of them are more than the changes that a stream looks at in memory at once."""


def having(*bugs: ServerBug, release: str = "7.2") -> Release:
    """A release with these bugs alone."""
    return release_of(release, [bug.id for bug in bugs])


def test_a_release_has_the_bugs_of_its_server_version() -> None:
    for release in RELEASES.values():
        assert release.bugs == {bug for bug in ServerBug if release.name in bug.releases and not bug.is_rare}
        assert not release_of(release.name, []).bugs
    assert release_of("8.5", ["MB-67551"]).bugs == {ServerBug.OSO_HIGH_KEYS}
    assert len({bug.id for bug in ServerBug}) == len(ServerBug)


@each_case("given", ["MB-73354", ["MB-1"]])
def test_a_wrong_choice_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"server_bugs.*MB-73354"):
        dcpstream_node.Node(server_bugs=given)


@pytest.mark.slow
@pytest.mark.parametrize("release", ["7.2", "8.0"])
@pytest.mark.parametrize("has_bug", [True, False])
def test_keys_only(release: str, has_bug: bool, tmp_path: Any) -> None:
    node = SimulatedNode(path=tmp_path, release=having(*[ServerBug.KEYS_ONLY][:has_bug], release=release))
    node.set_doc(1, "kept")
    node.set_doc(1, "gone")
    node.delete_doc(1, "gone")
    node.flush()
    node.restart()
    frames = node.producer(flags=0x08).stream(1)[2:]
    assert [frame.opcode == Opcode.DCP_MUTATION for frame in frames] == [True, has_bug]
    assert [frame.cas == 0 for frame in frames] == [has_bug, has_bug]


def prepared_garden(*names: ServerBug) -> SimulatedNode:
    """4 in fruit, 5 a pending prepare in fruit, 6 in veg; a stream from 3 reads them from memory."""
    node = SimulatedNode(release=having(*names))
    node.set_vbucket(1, ACTIVE, WITH_REPLICA)
    set_manifest(node, GARDEN)
    node.set_doc(1, "ap", collection=FRUIT_KEY)
    key = FRUIT_KEY + b"p"
    node.connect().send(Opcode.SET, vbid=1, key=key, value=b"v", extras=bytes(8), framing=requirement())
    node.set_doc(1, "ca", collection=VEG_KEY)
    return node


@rule("ADV-04")
def test_a_lost_advance() -> None:
    peer = prepared_garden(ServerBug.LOST_ADVANCE).producer()
    assert sent(peer.stream(1, 3, value=FRUIT)) == [(3, 5, FIRST), 4]
    assert drain(peer) == []
    peer.close_stream(1)
    assert sent(peer.stream(1, 3, 6, value=FRUIT)) == [(3, 5, FIRST), 4, end()]
    # The next stream brings the end.
    assert sent(peer.stream(1, 4, 6, snapshot=(3, 5), value=FRUIT))[-2:] == [("advanced", 6), end()]
    assert sent(prepared_garden().producer().stream(1, 3, value=FRUIT)) == [(3, 5, FIRST), 4, ("advanced", 5)]


def test_a_prepare_alone_has_a_snapshot_of_its_own() -> None:
    assert sent(prepared_garden().producer().stream(1, 4, value=FRUIT)) == [(4, 5, FIRST), ("advanced", 5)]


def test_the_first_marker_after_a_snapshot_out_of_order() -> None:
    for names, start in (([ServerBug.OSO_MARKER], 0), ([], 11)):
        node = garden(release=having(*names))
        node.bucket.parameters.oso_backfill = "enabled"
        new_checkpoint(node)
        peer = node.producer(controls=[OSO])
        assert sent(peer.stream(1, value=FRUIT))[-1] == ("oso", 2)
        node.set_doc(1, "ap9", collection=FRUIT_KEY)
        assert drain(peer) == [(start, 11, FIRST), 11]


@rule("CLS-12")
@each_case("has_bug", [True, False])
def test_closing_a_stream_whose_rest_is_queued(has_bug: bool) -> None:
    node = SimulatedNode(release=having(*[ServerBug.CLOSE_QUEUED][:has_bug]))
    node.fill(1, 4, value=LARGE)
    controls = [(b"connection_buffer_size", b"1000"), (b"send_stream_end_on_client_close_stream", b"true")]
    peer = node.producer(controls=controls)
    assert sent(peer.stream(1, 0, 4)) == [(0, 4, FIRST), 1]
    assert read(peer.close_stream(1)) == [("answer", Status.KEY_ENOENT if has_bug else Status.SUCCESS)]
    for _ in range(4):
        last = read(peer.buffer_ack(len(LARGE) + 200))
    assert last == [end(StreamEndReason.OK if has_bug else StreamEndReason.CLOSED)]


def resumed(*names: ServerBug) -> tuple[SimulatedNode, Peer, list[object]]:
    """A stream of fruit from 4, inside a snapshot up to 8: 5 to 7 in veg are more than one look, 8 is in fruit."""
    node = SimulatedNode(release=having(*names))
    set_manifest(node, GARDEN)
    node.set_doc(1, "ap0", collection=FRUIT_KEY)
    for index in range(3):
        node.set_doc(1, f"ca{index}", LARGE, collection=VEG_KEY)
    node.set_doc(1, "ap1", collection=FRUIT_KEY)
    peer = node.producer()
    return node, peer, sent(peer.stream(1, 4, snapshot=(3, 8), value=FRUIT))


def test_an_early_advance() -> None:
    _, peer, messages = resumed(ServerBug.EARLY_ADVANCE)
    assert messages == [(3, 8, FIRST), ("advanced", 8)]
    assert drain(peer) == []
    assert peer.closed
    _, peer, messages = resumed()
    assert (messages, peer.closed) == ([(3, 8, FIRST), 8], False)


@rule("ADV-04")
def test_an_advance_to_the_next_write() -> None:
    for names, is_closed in (([ServerBug.FUTURE_ADVANCE], True), ([], False)):
        node = garden(release=having(*names))
        new_checkpoint(node)
        peer = node.producer()
        messages = sent(peer.stream(1, 8, snapshot=(7, 9), value=FRUIT))
        assert messages == ([(7, 11, FIRST), ("advanced", 11)] if names else [(7, 10, DISK), ("advanced", 10)])
        node.set_doc(1, "other")
        assert (drain(peer), peer.closed) == ([], False)
        node.set_doc(1, "ap3", collection=FRUIT_KEY)
        assert drain(peer)[-1:] == [12]
        node = garden(release=having(*names))
        new_checkpoint(node)
        peer = node.producer()
        peer.stream(1, 8, snapshot=(7, 9), value=FRUIT)
        node.set_doc(1, "ap3", collection=FRUIT_KEY)
        assert drain(peer)[-1:] == ([] if is_closed else [11])
        assert peer.closed is is_closed


@rule("ADV-04")
def test_an_advance_above_the_high_seqno() -> None:
    for names, is_closed in (([ServerBug.END_ABOVE_HIGH], True), ([], False)):
        node = garden(release=having(*names))
        peer = node.producer()
        messages = sent(peer.stream(1, 9, snapshot=(9, 12), value=FRUIT))
        assert messages == ([(9, 12, FIRST), ("advanced", 12)] if names else [])
        node.set_doc(1, "ap3", collection=FRUIT_KEY)
        assert drain(peer)[-1:] == ([] if is_closed else [11])
        assert peer.closed is is_closed


def test_documents_that_a_snapshot_out_of_order_leaves_out() -> None:
    for names, found in (([ServerBug.OSO_HIGH_KEYS], [3, 4, 5]), ([], [3, 4, 5, 6])):
        node = SimulatedNode(release=having(*names))
        set_manifest(node, GARDEN)
        for key in (b"a", b"\xff", b"\xff1"):
            answer = node.admin.call(Opcode.SET, vbid=1, key=FRUIT_KEY + key, value=b"v", extras=bytes(8))
            assert answer.status == 0
        node.bucket.parameters.oso_backfill = "enabled"
        new_checkpoint(node)
        messages = sent(node.producer(controls=[OSO]).stream(1, value=FRUIT))
        assert messages == [("oso", 1), ("event", 3, 0), *found[1:], ("oso", 2)]
        assert sent(node.producer(b"ordered").stream(1, value=FRUIT))[-1] == 6
