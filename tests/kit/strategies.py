"""Hypothesis strategies for messages and frames, derived from the layout table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from dcpstream.wire import frames
from dcpstream.wire.codes import Magic
from dcpstream.wire.fields import Field
from dcpstream.wire.layout import Kind, Layout, Message, Part, decode_message

MAX_PART_BYTES = 64
"""Enough for every boundary of a part's handling; longer parts only slow the search down."""
MAX_FLEXIBLE_PART_BYTES = 40


def _part(part: Part, limit: int = MAX_PART_BYTES) -> st.SearchStrategy[bytes]:
    if part is Part.NONE:
        return st.just(b"")
    return st.binary(min_size=1 if part is Part.REQUIRED else 0, max_size=limit)


def _bytes_of(fields: Iterable[Field]) -> st.SearchStrategy[bytes]:
    return st.tuples(
        *(
            st.just(item.fixed.to_bytes(item.width, "big"))
            if item.fixed is not None
            else st.binary(min_size=item.width, max_size=item.width)
            for item in fields
        )
    ).map(b"".join)


def _extras_of(layout: Layout) -> st.SearchStrategy[bytes]:
    """Extras of each length that the layout allows."""
    fields = layout.extras_fields
    return st.one_of([_bytes_of(fields[at] for at in variant.present) for variant in layout.variants])


@st.composite
def frames_of(draw: st.DrawFn, layout: Layout) -> frames.Frame:
    """Frames that have this layout, in classic and in flexible framing."""
    is_request = layout.kind is Kind.REQUEST
    framing = draw(st.binary(max_size=MAX_FLEXIBLE_PART_BYTES)) if draw(st.booleans()) else b""
    magics = (Magic.REQUEST, Magic.FLEX_REQUEST) if is_request else (Magic.RESPONSE, Magic.FLEX_RESPONSE)
    status_or_vbid: st.SearchStrategy[int] = (
        st.sampled_from(layout.statuses) if layout.statuses and not is_request else st.integers(0, 0xFFFF)
    )
    return frames.Frame(
        magic=magics[1] if framing else draw(st.sampled_from(magics)),
        opcode=layout.opcode,
        datatype=draw(st.integers(0, 0xFF)),
        vbid=draw(status_or_vbid),
        opaque=draw(st.integers(0, 2**32 - 1)),
        cas=draw(st.integers(0, 2**64 - 1)),
        framing=framing,
        extras=draw(_extras_of(layout)),
        key=draw(_part(layout.key)),
        value=draw(_bytes_of(layout.value_fields)) + draw(_part(layout.rest)),
    )


def messages_of(layout: Layout) -> st.SearchStrategy[Message]:
    """Messages of one layout."""
    return frames_of(layout).map(decode_message)


@st.composite
def any_frames(draw: st.DrawFn) -> frames.Frame:
    """Frames of any magic, opcode and shape: whole, but not necessarily meaningful."""
    magic = draw(st.sampled_from(sorted(Magic)))
    is_flexible = magic in (Magic.FLEX_REQUEST, Magic.FLEX_RESPONSE)

    def part(limit: int = MAX_PART_BYTES) -> bytes:
        return draw(st.binary(max_size=limit))

    fields: dict[str, Any] = {
        "datatype": draw(st.integers(0, 0xFF)),
        "vbid": draw(st.integers(0, 0xFFFF)),
        "opaque": draw(st.integers(0, 2**32 - 1)),
        "cas": draw(st.integers(0, 2**64 - 1)),
        "framing": part(MAX_FLEXIBLE_PART_BYTES) if is_flexible else b"",
        "extras": part(),
        "key": part(),
        "value": part(),
    }
    return frames.Frame(magic, draw(st.integers(0, 0xFF)), **fields)
