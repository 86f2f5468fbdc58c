from __future__ import annotations

import json
import subprocess
import sys
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


def test_a_sound_store(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", "check", str(data)]) == 0
    out = capsys.readouterr().out
    assert f"{data}/travel: format 2, closed cleanly, 2 vbuckets" in out
    assert out.endswith("  sound\n")


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


def test_metadata_that_is_no_database_is_reported(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "travel" / "meta.sqlite").write_bytes(b"not a database" * 100)
    assert run(["store", "check", str(data)]) == 1
    assert "DAMAGED" in capsys.readouterr().out


def test_a_directory_without_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", "check", str(tmp_path)]) == 2
    assert "is neither a store (it has no meta.sqlite) nor a directory with stores in it" in capsys.readouterr().err
    assert run(["store", "check", str(tmp_path / "missing")]) == 2


def test_the_directory_of_a_cluster_is_reported_with_those_of_its_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".cluster.json").touch()
    for name in ("node-2", "node-1"):
        (tmp_path / name).mkdir()
    assert run(["store", "check", str(tmp_path)]) == 2
    told = f"{tmp_path} is the directory of a cluster. Name one of its nodes: {tmp_path}/node-1 {tmp_path}/node-2"
    assert told in capsys.readouterr().err


def test_a_store_that_a_node_has_open(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with DiskBucketStore(data / "travel", 2):
        assert run(["store", "check", str(data)]) == 0
        assert "open in a node" in capsys.readouterr().out


def limited(soft: int, hard: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that may open so many files; a hard limit of 0 stays as it is."""
    program = (
        "import resource, sys\n"
        "from dcpstream.cli.app import run\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard} or hard))\n"
        "raise SystemExit(run(sys.argv[1:]))\n"
    )
    return subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)


def test_a_store_in_use_with_more_files_than_a_process_may_open(tmp_path: Path) -> None:
    with DiskBucketStore(tmp_path, 1, segment_bytes=1) as store:
        fill(store)
        for number in range(60):
            put(store.vbuckets[0], key_of(number), b"v")
            store.commit()
        assert len([*tmp_path.glob("segment-*")]) == 60
        checked = limited(40, 0, "store", "check", str(tmp_path))
        assert checked.stdout.endswith("  sound\n"), checked
        checked = limited(40, 40, "store", "check", str(tmp_path))
        assert (checked.returncode, checked.stdout) == (1, "")
        assert checked.stderr == (
            f"dcpstream: {tmp_path}: a node has the store open, and the check cannot open all of its 60 segment files "
            "at a time: Too many open files. Allow 316 open files (`ulimit -n 316`), or stop the node: a store that is "
            "not in use is read file by file.\n"
        )
    assert limited(40, 40, "store", "check", str(tmp_path)).returncode == 0
