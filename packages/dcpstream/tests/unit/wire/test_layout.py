"""The layout table itself."""

from __future__ import annotations

import pickle
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream import wire
from dcpstream.dcp.consumer import connection as consumer
from dcpstream.dcp.producer import connection as producer
from dcpstream.errors import FieldError
from dcpstream.wire import LAYOUTS, Kind, Layout, Opcode, Record, decode_frame
from dcpstream.wire.fields import i64, raw, record, u16
from dcpstream.wire.layout import Side
from dcpstream.wire.messages import dcp, kv, subdoc
from tests.kit import recorded
from tests.kit.rules import rule
from tests.kit.strategies import messages_of


def test_every_dcp_opcode_has_a_request_layout() -> None:
    with_layout = {layout.opcode for layout in LAYOUTS if layout.kind is Kind.REQUEST}
    assert {opcode for opcode in Opcode if opcode.name.startswith("DCP_")} <= with_layout


def test_no_two_layouts_of_an_opcode_fit_the_same_frame() -> None:
    layouts: dict[object, list[Layout]] = {}
    for layout in LAYOUTS:
        layouts.setdefault((layout.opcode, layout.kind), []).append(layout)
    for line in recorded.all_frames():
        if line.is_malformed:
            continue
        frame = wire.decode_frame(line.frame)
        kind = Kind.RESPONSE if frame.is_response else Kind.REQUEST
        candidates = layouts.get((frame.opcode, kind), ())
        fitting = [layout.name for layout in candidates if layout.mismatch(frame) is None]
        assert len(fitting) <= 1, fitting


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


def test_a_message_without_fields_of_its_own_is_a_message_like_others() -> None:
    close = dcp.CloseStream(opaque=7)
    assert close == dcp.CloseStream(opaque=7) != dcp.CloseStream(opaque=8)
    assert close != dcp.BufferAck(opaque=7, freed_bytes=0)
    assert (hash(close), replace(close, opaque=8)) == (hash(dcp.CloseStream(opaque=7)), dcp.CloseStream(opaque=8))
    assert repr(close).startswith("CloseStream(opaque=7, cas=0,")
    assert pickle.loads(pickle.dumps(close)) == close
    with pytest.raises(AttributeError):
        close.opaque = 1  # type: ignore[misc]
    assert not hasattr(close, "__dict__"), "messages are small"


def test_every_layout_names_its_source() -> None:
    assert all(layout.source for layout in LAYOUTS)


def test_class_names_differ() -> None:
    names = [layout.name for layout in LAYOUTS]
    assert len(names) == len(set(names))


def requests_from(side: Side) -> set[int]:
    return {
        layout.opcode
        for layout in LAYOUTS
        if layout.kind is Kind.REQUEST and layout.sent_by & side and layout.refused is None
    }


def test_each_end_of_a_dcp_connection_handles_what_the_other_end_sends() -> None:
    assert set(producer._HANDLERS) == requests_from(Side.CONSUMER) | {Opcode.DCP_OPEN}
    # SEQNO_ADVANCED is refused, except on streams without sync writes.
    assert set(consumer._HANDLERS) == requests_from(Side.PRODUCER) | {Opcode.DCP_OPEN, Opcode.DCP_SEQNO_ADVANCED}


@given(layout=st.sampled_from(LAYOUTS), data=st.data())
def test_packing_unpacking_and_encoding_agree(layout: Layout, data: st.DataObject) -> None:
    message = data.draw(messages_of(layout))
    cls: Any = type(message)
    frame = message.to_frame()
    if frame.magic in (layout.magic, layout.flexible_magic):
        packed = cls.pack(
            *cls.unpack(frame),
            **{"status" if layout.kind is Kind.RESPONSE else "vbid": frame.vbid},
            opaque=frame.opaque,
            cas=frame.cas,
            datatype=frame.datatype,
            framing=frame.framing,
            key=frame.key,
            value=message.value,
        )
        assert bytes(packed) == (frame.encode() if frame.framing or frame.magic == layout.magic else packed)
        assert cls.decode(frame) == message
    assert message.encode() == frame.encode()


