from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dcpstream.cli import decode
from dcpstream.errors import ConfigError, FrameError
from dcpstream.wire import Magic, Opcode, encode_request, encode_response
from dcpstream.wire.messages.dcp import AddStream, Mutation, StreamEnd

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


def test_a_line_names_the_message_and_its_fields(tmp_path: Path) -> None:
    _, output = decoded(END.encode() + MUTATION.encode(), tmp_path=tmp_path)
    lines = output.splitlines()
    assert lines[0].startswith("00000000 → DCP_STREAM_END")
    assert "vb:5" in lines[0]
    assert "opaque:0xfeedcafe" in lines[0]
    assert "reason=2" in lines[0]
    assert "DCP_MUTATION" in lines[1]
    assert f"by_seqno={2**53 + 1}" in lines[1]
    assert lines[2].strip() == "key: hello"
    assert lines[3].strip() == "value: world"


def test_json_keeps_64_bit_fields_as_text(tmp_path: Path) -> None:
    _, output = decoded(MUTATION.encode(), "--json", tmp_path=tmp_path)
    row = json.loads(output)
    assert row["fields"]["by_seqno"] == str(2**53 + 1)
    assert row["cas"] == "99"
    assert row["key"] == "hello"
    assert row["message"] == "Mutation"


def test_unknown_and_misshapen_frames_are_shown_raw_with_the_reason(tmp_path: Path) -> None:
    unknown = encode_request(0xDE, extras=b"\x01", value=b"\xff\xfe")
    short = encode_request(Opcode.DCP_ADD_STREAM, extras=b"\x00")
    _, output = decoded(unknown + short, tmp_path=tmp_path)
    assert "extras:01" in output
    assert "value: fffe" in output
    assert "problem: DCP_ADD_STREAM request fits no layout" in output


def test_responses_show_their_status(tmp_path: Path) -> None:
    _, output = decoded(encode_response(Opcode.GET, status=1, value=b"Not found"), tmp_path=tmp_path)
    assert "← GET KEY_ENOENT" in output
    assert "problem" not in output


def test_frames_before_the_broken_one_are_yielded() -> None:
    data = AddStream(vbid=1, flags=0).encode() + b"\x00" * 24
    rest = decode.frames(data)
    offset, frame = next(rest)
    assert (offset, frame.magic) == (0, Magic.REQUEST)
    with pytest.raises(FrameError) as caught:
        next(rest)
    assert caught.value.offset == 28


def test_last_frame_that_is_not_whole_is_an_error() -> None:
    with pytest.raises(FrameError):
        list(decode.frames(END.encode()[:-1]))


def test_hex_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="the input is not hexadecimal text"):
        decode.frame_bytes(b"80 5x", "hex")


def test_long_values_are_cut_with_their_size(tmp_path: Path) -> None:
    _, output = decoded(encode_request(Opcode.SET, extras=bytes(8), key=b"k", value=b"v" * 500), tmp_path=tmp_path)
    assert "… (500 B)" in output


def test_a_key_with_a_collection_id_stays_readable(tmp_path: Path) -> None:
    _, output = decoded(encode_request(Opcode.GET, key=b"\x08flight"), tmp_path=tmp_path)
    assert r"key: \x08flight" in output


def test_input_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "MAX_INPUT_BYTES", 10)
    with pytest.raises(ConfigError, match="FILE"):
        decoded(END.encode(), tmp_path=tmp_path)
