from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcpstream.cli import app, exits, stream
from dcpstream.client import Change, FileOffsetStore, KvClient, SqliteOffsetStore
from dcpstream.errors import ConfigError
from dcpstream_node.embedded import Node


def change(key: bytes = b"k", value: bytes | None = b'{"a":1}', xattrs: dict[str, bytes] | None = None) -> Change:
    return Change("mutation", key, value, "_default", "_default", 7, 2**63, 2**53 + 1, 1, 99, 0, 1, 0, xattrs or {})


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node(vbuckets=4) as node, KvClient(node.connection_string, "Administrator", "password", "default") as kv:
        kv.set_many([(f"key-{number}", json.dumps({"n": number})) for number in range(20)])
        kv.delete("key-3")
        kv.set("text", "no json")
        kv.set("bytes", b"\xff\xfe")
        yield node


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, object]], str]:
    """Exit status, lines, and what went to the standard error."""
    status = app.run(["stream", *arguments])
    output = capsys.readouterr()
    return status, [json.loads(line) for line in output.out.splitlines()], output.err


def documents(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """The lines about documents: a new bucket has events of its collections, too."""
    return [row for row in rows if "key" in row]


def test_values_and_keys_that_are_no_json_are_distinguished() -> None:
    assert stream.as_object(change(value=b"plain"))["text"] == "plain"
    assert stream.as_object(change(value=b"\xff"))["base64"] == "/w=="
    assert "value" not in stream.as_object(change(value=None))
    assert stream.as_object(change(key=b"\xff"))["key_base64"] == "/w=="
    assert stream.as_object(change(xattrs={"_sync": b'{"r":1}'}))["xattrs"] == {"_sync": {"r": 1}}


def test_a_line_has_left_before_the_next_change_is_asked_for() -> None:
    class Output(io.StringIO):
        flushed = 0

        def flush(self) -> None:
            self.flushed += 1

    output = Output()

    def changes() -> Iterator[Change]:
        yield change()
        assert output.flushed == 1
        yield change()
        assert output.flushed == 2

    stream.print_changes(changes(), output, is_flushed=True)
    assert len(output.getvalue().splitlines()) == 2


@pytest.mark.parametrize("limit", [1, 7])
def test_with_a_limit_each_run_goes_on_after_the_last_line(
    node: Node, limit: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offsets = str(tmp_path / "offsets")
    rows: list[dict[str, object]] = []
    while found := printed(capsys, node.connection_string, "--offsets", offsets, "--limit", str(limit))[1]:
        assert len(found) <= limit
        rows += found
    assert len({(row["vbucket"], row["seqno"]) for row in rows}) == len(rows)
    assert len(documents(rows)) == len({row["key"] for row in documents(rows)}) == 22


def test_following_with_a_limit_ends(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    status, rows, _ = printed(capsys, node.connection_string, "--follow", "--limit", "5")
    assert (status, len(rows)) == (exits.OK, 5)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--password", "wrong"], exits.REFUSED, "check username and password"),
        (["--bucket", "nothing"], exits.REFUSED, "nothing"),
        (["--collections", "no.such"], exits.USAGE, "no.such"),
        (["--from", "latest"], exits.USAGE, "--follow"),
        (["--offsets", "/no/such/directory/file"], exits.USAGE, "directory /no/such/directory does not exist"),
        (["--from", "yesterday"], exits.USAGE, "yesterday"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    node: Node, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, words: str
) -> None:
    found, rows, error = printed(capsys, node.connection_string, *arguments)
    assert (found, rows) == (status, [])
    assert words in error
    assert "Traceback" not in error


def test_nobody_listening_is_said_soon(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, error = printed(capsys, "couchbase://127.0.0.1:1", "--connect-timeout", "1")
    assert status == exits.UNREACHABLE
    assert "127.0.0.1:1" in error


def test_each_try_at_a_node_that_never_answered_is_reported_at_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="dcpstream"):
        app.run(["stream", "couchbase://127.0.0.1:1", "--connect-timeout", "0.1"])
    assert "attempt 1 failed, trying again in" in caplog.messages[0]
    assert "cannot connect to 127.0.0.1:1: Connection refused" in caplog.messages[0]


def test_damaged_offsets_are_bad_data_and_left_alone(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "offsets.json"
    file.write_text("garbage", encoding="utf-8")
    status, _, error = printed(capsys, node.connection_string, "--offsets", str(file))
    assert status == exits.BAD_DATA
    assert "offsets.json" in error
    assert file.read_text(encoding="utf-8") == "garbage"


def test_kind_of_store_follows_from_the_name(tmp_path: Path) -> None:
    assert isinstance(stream.offset_store(tmp_path / "o.sqlite"), SqliteOffsetStore)
    assert isinstance(stream.offset_store(tmp_path / "o.json"), FileOffsetStore)
    assert stream.offset_store(None) is None
    with pytest.raises(ConfigError):
        stream.offset_store(tmp_path / "missing" / "o.json")


def test_only_what_lasts(capsys: pytest.CaptureFixture[str], node: Node) -> None:
    status, rows, _ = printed(
        capsys, node.connection_string, "--stable", "--purge-gap", "ignore", "--network", "default"
    )
    assert status == exits.OK
    assert len(documents(rows)) == 22


def test_with_tls(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trust = tmp_path / "ca.pem"
    with Node(vbuckets=1, tls=True) as secured:
        trust.write_text(secured.ca_certificate, encoding="utf-8")
        with KvClient(secured.connection_string, "Administrator", "password", "default") as kv:
            kv.set("key", "{}")
        string = f"couchbases://127.0.0.1:{secured.tls_port}"
        status, rows, _ = printed(capsys, string, "--trust", str(trust), "--sasl-mechanism", "PLAIN")
        assert (status, len(documents(rows))) == (exits.OK, 1)
        status, _, error = printed(capsys, string)
        assert (status, "not trusted" in error) == (exits.UNREACHABLE, True)
        status, rows, _ = printed(capsys, string, "--tls-verify", "none")
        assert (status, len(documents(rows))) == (exits.OK, 1)
        status, _, error = printed(capsys, node_string(secured), "--trust", str(trust))
        assert (status, "couchbases://" in error) == (exits.USAGE, True)


def node_string(node: Node) -> str:
    return f"couchbase://127.0.0.1:{node.port}"


@pytest.mark.parametrize("command", [("stream",), ("tail", "--no-follow")])
def test_what_is_written_after_a_run_without_rows_is_not_skipped(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Node(vbuckets=2) as node, KvClient(node.connection_string, "Administrator", "password", "default") as kv:
        kv.set("before", "1")
        arguments = [*command, node.connection_string, "--from", "latest", "--offsets", str(tmp_path / "offsets")]
        assert app.run(arguments) == 0
        assert capsys.readouterr().out == ""
        kv.set_many((f"between {number}", "1") for number in range(8))
        assert app.run(arguments) == 0
    assert capsys.readouterr().out.count("between") == 8
