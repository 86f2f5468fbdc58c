"""Every message of the layout table survives the way to bytes and back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream import wire
from dcpstream.errors import FieldError, WireError
from dcpstream.wire import LAYOUTS, Frame, Layout, keys, values
from tests.kit.strategies import any_frames, frames_of

SHAPES: dict[Any, list[Layout]] = {}
"""The layouts, grouped by what decides on their bytes: most messages share theirs with their quiet forms."""
for _layout in LAYOUTS:
    _key = (_layout.kind, _layout.fields, _layout.key, _layout.rest, _layout.statuses)
    SHAPES.setdefault(_key, []).append(_layout)


@pytest.mark.parametrize("layouts", SHAPES.values(), ids=lambda layouts: layouts[0].name)
@given(data=st.data())
def test_round_trip(layouts: list[Layout], data: Any) -> None:
    layout = data.draw(st.sampled_from(layouts))
    frame = data.draw(frames_of(layout))
    message = wire.decode_message(frame, strict=True)
    assert message.layout.opcode == layout.opcode
    assert message.to_frame() == frame
    again = wire.decode_message(wire.decode_frame(message.encode()), strict=True)
    assert again == message
    extras, value = frame.extras, frame.value
    for field in message.layout.fields:
        content = getattr(message, field.name)
        if content is None:
            continue
        part = extras if field.place == "extras" else value
        piece, rest = part[: field.width], part[field.width :]
        extras, value = (rest, value) if field.place == "extras" else (extras, rest)
        number = int.from_bytes(piece, "big", signed=field.form == "i")
        assert content == (piece if field.form == "s" else number)
    assert not extras


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
