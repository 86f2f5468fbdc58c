"""`dcpstream offsets` with positions of a real node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dcpstream_node
from dcpstream.client import FileOffsetStore, KvClient, SavedOffset
from dcpstream.model import StreamOffset
from tests.kit.commands import Commands


@pytest.fixture
def read(one_node: dcpstream_node.Node, tmp_path: Path, commands: Commands) -> Path:
    """A file of positions after all that the bucket holds."""
    with KvClient(one_node.connection_string, "Administrator", "password", "default") as kv:
        kv.set_many((f"key-{n}", "{}") for n in range(20))
    file = tmp_path / "offsets"
    commands("stream", one_node.connection_string, "--offsets", str(file))
    return file


def keys_from(commands: Commands, node: dcpstream_node.Node, file: Path) -> set[str]:
    lines = commands("stream", node.connection_string, "--offsets", str(file)).splitlines()
    return {json.loads(line)["key"] for line in lines}


def test_positions_are_shown(read: Path, commands: Commands) -> None:
    lines = commands("offsets", "show", str(read)).splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("vbucket 0: seqno ")
    assert "4 vbuckets, " in lines[-1]
    assert set(commands.json("offsets", "show", str(read))) == {"0", "1", "2", "3"}
    assert "there is no file" in commands.refused("offsets", "show", "/no/file", expect=2)


def test_the_lag_and_the_difference_of_two_files(
    one_node: dcpstream_node.Node, read: Path, commands: Commands, tmp_path: Path
) -> None:
    at = ("--cluster", one_node.connection_string)
    assert commands("offsets", "diff", str(read), *at) == "no difference\n"
    copy = tmp_path / "copy"
    copy.write_bytes(read.read_bytes())
    with KvClient(one_node.connection_string, "Administrator", "password", "default") as kv:
        vbid = kv.set("key-0", "{}").vbid
    assert commands("offsets", "diff", str(read), *at, expect=1).startswith(f"vbucket {vbid}: 1 seqnos behind ")
    keys_from(commands, one_node, read)
    found = json.loads(commands("offsets", "diff", str(read), str(copy), "--json", expect=1))
    assert [row["vbucket"] for row in found] == [vbid]
    FileOffsetStore(copy).save({0: SavedOffset(StreamOffset(99, 1, 1, 1))})
    assert "a rollback is likely" in commands("offsets", "diff", str(copy), *at, expect=1)


@pytest.mark.parametrize("form", ["kafka-connect", "go-dcp"])
def test_another_reader_goes_on_where_ours_ended_and_back(
    one_node: dcpstream_node.Node, read: Path, commands: Commands, tmp_path: Path, form: str
) -> None:
    text = commands("offsets", "export", str(read), "--format", form, "--bucket-uuid", "ab")
    theirs, back = tmp_path / "theirs.json", tmp_path / "back"
    theirs.write_text(text, encoding="utf-8")
    at = ("--format", form, "--cluster", one_node.connection_string)
    assert commands("offsets", "import", str(theirs), str(back), *at) == f"4 vbuckets imported to {back}\n"
    assert commands("offsets", "diff", str(read), str(back)) == "no difference\n"
    with KvClient(one_node.connection_string, "Administrator", "password", "default") as kv:
        kv.set("new", "{}")
    assert keys_from(commands, one_node, back) == {"new"}
    assert "import into a new file" in commands.refused("offsets", "import", str(theirs), str(back), *at, expect=2)


def test_positions_without_bounds_are_completed(
    one_node: dcpstream_node.Node, read: Path, commands: Commands, tmp_path: Path
) -> None:
    data = json.loads(commands("offsets", "export", str(read), "--format", "kafka-connect"))
    for row in data["offsets"]:
        row["offset"] = {name: row["offset"][name] for name in ("bySeqno", "vbuuid")}
    theirs, back = tmp_path / "theirs.json", tmp_path / "back"
    theirs.write_text(json.dumps(data), encoding="utf-8")
    at = ("--format", "kafka-connect", "--cluster", one_node.connection_string)
    commands("offsets", "import", str(theirs), str(back), *at)
    assert all(not record.offset.is_planned for record in FileOffsetStore(back).load().values())
    assert keys_from(commands, one_node, back) == set(), "no rollback, and nothing twice"


def test_positions_without_a_branch_are_taken_to_be_on_that_of_now(
    one_node: dcpstream_node.Node, read: Path, commands: Commands, tmp_path: Path
) -> None:
    data = json.loads(commands("offsets", "export", str(read), "--format", "kafka-connect"))
    for row in data["offsets"]:
        row["offset"] = {"bySeqno": row["offset"]["bySeqno"]}
    theirs, back = tmp_path / "theirs.json", tmp_path / "back"
    theirs.write_text(json.dumps(data), encoding="utf-8")
    at = ("--format", "kafka-connect", "--cluster", one_node.connection_string)
    commands("offsets", "import", str(theirs), str(back), *at)
    assert commands.error.startswith("4 positions name no branch")
    assert keys_from(commands, one_node, back) == set(), "no rollback, and nothing twice"


def test_what_cannot_be_imported(one_node: dcpstream_node.Node, commands: Commands, tmp_path: Path) -> None:
    at = ("--format", "go-dcp", "--cluster", one_node.connection_string)
    theirs, new = tmp_path / "theirs.json", str(tmp_path / "new")
    for text, told in (
        ("no json", f"{theirs}: this is no checkpoint of go-dcp"),
        ('{"0": {}}', "checkpoint is missing"),
        ("{}", "has no positions"),
        ('{"9": {"checkpoint": {"vbuuid": 1, "seqno": 1}}}', "the bucket serves no vbucket 9"),
    ):
        theirs.write_text(text, encoding="utf-8")
        assert told in commands.refused("offsets", "import", str(theirs), new, *at, expect=5)
    assert not Path(new).exists()
    theirs.write_text('{"0": {"checkpoint": {"vbuuid": 1, "seqno": 1}}}', encoding="utf-8")
    missing = str(tmp_path / "missing" / "new")
    told = commands.refused("offsets", "import", str(theirs), missing, *at, expect=2)
    assert told.startswith(f"dcpstream: FILE: the directory {tmp_path}/missing does not exist")


def test_seek(one_node: dcpstream_node.Node, read: Path, commands: Commands) -> None:
    at = (str(read), "--cluster", one_node.connection_string)
    everything = commands("stream", one_node.connection_string).count("\n")
    assert "4 vbuckets of" in commands("offsets", "seek", *at, "--to", "earliest")
    assert commands("stream", one_node.connection_string, "--offsets", str(read)).count("\n") == everything
    commands("offsets", "seek", *at, "--to", "earliest", "--vbucket", "1")
    commands("offsets", "seek", *at, "--to", "latest")
    assert keys_from(commands, one_node, read) == set()
    lines = [json.loads(line) for line in commands("stream", one_node.connection_string).splitlines()]
    last = max((line for line in lines if line["vbucket"] == 1), key=lambda line: int(line["seqno"]))
    commands("offsets", "seek", *at, "--to", str(int(last["seqno"]) - 1), "--vbucket", "1")
    assert keys_from(commands, one_node, read) == {last["key"]}


def test_positions_that_cannot_be_sought(one_node: dcpstream_node.Node, read: Path, commands: Commands) -> None:
    at = ("offsets", "seek", str(read), "--cluster", one_node.connection_string)
    assert "is no position" in commands.refused(*at, "--to", "yesterday", expect=2)
    assert "needs --vbucket" in commands.refused(*at, "--to", "7", expect=2)
    assert "has no seqno 999999 yet" in commands.refused(*at, "--to", "999999", "--vbucket", "0", expect=2)
    assert "serves no vbucket 9" in commands.refused(*at, "--to", "earliest", "--vbucket", "9", expect=2)


def test_go_dcp_wants_the_uuid_of_the_bucket(read: Path, commands: Commands) -> None:
    assert "bucket list --json" in commands.refused("offsets", "export", str(read), "--format", "go-dcp", expect=2)
