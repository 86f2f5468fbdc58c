from __future__ import annotations

import json
from pathlib import Path

import pytest

from dcpstream.cli.app import run
from dcpstream_node.store import DiskBucketStore
from tests.kit.stores import fill, key_of, put


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A node's data directory with the store of one bucket."""
    with DiskBucketStore(tmp_path / "travel", 2) as store:
        fill(store)
        for number in range(3):
            put(store.vbuckets[1], key_of(f"hotel_{number}"), b"value %d" % number)
    return tmp_path


def damage(data: Path) -> None:
    file = data / "travel" / "segment-0000000001.log"
    content = file.read_bytes()
    file.write_bytes(content.replace(b"value 1", b"value ?"))


def test_a_store_that_was_killed_is_sound_up_to_its_last_commit(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    DiskBucketStore(data / "travel", 2).close(clean=False)
    assert run(["store", "check", str(data)]) == 0
    out = capsys.readouterr().out
    size = (data / "travel" / "segment-0000000001.log").stat().st_size
    assert f"the last commit ends at byte {size:,} of segment-0000000001.log" in out
    assert "last seqnos sum up to 3." in out
    assert out.endswith("  sound up to there\n")
    assert run(["store", "check", str(data), "--json"]) == 0
    (store,) = json.loads(capsys.readouterr().out)["stores"]
    assert store["last_commit"] == [str(data / "travel" / "segment-0000000001.log"), size]
    assert store["last_seqnos"] == {"1": "3"}


def test_a_damaged_store_is_reported(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(data)
    assert run(["store", "check", str(data)]) == 1
    out = capsys.readouterr().out
    assert "DAMAGED segment-0000000001.log at byte" in out
    assert "a page of 3 frames; vbucket 1, seqnos 1 to 3" in out
    assert "hotel_0, hotel_1, hotel_2" in out
    assert "1 damaged. Stop the node and restore the whole directory from a copy" in out
    assert run(["store", "check", str(data), "--json"]) == 1
    (store,) = json.loads(capsys.readouterr().out)["stores"]
    assert not store["is_sound"]
    assert store["segments"][0]["damage"][0]["vbid"] == 1


def test_the_directory_of_a_cluster_is_reported_with_those_of_its_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".cluster.json").touch()
    for name in ("node-2", "node-1"):
        (tmp_path / name).mkdir()
    assert run(["store", "check", str(tmp_path)]) == 2
    told = f"{tmp_path} is the directory of a cluster. Name one of its nodes: {tmp_path}/node-1 {tmp_path}/node-2"
    assert told in capsys.readouterr().err
