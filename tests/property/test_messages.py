"""Every message of the layout table survives the way to bytes and back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream import wire
from dcpstream.errors import FieldError, WireError
from dcpstream.testing.strategies import any_frames, frames_of
from dcpstream.wire import LAYOUTS, Frame, Layout, keys, values


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@given(data=st.data())
def test_round_trip(layout: Layout, data: Any) -> None:
    frame = data.draw(frames_of(layout))
    message = wire.decode_message(frame, strict=True)
    assert message.layout.opcode == layout.opcode
    assert message.to_frame() == frame
    again = wire.decode_message(wire.decode_frame(message.encode()), strict=True)
    assert again == message
    for field in message.layout.fields:
        part = frame.extras if field.place == "extras" else frame.value
        assert getattr(message, field.name) == int.from_bytes(part[field.offset : field.offset + field.width], "big")


@given(any_frames())
def test_no_frame_is_lost_and_strict_says_why(frame: Frame) -> None:
    message = wire.decode_message(frame)
    assert message.to_frame() == frame
    try:
        assert wire.decode_message(frame, strict=True) == message
    except FieldError as error:
        assert "fits no layout" in str(error)  # noqa: PT017 - either outcome is right
        assert isinstance(message, wire.RawRequest | wire.RawResponse)


@given(st.sampled_from(LAYOUTS), st.binary(max_size=80), st.binary(max_size=80), st.binary(max_size=80))
def test_values_that_are_cut_or_forged_raise_wire_errors_only(
    layout: Layout, extras: bytes, key: bytes, value: bytes
) -> None:
    for magic in (wire.Magic.REQUEST, wire.Magic.RESPONSE):
        message = wire.decode_message(Frame(magic, layout.opcode, extras=extras, key=key, value=value))
        for read in (
            lambda: values.decode_failover_log(value),
            lambda: values.decode_xattrs(value),
            lambda: values.snappy_uncompress(value),
            lambda: keys.split_collection_key(key),
            lambda: list(keys.decode_frame_infos(extras)),
            lambda: values.decode_vbucket_seqnos(value),
            lambda m=message: getattr(m, "failover_log", None),
        ):
            try:
                read()
            except WireError:
                continue
