from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dcpstream.errors import ConfigError
from dcpstream.model import FailoverLog, Manifest, StreamOffset
from dcpstream.wire import Opcode, encode_request, encode_response
from dcpstream.wire.cached_items import CachedItem, encode_cached_item
from dcpstream.wire.messages.dcp import CacheTransfer, Mutation, SnapshotMarker, StreamEnd
from dcpstream_node.commands import decode
from dcpstream_node.recording import history
from dcpstream_node.recording.file import Header, RecordingWriter
from tests.kit.commands import Commands

END = StreamEnd(vbid=5, opaque=0xFEEDCAFE, reason=2)
MUTATION = Mutation(
    vbid=5,
    opaque=0x1210,
    cas=99,
    by_seqno=2**53 + 1,
    rev_seqno=1,
    key=b"hello",
    value=b"world",
    datatype=1,
)


def decoded(data: bytes | str, *options: str, tmp_path: Path) -> tuple[int, str]:
    file = tmp_path / "frames"
    file.write_bytes(data.encode() if isinstance(data, str) else data)
    outcome = CliRunner().invoke(decode.decode_command, [str(file), *options])
    if outcome.exception and not isinstance(outcome.exception, SystemExit):
        raise outcome.exception
    return outcome.exit_code, outcome.output


def test_binary_and_hex_of_the_same_bytes_read_the_same(tmp_path: Path) -> None:
    data = END.encode() + MUTATION.encode()
    spaced = "# one direction\n" + data.hex(" ", 4) + "   # the end\n"
    assert decoded(data, tmp_path=tmp_path) == decoded(spaced, tmp_path=tmp_path)


def test_json_keeps_64_bit_fields_as_text(tmp_path: Path) -> None:
    _, output = decoded(MUTATION.encode(), "--json", tmp_path=tmp_path)
    row = json.loads(output)
    assert row["fields"]["by_seqno"] == str(2**53 + 1)
    assert row["cas"] == "99"
    assert row["key"] == "hello"
    assert row["message"] == "Mutation"


def test_responses_show_their_status(tmp_path: Path) -> None:
    _, output = decoded(encode_response(Opcode.GET, status=1, value=b"Not found"), tmp_path=tmp_path)
    assert "← GET KEY_ENOENT" in output
    assert "problem" not in output


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"GET / HTTP/1.1\r\nHost: node\r\n", "0x47 is not a magic, so no frame begins at byte 0 (header "),
        (END.encode() + b"\xde\xad" * 12, "0xde is not a magic, so no frame begins at byte 28 (header "),
        (END.encode() * 2 + END.encode()[:-2], "the data ends 2 bytes before the end of the frame at byte 56 (header "),
        (END.encode() + b"\x80", "the data ends after 1 of the 24 bytes of the header at byte 28 (header 80)"),
    ],
)
def test_what_is_no_frame_is_reported_with_its_place_and_what_to_do(
    commands: Commands, tmp_path: Path, data: bytes, told: str
) -> None:
    path = tmp_path / "input"
    path.write_bytes(data)
    printed = commands("decode", str(path), "--format", "binary", expect=5)
    assert commands.error.startswith(f"dcpstream: {told}")
    todo = "cut the input there to keep them" if printed else "Cut off what comes before the first one"
    assert todo in commands.error


def test_a_key_with_a_collection_id_stays_readable(tmp_path: Path) -> None:
    _, output = decoded(encode_request(Opcode.GET, key=b"\x08flight"), tmp_path=tmp_path)
    assert r"key: \x08flight" in output


def test_input_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "MAX_INPUT_BYTES", 10)
    with pytest.raises(ConfigError, match=r"the input has more than 0 MiB\. Cut it at the start of a frame"):
        decoded(END.encode(), tmp_path=tmp_path)


OPENED = history.opened(5, StreamOffset.ZERO, FailoverLog.of((7, 0)))
ROW = Mutation(vbid=5, opaque=5, cas=9, by_seqno=1, rev_seqno=1, key=b"\0hello", value=b"{}").encode()
RECORDED = (OPENED[:72], OPENED[72:], SnapshotMarker.pack(0, 1, 1, vbid=5, opaque=5), ROW)


def test_the_incomplete_end_of_a_recording_is_reported(commands: Commands, tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    with RecordingWriter.create(recording, Header("default", "", 8, Manifest.DEFAULT)) as writer:
        for time_ns, data in enumerate(RECORDED):
            writer.write(data, time_ns)
    whole = commands("decode", str(recording))
    assert not commands.error
    times = [json.loads(line).get("time_ns") for line in commands("decode", str(recording), "--json").splitlines()]
    assert times[1:] == ["1", "2", "3"]
    size = recording.stat().st_size
    with recording.open("r+b") as file:
        file.truncate(size - 1)
    assert whole.startswith(commands("decode", str(recording)))
    assert "ends in an incomplete block: it was still being written" in commands.error


CACHED = CachedItem(b"\0k1", b"{}", 2**53 + 1, 7, 2, 0x02000000, 0, 1, 4)


def test_cached_documents_are_shown_one_by_one(tmp_path: Path) -> None:
    records = encode_cached_item(CACHED) + encode_cached_item(CACHED._replace(key=b"\0k2", value=b"", seqno=9))
    frame = CacheTransfer(vbid=5, opaque=1, value=records)
    code, text = decoded(frame.encode(), tmp_path=tmp_path)
    assert code == 0
    lines = [line for line in text.splitlines() if "document" in line]
    assert "seqno=7 rev_seqno=2 cas=9007199254740993 flags=33554432 expiration=0 datatype=1 hint=4" in lines[0]
    assert "document k1 of collection 0x0:" in lines[0]
    assert lines[0].endswith("value: {}")
    assert lines[1].endswith("value: left out")
    _, text = decoded(frame.encode(), "--json", tmp_path=tmp_path)
    first, second = json.loads(text.splitlines()[0])["documents"]
    assert (first["key"], first["value"], first["cas"], second["seqno"]) == ("\0k1", "{}", str(2**53 + 1), "9")
    assert "value" not in second


def test_a_cached_document_that_is_cut_is_a_problem(tmp_path: Path) -> None:
    frame = CacheTransfer(vbid=5, opaque=1, value=encode_cached_item(CACHED)[:-1])
    _, text = decoded(frame.encode(), tmp_path=tmp_path)
    assert "problem: a record ends 1 bytes behind the value" in text