@rule("HDR-01")
def test_packing_names_the_field_that_does_not_fit() -> None:
    with pytest.raises(FieldError, match=r"StreamEnd\.reason=-1 is not a u32"):
        dcp.StreamEnd.pack(-1)
    with pytest.raises(FieldError, match=r"SnapshotMarkerV2\.flags=4294967296 is not a u32"):
        dcp.SnapshotMarkerV2.pack(1, 2, 2**32, 4, 5)
    with pytest.raises(FieldError, match="a header field does not fit"):
        dcp.StreamEnd.pack(0, vbid=2**16)
    with pytest.raises(FieldError, match=r"RangeScanCancel\.scan_id=b'short' is not 16 bytes"):
        kv.RangeScanCancel(scan_id=b"short").encode()


@rule("HDR-01")
def test_a_typed_decode_refuses_other_messages() -> None:
    frame = decode_frame(dcp.StreamEnd(reason=1, vbid=2).encode())
    assert dcp.StreamEnd.decode(frame).reason == 1
    with pytest.raises(FieldError, match="not BufferAck: REQUEST DCP_STREAM_END"):
        dcp.BufferAck.decode(frame)
    with pytest.raises(FieldError, match="not SeqnoAdvanced: extras of 4 bytes, not 8"):
        dcp.SeqnoAdvanced.unpack(frame)


@rule("KV-SUBDOC-20")
def test_the_length_of_the_extras_shows_which_optional_fields_are_there() -> None:
    assert subdoc.SubdocDictAdd.layout.extras_lengths == (3, 4, 7, 8, 11, 12)
    by_length = {
        3: {},
        4: {"doc_flags": 9},
        7: {"expiration": 9},
        8: {"expiration": 9, "doc_flags": 9},
        11: {"expiration": 9, "user_flags": 9},
        12: {"expiration": 9, "user_flags": 9, "doc_flags": 9},
    }
    add: Any = subdoc.SubdocDictAdd
    for length, fields in by_length.items():
        made = add(path_length=1, path_flags=2, key=b"k", **fields)
        frame = decode_frame(made.encode())
        assert len(frame.extras) == length
        assert subdoc.SubdocDictAdd.decode(frame) == replace(made, magic=0x80)
    with pytest.raises(FieldError, match="path_flags, user_flags without the fields before them"):
        add(path_length=1, path_flags=2, user_flags=3).encode()
    with pytest.raises(struct.error, match="extras of 5 bytes"):
        add.layout.unpack_extras(bytes(5))


def test_a_subclass_shares_the_declaration_of_its_base() -> None:
    layout, base = subdoc.SubdocDictUpsert.layout, subdoc.SubdocDictAdd.layout
    assert (layout.fields, layout.key, layout.durable, layout.source) == (
        base.fields,
        base.key,
        base.durable,
        base.source,
    )
    assert decode_frame(subdoc.SubdocDictUpsert.pack(1, 2, None, None, 5)).opcode == Opcode.SUBDOC_DICT_UPSERT


@rule("HDR-01")
def test_records() -> None:
    @record
    class Sample(Record):
        """A record with every kind of field."""

        name: bytes = raw(3)
        epoch: int = i64()
        count: int = u16(default=1)

    sample = Sample(b"abc", -5)
    data = sample.pack()
    assert (Sample.size, data) == (13, b"abc" + b"\xff" * 7 + b"\xfb" + b"\0\1")
    assert Sample.unpack_from(b"x" + data, 1) == sample
    assert list(Sample.iter_unpack(data + data)) == [sample, sample]
    with pytest.raises(FieldError, match="Sample needs 13 bytes, there are 12"):
        Sample.unpack_from(data, 1)
    with pytest.raises(FieldError, match="14 bytes are no whole number of Sample"):
        Sample.iter_unpack(data + b"x")
    with pytest.raises(FieldError, match=r"Sample\.name=b'abcd' is not 3 bytes"):
        Sample(b"abcd", 0).pack()
