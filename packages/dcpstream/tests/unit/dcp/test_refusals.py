"""Shapes of DCP requests and what is answered to those that are wrong."""

import json

from dcpstream.dcp.consumer import connection as consumer
from dcpstream.dcp.producer import connection as producer
from dcpstream.dcp.refusals import Refusal, answer, check_shape, check_stream_flags, refuse, stream_id_of
from dcpstream.wire import Datatype, Opcode, Status, decode_frame
from dcpstream.wire.layout import Kind, Side
from dcpstream.wire.messages import DCP_OPCODES, LAYOUTS
from dcpstream.wire.release import RELEASES
from tests.kit.cases import each_case
from tests.kit.lists import frame_of
from tests.kit.rules import rule


@rule("HDR-18")
@each_case(
    ("opcode", "fields", "text"),
    [
        (Opcode.DCP_CLOSE_STREAM, {"extras": b"\0"}, "Request must not include extras"),
        (Opcode.DCP_CLOSE_STREAM, {"key": b"k"}, "Request must not include key"),
        (Opcode.DCP_CLOSE_STREAM, {"value": b"v"}, "Request must not include value"),
        (Opcode.DCP_CLOSE_STREAM, {"datatype": 1}, "Request datatype invalid"),
        (Opcode.DCP_STREAM_REQ, {"extras": bytes(47)}, "Request must include extras of length 48"),
        (Opcode.DCP_CONTROL, {"value": b"v"}, "Request must include key"),
        (Opcode.DCP_CONTROL, {"key": b"k"}, "Request must include value"),
        (Opcode.DCP_OPEN, {"key": b"k" * 251, "extras": bytes(8)}, "Key length exceeds 250"),
        (Opcode.DCP_MUTATION, {"extras": bytes(31)}, "Request must include key"),
        (Opcode.DCP_DELETION, {"extras": bytes(20), "key": b"k"}, "Request must include extras of length 18"),
    ],
)
def test_misfits_are_named(opcode, fields, text):
    assert check_shape(frame_of(opcode, **fields)) == Refusal(Status.EINVAL, text)


@each_case(
    ("opcode", "fields"),
    [
        (Opcode.DCP_STREAM_REQ, {"extras": bytes(48)}),
        (Opcode.DCP_DELETION, {"extras": bytes(18), "key": b"k"}),
        (Opcode.DCP_DELETION, {"extras": bytes(21), "key": b"k", "value": b"x", "datatype": 4}),
        (Opcode.DCP_SNAPSHOT_MARKER, {"extras": bytes(20)}),
        (Opcode.DCP_SNAPSHOT_MARKER, {"extras": b"\0", "value": bytes(36)}),
        (Opcode.DCP_SYSTEM_EVENT, {"extras": bytes(13)}),
        (Opcode.DCP_CLOSE_STREAM, {"framing": b"\x22\x00\x01"}),
    ],
)
def test_what_fits(opcode, fields):
    assert check_shape(frame_of(opcode, **fields)) is None


def test_a_stream_request_has_a_value_only_where_there_are_collections():
    frame = frame_of(Opcode.DCP_STREAM_REQ, extras=bytes(48), value=b"{}")
    assert check_shape(frame) == Refusal(Status.EINVAL, "Request must not include value")
    assert check_shape(frame, has_collections=True) is None


@each_case("release", ["7.2", "8.0"])
@each_case("flags", [0, 0xB7, 0x01, 0x80])
def test_stream_flags_of_the_recorded_versions(flags, release):
    assert check_stream_flags(flags, RELEASES[release]) is None


@each_case(
    ("release", "flags"),
    [
        ("7.2", 0x40),
        ("7.2", 0x41),
        *((release, flags) for release in ("7.2", "8.0") for flags in (0x100, 0x200, 1 << 31)),
    ],
)
def test_stream_flags_that_came_later_or_are_none(release, flags):
    refusal = check_stream_flags(flags, RELEASES[release])
    assert (refusal.status, refusal.context.partition(":")[0]) == (Status.EINVAL, "Request contains invalid flags")
    assert "no longer used" in check_stream_flags(flags | 8, RELEASES[release]).context


