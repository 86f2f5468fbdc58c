"""Collection ids, frame infos, xattrs, snappy, failover logs, statuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream import errors, wire
from dcpstream.errors import FieldError
from dcpstream.model import FailoverLog
from dcpstream.wire import Feature, Opcode, Status, keys, values
from dcpstream.wire.messages.kv import encode_features
from tests.kit.cases import each_case
from tests.kit.rules import rule

LEB128 = [
    (0, "00"),
    (0x7F, "7f"),
    (0x80, "8001"),
    (0x555, "d50a"),
    (0x5555, "d5aa01"),
    (0x8000, "808002"),
    (0xFFFF, "ffff03"),
    (0xCAFEF00, "80debf65"),
    (0xCAFEF00D, "8de0fbd70c"),
    (0xFFFFFFFF, "ffffffff0f"),
]


@each_case(("number", "text"), LEB128)
def test_collection_ids_of_the_documentation(number: int, text: str) -> None:
    assert keys.leb128_encode(number).hex() == text
    assert keys.leb128_decode(bytes.fromhex(text) + b"key") == (number, len(text) // 2)


@given(st.integers(0, 2**32 - 1), st.binary(max_size=10))
def test_collection_key_round_trip(number: int, key: bytes) -> None:
    assert keys.split_collection_key(keys.leb128_encode(number) + key) == (number, key)


@rule("COL-03")
@each_case("text", ["", "80", "8080808080", "8000", "ffffffff1f", "808080808001"])
def test_bad_collection_ids_are_refused(text: str) -> None:
    with pytest.raises(FieldError):
        keys.leb128_decode(bytes.fromhex(text))


@given(st.lists(st.tuples(st.integers(0, 270), st.binary(max_size=270)), max_size=5))
def test_frame_infos_round_trip(infos: list[tuple[int, bytes]]) -> None:
    framing = b"".join(keys.encode_frame_info(info_id, data) for info_id, data in infos)
    assert list(keys.decode_frame_infos(framing)) == infos


@rule("HDR-07")
@each_case("text", ["22", "2200", "f0", "0f", "13000000"[:6]])
def test_frame_infos_that_run_past_the_section_are_refused(text: str) -> None:
    with pytest.raises(FieldError):
        list(keys.decode_frame_infos(bytes.fromhex(text)))


_NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)


@given(st.dictionaries(_NAMES, st.binary(max_size=10).filter(lambda text: b"\0" not in text)), st.binary(max_size=20))
def test_xattrs_round_trip(xattrs: dict[str, bytes], body: bytes) -> None:
    value = values.encode_xattrs(xattrs, body)
    assert values.decode_xattrs(value) == (xattrs, body)
    section, rest = values.split_xattrs(value)
    assert section + rest == value
    assert rest == body


@rule("XAT-01", "XAT-02")
@each_case("text", ["", "000000", "00000005", "0000000400000000", "0000000900000005610062", "00000001aa"])
def test_bad_xattr_sections_are_refused(text: str) -> None:
    with pytest.raises(FieldError):
        values.decode_xattrs(bytes.fromhex(text))


@given(st.binary(max_size=2000))
def test_snappy_round_trip(data: bytes) -> None:
    assert values.snappy_uncompress(values.snappy_compress(data)) == data


@rule("HDR-15")
def test_a_snappy_value_that_claims_too_much_is_refused_before_it_is_inflated() -> None:
    with pytest.raises(FieldError, match="more than the"):
        values.snappy_uncompress(b"\xff\xff\xff\xff\x0f" + b"\0" * 20)


@rule("HDR-15", "CMP-05")
def test_what_is_not_snappy_is_refused() -> None:
    with pytest.raises(FieldError, match="not a snappy block"):
        values.snappy_uncompress(b"\x10\xff\xff\xff")


def test_failover_log_round_trip() -> None:
    log = FailoverLog.of((2**64 - 1, 900), (5, 500), (1, 0))
    assert values.decode_failover_log(values.encode_failover_log(log)) == log


@rule("FOL-02", "CON-11")
@each_case("length", [0, 8, 17, 16 * (values.MAX_FAILOVER_ENTRIES + 1)])
def test_failover_logs_of_wrong_length_are_refused(length: int) -> None:
    with pytest.raises(FieldError, match="multiple of 16"):
        values.decode_failover_log(b"\0" * length)


@rule("STA-10")
@each_case("length", [9, 10 * (values.MAX_SEQNO_PAIRS + 1)])
def test_seqno_lists_of_wrong_length_are_refused(length: int) -> None:
    with pytest.raises(FieldError, match="a seqno list"):
        values.decode_vbucket_seqnos(b"\0" * length)


@rule("FOL-02", "STA-10")
def test_the_longest_lists_are_read() -> None:
    assert len(values.decode_failover_log(bytes(16 * values.MAX_FAILOVER_ENTRIES)).entries) == 4096
    assert len(values.decode_vbucket_seqnos(bytes(10 * values.MAX_SEQNO_PAIRS))) == 1 << 16


def test_vbucket_seqnos_round_trip() -> None:
    pairs = [(0, 1), (1023, 2**64 - 1)]
    assert values.decode_vbucket_seqnos(values.encode_vbucket_seqnos(pairs)) == pairs


@each_case(
    ("status", "kind", "is_retryable"),
    [
        (Status.KEY_ENOENT, errors.KeyNotFound, False),
        (Status.NOT_MY_VBUCKET, errors.NotMyVbucket, True),
        (Status.TMPFAIL, errors.TemporaryFailure, True),
        (Status.EACCESS, errors.AccessDenied, False),
        (0x7777, errors.StatusError, False),
    ],
)
def test_statuses_become_exceptions(status: int, kind: type[errors.StatusError], is_retryable: bool) -> None:
    error = wire.status_error(status, opcode=Opcode.DCP_STREAM_REQ, vbid=3, opaque=9, context="why", config=b"{}")
    assert type(error) is kind
    assert error.is_retryable is is_retryable
    assert (error.status, error.opcode, error.vbid, error.opaque) == (status, Opcode.DCP_STREAM_REQ, 3, 9)
    assert "DCP_STREAM_REQ for vbucket 3" in str(error)
    assert "(why)" in str(error)
    if isinstance(error, errors.NotMyVbucket):
        assert error.config == b"{}"


def test_features_are_two_bytes_each_in_the_given_order() -> None:
    assert encode_features([Feature.SNAPPY, Feature.XATTR, 0x1234]).hex() == "000a00061234"
    assert encode_features([]) == b""
    with pytest.raises(FieldError, match=r"FeatureCode\.code=65536"):
        encode_features([65536])
