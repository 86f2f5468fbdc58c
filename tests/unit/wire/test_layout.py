"""The layout table itself."""

from __future__ import annotations

import pytest

from dcpstream import wire
from dcpstream.errors import FieldError
from dcpstream.wire import LAYOUTS, Kind, Opcode
from dcpstream.wire.messages import dcp
from tests.kit import recorded

# Bytes on the wire before the key, by opcode: what flow control counts for an empty document.
FLOW_CONTROLLED = {
    Opcode.DCP_STREAM_END: {28},
    Opcode.DCP_SNAPSHOT_MARKER: {44, 25 + 36, 25 + 44, 25 + 52},
    Opcode.DCP_MUTATION: {55},
    Opcode.DCP_DELETION: {42, 45},
    Opcode.DCP_EXPIRATION: {44},
    Opcode.DCP_SET_VBUCKET_STATE: {25},
    Opcode.DCP_SYSTEM_EVENT: {37},
    Opcode.DCP_PREPARE: {55},
    Opcode.DCP_COMMIT: {40},
    Opcode.DCP_ABORT: {40},
    Opcode.DCP_SEQNO_ADVANCED: {32},
    Opcode.DCP_OSO_SNAPSHOT: {28},
    Opcode.DCP_CACHE_TRANSFER: {24},
    Opcode.DCP_CACHE_TRANSFER_END: {24},
}


def test_sizes_of_flow_controlled_messages() -> None:
    sizes: dict[int, set[int]] = {}
    for layout in LAYOUTS:
        if layout.flow_controlled:
            sizes.setdefault(layout.opcode, set()).add(24 + layout.extras_bytes + layout.value_bytes)
    assert sizes == FLOW_CONTROLLED


def test_every_dcp_opcode_has_a_request_layout() -> None:
    with_layout = {layout.opcode for layout in LAYOUTS if layout.kind is Kind.REQUEST}
    assert {opcode for opcode in Opcode if opcode.name.startswith("DCP_")} <= with_layout


def test_no_two_layouts_of_an_opcode_fit_the_same_frame() -> None:
    for line in recorded.all_frames():
        if line.is_malformed:
            continue
        frame = wire.decode_frame(line.frame)
        kind = Kind.RESPONSE if frame.is_response else Kind.REQUEST
        fitting = [
            layout.name
            for layout in LAYOUTS
            if (layout.opcode, layout.kind) == (frame.opcode, kind) and layout.mismatch(frame) is None
        ]
        assert len(fitting) <= 1, fitting


def test_numpy_dtype_describes_header_and_extras() -> None:
    numpy = pytest.importorskip("numpy")
    layout = dcp.Mutation.layout
    dtype = numpy.dtype(layout.numpy_dtype())
    assert dtype.itemsize == 24 + 31
    data = dcp.Mutation(vbid=7, opaque=9, cas=11, by_seqno=2**63 + 1, rev_seqno=3, flags=4, key=b"k").encode()
    row = numpy.frombuffer(data[: dtype.itemsize], dtype)[0]
    assert (row["vbid"], row["opaque"], row["cas"]) == (7, 9, 11)
    assert (int(row["by_seqno"]), row["rev_seqno"], row["flags"]) == (2**63 + 1, 3, 4)


def test_a_field_that_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(FieldError, match=r"StreamEnd\.reason=-1 is not a u32"):
        dcp.StreamEnd(reason=-1).encode()
    with pytest.raises(FieldError, match=r"BufferAck\.freed_bytes=4294967296 is not a u32"):
        dcp.BufferAck(freed_bytes=2**32).encode()


def test_messages_are_frozen_and_comparable() -> None:
    message = dcp.StreamEnd(reason=1)
    assert message == dcp.StreamEnd(reason=1)
    with pytest.raises(AttributeError):
        message.reason = 2  # type: ignore[misc]


def test_every_layout_names_its_source() -> None:
    assert all(layout.source for layout in LAYOUTS)
