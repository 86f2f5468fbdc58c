"""`dcpstream replay`: a node with the recorded bucket, until it is stopped."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest

import dcpstream
import dcpstream_node
from dcpstream.client import KvClient
from dcpstream.model import Manifest
from dcpstream_node.recording.file import Header
from tests.kit.commands import Commands
from tests.kit.waiting import wait_until


@pytest.fixture(scope="module")
def recording(one_node: dcpstream_node.Node, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from dcpstream.cli.app import run

    with KvClient(one_node.connection_string, "Administrator", "password", "default") as kv:
        kv.set_many((f"replay::{n}", "{}") for n in range(9))
    path = tmp_path_factory.mktemp("recording") / "file"
    assert run(["record", str(path), "-c", one_node.connection_string]) == 0
    return path


@pytest.mark.parametrize("options", [[], ["--speed", "1000", "--bucket", "copy"]], ids=["at once", "with a speed"])
def test_it_serves_the_recording_until_it_is_stopped(
    recording: Path, commands: Commands, tmp_path: Path, options: list[str]
) -> None:
    ready = tmp_path / "ready"
    bucket = "copy" if options else "default"
    found: list[str] = []

    def read_and_stop() -> None:
        try:
            wait_until(ready.exists, "the ready file")
            node = f"couchbase://127.0.0.1:{json.loads(ready.read_text())['kv']}"
            with dcpstream.Client(node, username="Administrator", password="password", bucket=bucket) as client:
                for change in client.changes():
                    if change.op == "mutation":
                        found.append(change.key.decode())
                    if len(found) == 9:
                        break
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=read_and_stop)
    thread.start()
    ports = ("--port", "0", "--mgmt-port", "0", "--ready-file", str(ready))
    told = commands.json("replay", str(recording), *ports, *options)
    thread.join()
    assert sorted(found) == [f"replay::{n}" for n in range(9)]
    assert (told["changes"], told["bucket"], told["is_cut"], told["incomplete_vbuckets"]) == (9, bucket, False, 0)
    assert "couchbase://127.0.0.1:" in commands.error
    assert not ready.exists()


@pytest.mark.parametrize("command", ["replay", "decode"])
def test_a_recording_without_its_first_block_is_reported(commands: Commands, tmp_path: Path, command: str) -> None:
    path = tmp_path / "recording"
    line = Header("travel", "ab12", 4, Manifest.DEFAULT, None).to_line()
    for content in (b"", line[:9], line):
        path.write_bytes(content)
        what = "is a recording without changes:" if content else "is empty. If it is a recording,"
        assert commands.refused(command, str(path), expect=2) == (
            f"dcpstream: {path} {what} its recorder was ended before it wrote the first block. Call `dcpstream record` "
            "again, which begins the file again\n"
        )


def test_what_is_no_recording_is_refused(commands: Commands, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("text")
    assert "is no recording as `dcpstream record` writes them" in commands.refused("replay", str(other), expect=2)
    assert "none does not exist" in commands.refused("replay", str(tmp_path / "none"), expect=1)