def test_a_stream_from_latest_may_be_asked_of_a_76():
    assert check_stream_flags(0x40, RELEASES["7.6"]) is None
    refusal = check_stream_flags(0x340, RELEASES["8.0"])
    assert refusal.context == 'Request contains invalid flags: ["unknown:0x100","unknown:0x200"]'


@rule("SNP-04")
@each_case(
    "fields",
    [
        {},
        {"extras": bytes(19)},
        {"extras": b"\0", "value": bytes(20)},
        {"extras": b"\0", "value": bytes(36), "key": b"k"},
        {"extras": b"\0", "value": bytes(36), "datatype": 1},
        {"extras": b"\3", "value": bytes(52)},
    ],
)
def test_a_marker_of_no_version(fields):
    refusal = check_shape(frame_of(Opcode.DCP_SNAPSHOT_MARKER, **fields))
    assert refusal is not None
    assert refusal.status == Status.EINVAL


@each_case(
    ("framing", "status"),
    [
        (b"\xf1\x00\x00", Status.UNKNOWN_FRAME_INFO),
        (b"\x21\x00", Status.EINVAL),
        (b"\x24\x00", Status.EINVAL),
        (b"\xf0", Status.EINVAL),
    ],
)
def test_framing_extras_that_are_wrong(framing, status):
    assert check_shape(frame_of(Opcode.DCP_CLOSE_STREAM, framing=framing)) == Refusal(status)


def test_every_dcp_opcode_has_an_answer_for_a_bare_request():
    for opcode in sorted(DCP_OPCODES):
        refusal = check_shape(frame_of(opcode))
        assert refusal is None or refusal.status in (Status.EINVAL, Status.NOT_SUPPORTED, Status.UNKNOWN_COMMAND)


def test_a_stream_id_of_zero_counts_as_none():
    assert stream_id_of(frame_of(Opcode.DCP_CLOSE_STREAM)) is None
    assert stream_id_of(frame_of(Opcode.DCP_CLOSE_STREAM, framing=b"\x22\x00\x00")) is None
    assert stream_id_of(frame_of(Opcode.DCP_CLOSE_STREAM, framing=b"\x22\x01\x02")) == 0x102


def test_refusals_explain_themselves_in_json():
    request = frame_of(Opcode.DCP_STREAM_REQ, opaque=9)
    frame = decode_frame(refuse(request, Refusal(Status.UNKNOWN_COLLECTION, "no such collection", 0x1F)))
    assert (frame.status, frame.opaque, frame.datatype) == (Status.UNKNOWN_COLLECTION, 9, Datatype.JSON)
    assert json.loads(frame.value) == {"error": {"context": "no such collection"}, "manifest_uid": "1f"}
    bare = decode_frame(refuse(request, Refusal(Status.ERANGE)))
    assert (bare.value, bare.datatype) == (b"", 0)


def test_answers_echo_opcode_and_opaque():
    frame = decode_frame(answer(frame_of(Opcode.DCP_CONTROL, opaque=7), value=b"x"))
    assert (frame.opcode, frame.opaque, frame.status, frame.value) == (Opcode.DCP_CONTROL, 7, 0, b"x")


def sent_by(side: Side) -> set[int]:
    """The DCP requests that the table lets one side send."""
    return {
        layout.opcode
        for layout in LAYOUTS
        if layout.kind is Kind.REQUEST and layout.opcode in DCP_OPCODES and layout.sent_by & side
    }


def test_a_producer_handles_exactly_what_the_table_lets_a_consumer_send() -> None:
    refused = {Opcode.DCP_FLUSH}
    assert set(producer._HANDLERS) - {Opcode.DCP_OPEN} == sent_by(Side.CONSUMER) - refused


def test_a_consumer_handles_what_the_table_lets_a_producer_send() -> None:
    # A node asks no producer for the last one, so it refuses it.
    refused = {Opcode.DCP_FLUSH, Opcode.DCP_OSO_SNAPSHOT}
    assert set(consumer._HANDLERS) - {Opcode.DCP_OPEN} == sent_by(Side.PRODUCER) - refused
