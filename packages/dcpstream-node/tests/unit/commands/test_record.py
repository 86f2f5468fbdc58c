"""`dcpstream record`: its options, what it prints, and how it ends."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import dcpstream_node
from dcpstream.client import KvClient
from dcpstream_node.recording.player import header_of
from tests.kit.commands import Commands
from tests.kit.waiting import wait_until


def write(node: dcpstream_node.Node, *keys: str) -> None:
    with KvClient(node.connection_string, "Administrator", "password", "default") as kv:
        kv.set_many((key, "{}") for key in keys)


def test_it_records_and_goes_on(one_node: dcpstream_node.Node, commands: Commands, tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    write(one_node, "record::1", "record::2")
    at = ("record", path, "-c", one_node.connection_string)
    first = commands.json(*at)
    assert (first["file"], first["rollbacks"], first["incomplete_vbuckets"]) == (path, 0, 0)
    assert first["bytes"] == Path(path).stat().st_size
    write(one_node, "record::3")
    assert commands(*at).startswith(f"{path}: {first['changes'] + 1} changes, 0.0 MB, 100% of what there is")
    assert header_of(Path(path)).bucket == "default"


def test_it_follows_until_a_time(one_node: dcpstream_node.Node, commands: Commands, tmp_path: Path) -> None:
    at = ("record", str(tmp_path / "file"), "-c", one_node.connection_string, "--from", "latest")
    assert commands.json(*at, "--follow", "--until", "2020-01-01T00:00:00")["changes"] == 0
    assert "--until needs --follow" in commands.refused(*at, "--until", "10m", expect=2)
    assert "--until: soon is no time" in commands.refused(*at, "--follow", "--until", "soon", expect=2)


def test_a_signal_ends_it_in_order(one_node: dcpstream_node.Node, commands: Commands, tmp_path: Path) -> None:
    path = tmp_path / "file"

    def stop_when_it_runs() -> None:
        wait_until(path.exists, "the file")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=stop_when_it_runs)
    thread.start()
    out = commands("record", str(path), "-c", one_node.connection_string, "--follow")
    thread.join()
    assert out.startswith(f"{path}: ")
