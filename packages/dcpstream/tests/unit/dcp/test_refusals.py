"""Shapes of DCP requests and what is answered to those that are wrong."""

from dcpstream.dcp.producer import connection as producer
from dcpstream.dcp.refusals import Refusal, check_shape, check_stream_flags
from dcpstream.wire import Opcode, Status
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


@each_case("release", ["7.2", "8.0"])
@each_case("flags", [0, 0xB7, 0x01, 0x80])
def test_stream_flags_of_the_recorded_versions(flags, release):
    assert check_stream_flags(flags, RELEASES[release]) is None


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


def test_every_dcp_opcode_has_an_answer_for_a_bare_request():
    for opcode in sorted(DCP_OPCODES):
        refusal = check_shape(frame_of(opcode))
        assert refusal is None or refusal.status in (Status.EINVAL, Status.NOT_SUPPORTED, Status.UNKNOWN_COMMAND)


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
