"""Playing a recording into a node: who reads from it, and at which pace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import dcpstream_node
from dcpstream.client import Change, StreamOptions
from dcpstream.errors import ConfigError, CorruptLog, DcpstreamError
from dcpstream.model import Manifest
from dcpstream_node.recording import history
from dcpstream_node.recording.file import Header, RecordingReader, RecordingWriter
from dcpstream_node.recording.player import Played, header_of, play
from tests.kit.recordings import client, documents, drain


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two vbuckets in three steps: documents; changes that are lost; what replaced them."""
    path = tmp_path_factory.mktemp("recording") / "file"
    with dcpstream_node.Node(vbuckets=1, system_scope=False) as node, documents(node) as kv:
        kv.set_many((f"key::{n}", "first") for n in range(20))
        drain(node, path)
        kv.set_many((f"key::{n}", "lost") for n in range(10))
        drain(node, path)
        node.inject("stale_failover", bucket="default", vbid=0, seqno=20)
        kv.set_many((f"key::{n}", "last") for n in range(5))
        drain(node, path)
    return path


@pytest.fixture
def node() -> Iterator[dcpstream_node.Node]:
    with dcpstream_node.Node(vbuckets=1) as node:
        yield node


def take(changes: Iterator[Change], count: int) -> list[tuple[str, bytes | None]]:
    return [(change.op, change.value) for _, change in zip(range(count), changes, strict=False)]


def test_what_was_played_is_reported(recording: Path, node: dcpstream_node.Node) -> None:
    played = play(recording, node, "default")
    assert played == Played(35, 0, False, played.seconds)
    assert played.seconds > 0
    assert header_of(recording).vbuckets == 1


def test_a_reader_sees_the_rollback_happen_again(recording: Path, node: dcpstream_node.Node) -> None:
    """The readers of the source saw the lost changes, then a rollback, then the valid ones. So does one here."""
    with RecordingReader(recording) as reader:
        blocks = [block.frames for block in reader.blocks()]
        node.begin_playback("default", reader.header.manifest)
    lost = next(index for index, frames in enumerate(blocks) if b"lost" in frames)
    with client(node) as source:
        changes = source.changes(StreamOptions(on_rollback="rewind"))
        for frames in blocks[:lost]:
            node.play("default", frames)
        assert take(changes, 20) == [("mutation", b"first")] * 20
        node.play("default", blocks[lost])
        assert take(changes, 10) == [("mutation", b"lost")] * 10
        for frames in blocks[lost + 1 :]:
            node.play("default", frames)
        after = take(changes, 6)
        changes.close()
    assert after == [("rollback", after[0][1]), *[("mutation", b"last")] * 5]


def test_a_reader_of_the_source_goes_on_at_the_replay(tmp_path: Path, node: dcpstream_node.Node) -> None:
    path = tmp_path / "recording"
    with dcpstream_node.Node(vbuckets=1) as source, documents(source) as kv:
        kv.set_many((f"key::{n}", "{}") for n in range(10))
        with client(source) as reader:
            positions = {change.vbid: change.offset for change in reader.changes(StreamOptions(end="latest"))}
        kv.set("key::new", "{}")
        drain(source, path)
    play(path, node, "default")
    with client(node) as reader:
        assert [change.key for change in reader.changes(StreamOptions(start=positions, end="latest"))] == [b"key::new"]


def test_a_reader_from_before_the_recording_is_reported(tmp_path: Path, node: dcpstream_node.Node) -> None:
    """Changes between its position and the beginning of the recording are not there."""
    path = tmp_path / "recording"
    with dcpstream_node.Node(vbuckets=1) as source, documents(source) as kv:
        kv.set("key::1", "{}")
        with client(source) as reader:
            positions = {change.vbid: change.offset for change in reader.changes(StreamOptions(end="latest"))}
        kv.set("key::2", "{}")
        drain(source, path, start="latest")
        kv.set("key::3", "{}")
        drain(source, path)
    play(path, node, "default")
    with client(node) as reader:
        found = list(reader.changes(StreamOptions(start=positions, end="latest", on_rollback="rewind")))
    assert [(change.op, change.key) for change in found] == [("rollback", b""), ("mutation", b"key::3")]


def timed(path: Path, times_ns: list[int]) -> None:
    with RecordingWriter.create(path, Header("default", "", 1, Manifest.DEFAULT)) as writer:
        for seqno, time_ns in enumerate(times_ns, 1):
            writer.write(history.advanced(0, seqno), time_ns)


def test_it_can_be_stopped(tmp_path: Path, node: dcpstream_node.Node) -> None:
    timed(tmp_path / "file", [10**9, 5 * 10**9])
    assert play(tmp_path / "file", node, "default", speed=1, pause=lambda _: True).seconds == 0
    with client(node) as reader:
        assert reader.cluster.high_seqnos() == {0: 1}


def test_an_incomplete_end_is_reported(recording: Path, tmp_path: Path, node: dcpstream_node.Node) -> None:
    path = tmp_path / "file"
    path.write_bytes(recording.read_bytes()[:-1])
    played = play(path, node, "default")
    assert (played.is_cut, played.changes) == (True, 30)


def test_damage_is_an_error(recording: Path, tmp_path: Path, node: dcpstream_node.Node) -> None:
    data = bytearray(recording.read_bytes())
    data[-100] ^= 1
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(CorruptLog):
        play(tmp_path / "file", node, "default")


def test_only_an_empty_bucket_is_played_into(recording: Path, node: dcpstream_node.Node) -> None:
    with documents(node) as kv:
        kv.set("key", "{}")
    with pytest.raises(ConfigError, match="an empty one"):
        play(recording, node, "default")


def test_somebody_who_writes_into_the_bucket_is_noticed(recording: Path, node: dcpstream_node.Node) -> None:
    with RecordingReader(recording) as reader:
        blocks = [block.frames for block in reader.blocks()]
        node.begin_playback("default", reader.header.manifest)
    node.play("default", blocks[0] + blocks[1])
    with documents(node) as kv:
        kv.set("mine", "{}")
    with pytest.raises(DcpstreamError, match="Nobody else may write"):
        node.play("default", blocks[2])


def test_more_vbuckets_than_the_bucket_has(node: dcpstream_node.Node) -> None:
    with pytest.raises(DcpstreamError, match="has vbucket 1, which"):
        node.play("default", history.advanced(1, 5))


def test_a_client_that_comes_as_soon_as_it_may_finds_the_recorded_bucket(
    tmp_path: Path, node: dcpstream_node.Node
) -> None:
    path = tmp_path / "recording"
    with dcpstream_node.Node(vbuckets=1) as source, documents(source) as kv:
        kv.set("key::1", "{}")
        drain(source, path)
    found: list[tuple[str, dict[int, int]]] = []

    def look() -> None:
        with client(node) as reader:
            found.append((reader.cluster.map.uuid, dict(reader.cluster.high_seqnos())))

    play(path, node, "default", begun=look)
    assert found == [(header_of(path).bucket_uuid, {0: 0})]
