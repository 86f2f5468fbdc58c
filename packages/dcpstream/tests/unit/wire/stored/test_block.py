"""Stored history and the forms in which it goes out."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream.runtime import kernel
from dcpstream.wire import Datatype, Frame, FrameReader, Opcode, decode_frame, decode_message
from dcpstream.wire import buffers as buffers_module
from dcpstream.wire.buffers import Buffer, BufferPool
from dcpstream.wire.messages.dcp import DeletionV2, Expiration, Mutation
from dcpstream.wire.stored import rendering as block_rendering
from dcpstream.wire.stored.block import (
    BlockKind,
    FrameBlock,
    Offsets,
    ScatteredBlock,
    Version,
    cut,
    encode_stored_deletion,
    encode_stored_expiration,
    encode_stored_mutation,
)
from dcpstream.wire.stored.form import StreamForm
from dcpstream.wire.stored.rendering import render
from dcpstream.wire.values import decode_xattrs, encode_xattrs, snappy_compress, snappy_uncompress
from tests.kit import recorded
from tests.kit.blocks import block_of
from tests.kit.cases import each_case

AS_STORED = StreamForm()
LEGACY = StreamForm(collections=False, xattrs=False, delete_times=False, expiry_opcode=False, snappy="none")
XATTRS = {"_sync": b'{"rev":1}', "meta": b"2"}


def mutation(seqno: int, key: bytes = b"\0k", value: bytes = b'{"a":1}', datatype: int = 1) -> bytes:
    return encode_stored_mutation(
        Version(key, value, 1, datatype=datatype, flags=7), vbid=3, by_seqno=seqno, cas=seqno << 16
    )


def frames(data: bytes | bytearray | memoryview) -> list[Frame]:
    reader = FrameReader()
    reader.receive_data(data)
    return list(reader.frames())


def test_stored_frames_are_messages_of_the_table() -> None:
    stored = [
        mutation(1),
        encode_stored_deletion(Version(b"\0k", b"", 2, time=1700000000), vbid=3, by_seqno=2, cas=5),
        encode_stored_expiration(Version(b"\0k", b"", 3, time=1700000001), vbid=3, by_seqno=3, cas=6),
    ]
    decoded = [decode_message(decode_frame(data), strict=True) for data in stored]
    assert [type(message) for message in decoded] == [Mutation, DeletionV2, Expiration]
    block = block_of(b"".join(stored))
    assert list(block.seqnos) == [1, 2, 3]
    assert (block.first_seqno, block.last_seqno, block.count) == (1, 3, 3)
    assert block.kinds == BlockKind.DELETION | BlockKind.EXPIRATION


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=20), st.integers(0, 2**32 - 1), st.data())
def test_a_stream_in_stored_form_gets_the_bytes_with_its_opaque(values: list[bytes], opaque: int, data: object) -> None:
    stored = [mutation(index + 1, value=value, datatype=0) for index, value in enumerate(values)]
    block = block_of(b"".join(stored))
    first = data.draw(st.integers(0, len(stored) - 1))  # type: ignore[attr-defined]
    rendered = render(block, opaque, AS_STORED, first)
    assert rendered.messages == len(stored) - first
    assert rendered.next_index == len(stored)
    sent = frames(rendered.data)
    assert [frame.opaque for frame in sent] == [opaque] * len(sent)
    for frame in sent:
        frame.opaque = 0
    assert b"".join(frame.encode() for frame in sent) == b"".join(stored[first:])
    assert block.data == b"".join(stored), "the stored bytes are not touched"


@pytest.mark.parametrize("is_native", [True, False], ids=["native", "plain"])
@pytest.mark.parametrize("form", [AS_STORED, LEGACY, StreamForm(no_value=True)], ids=["copied", "rewritten", "keys"])
def test_scattered_frames_come_out_as_if_they_lay_together(
    is_native: bool, form: StreamForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffers_module, "POOLED_BYTES_MIN", 4)
    if not is_native:
        monkeypatch.setattr(kernel, "native", None)
    messages = [mutation(number, value=b'{"n":%d}' % 10**number) for number in range(1, 30)]
    stored = block_of(b"".join(messages))
    gap, at, bounds = b"superseded", 5, list[int]()
    for message in messages:
        bounds += (at, at + len(message))
        at += len(message) + len(gap)
    among = gap.join(messages)
    pool = BufferPool()
    for first, budget in ((0, None), (0, 500), (7, 900), (12, None), (0, None)):
        parts: list[Buffer] = [among[:70], among[70:1000], among[1000:]]
        block = ScatteredBlock(parts, np.array(bounds), stored.starts, stored.seqnos, stored.kinds)
        assert (block.size, block.count) == (stored.size, stored.count)
        expected = render(stored, 0xA1B2C3D4, form, first, budget)
        for buffers in (pool, None):
            rendered = render(block, 0xA1B2C3D4, form, first, budget, buffers)
            assert bytes(rendered.data) == bytes(expected.data)
            assert rendered[1:] == expected[1:]
            if isinstance(rendered.data, memoryview):
                pool.give_back([rendered.data])
        assert block.data == stored.data
    assert among == gap.join(messages), "the stored bytes are not touched"
    assert len(pool.free) == (form is AS_STORED), "one buffer served them all"


def test_frames_that_go_out_as_they_are_are_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[object] = []

    def counted(parts: list[Buffer], runs: Offsets, into: memoryview | None = None) -> bytearray | memoryview:
        copies.append(into)
        return cut(parts, runs, into)

    monkeypatch.setattr("dcpstream.wire.stored.block.cut", counted)
    data = mutation(1) + bytes(20) + mutation(2) + bytes(20) + mutation(3)
    size = len(mutation(1))
    bounds = np.array([number for at in range(3) for number in (at * (size + 20), at * (size + 20) + size)])
    block = ScatteredBlock([data], bounds, np.arange(3) * size, np.arange(1, 4, dtype=np.uint64), 0)
    assert len(render(block, 7, AS_STORED).data) == block.size == 3 * size
    assert copies == [None]


@each_case("form", [AS_STORED, LEGACY], ids=["copied", "rewritten"])
@each_case("budget", [1, 64, 70, 71, 200, 10_000])
def test_a_budget_is_overshot_by_at_most_one_message(form: StreamForm, budget: int) -> None:
    block = block_of(b"".join(mutation(seqno) for seqno in range(1, 11)))
    index = total = 0
    while index < block.count:
        rendered = render(block, 9, form, index, budget)
        sizes = [frame.size for frame in frames(rendered.data)]
        assert sum(sizes[:-1]) < budget
        assert sum(sizes) >= budget or rendered.next_index == block.count
        assert rendered.next_index == index + len(sizes)
        index = rendered.next_index
        total += len(sizes)
    assert total == block.count


def test_rewriting_for_a_stream_without_collections() -> None:
    block = block_of(mutation(1) + mutation(2, key=b"\x08named") + mutation(3))
    assert block.kinds == BlockKind.NAMED_COLLECTION
    rendered = render(block, 4, StreamForm(collections=False))
    assert [(frame.key, frame.opaque) for frame in frames(rendered.data)] == [(b"k", 4), (b"k", 4)]
    assert (rendered.messages, rendered.next_index) == (2, 3)


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=9), st.binary(max_size=40)), min_size=1, max_size=20),
    st.integers(0, 2**32 - 1),
    st.one_of(st.none(), st.integers(1, 2000)),
    st.data(),
)
def test_stripping_prefixes_at_once_gives_what_rewriting_each_message_gives(
    documents: list[tuple[bytes, bytes]], opaque: int, budget: int | None, data: object
) -> None:
    form = dataclasses.replace(LEGACY, collection_ids=frozenset((0,)))
    stored = [mutation(index + 1, b"\0" + key, value) for index, (key, value) in enumerate(documents)]
    block = block_of(b"".join(stored))
    first = data.draw(st.integers(0, len(stored) - 1))  # type: ignore[attr-defined]
    rendered = render(block, opaque, form, first, budget)
    rewritten = block_rendering._rewrite(block, opaque, form, first, budget)
    assert (bytes(rendered.data), rendered[1:]) == (bytes(rewritten.data), rewritten[1:])


def any_frame(seqno: int, kind: str, key: bytes, body: bytes) -> bytes:
    if kind == "deletion":
        return encode_stored_deletion(Version(key, b"", 2, time=1700000000), vbid=3, by_seqno=seqno, cas=5)
    if kind == "expiration":
        return encode_stored_expiration(Version(key, b"", 3, time=1700000001), vbid=3, by_seqno=seqno, cas=6)
    value, datatype = {
        "json": (body, Datatype.JSON),
        "packed": (snappy_compress(body), Datatype.JSON | Datatype.SNAPPY),
        "xattr": (encode_xattrs(XATTRS) + body, Datatype.JSON | Datatype.XATTR),
    }.get(kind, (body, Datatype.RAW))
    return mutation(seqno, key, value, int(datatype))


KINDS = ("json", "raw", "packed", "deletion", "expiration", "xattr")


@given(
    st.sets(st.sampled_from(KINDS), min_size=1).flatmap(
        lambda kinds: st.lists(
            st.tuples(st.sampled_from(sorted(kinds)), st.sampled_from([b"\0", b"\x09"]), st.binary(max_size=400)),
            min_size=1,
            max_size=20,
        )
    ),
    st.builds(
        StreamForm,
        xattrs=st.booleans(),
        delete_times=st.booleans(),
        expiry_opcode=st.booleans(),
        no_value=st.just(True),
        keep_datatype=st.booleans(),
        snappy=st.sampled_from(["none", "passive", "force", "active"]),
        collection_ids=st.none() | st.just(frozenset((9,))),
        hifi_counter=st.booleans(),
    ),
    st.integers(0, 2**32 - 1),
    st.none() | st.integers(1, 2000),
    st.data(),
)
def test_leaving_out_values_at_once_gives_what_rewriting_each_message_gives(
    documents: list[tuple[str, bytes, bytes]], form: StreamForm, opaque: int, budget: int | None, data: st.DataObject
) -> None:
    stored = [
        any_frame(seqno, kind, prefix + f"k{seqno}".encode(), body)
        for seqno, (kind, prefix, body) in enumerate(documents, 1)
    ]
    block = block_of(b"".join(stored))
    first = data.draw(st.integers(0, len(stored) - 1))
    rewritten = block_rendering._rewrite(block, opaque, form, first, budget)
    for native in (kernel.native, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernel, "native", native)
            rendered = render(block, opaque, form, first, budget)
        assert (bytes(rendered.data), rendered[1:]) == (bytes(rewritten.data), rewritten[1:])


def test_a_filter_lets_only_its_collections_pass() -> None:
    block = block_of(mutation(1) + mutation(2, key=b"\x08named") + mutation(3, key=b"\x09other"))
    rendered = render(block, 4, StreamForm(collection_ids=frozenset((8,))))
    assert [frame.key for frame in frames(rendered.data)] == [b"\x08named"]
    only_default = render(block_of(mutation(1)), 4, StreamForm(collection_ids=frozenset((0,))))
    assert only_default.messages == 1


@each_case(
    ("delete_times", "expiry_opcode", "opcode", "extras_bytes"),
    [
        (True, True, Opcode.DCP_EXPIRATION, 20),
        (True, False, Opcode.DCP_DELETION, 21),
        (False, True, Opcode.DCP_DELETION, 18),
        (False, False, Opcode.DCP_DELETION, 18),
    ],
)
def test_expirations(delete_times: bool, expiry_opcode: bool, opcode: int, extras_bytes: int) -> None:
    stored = encode_stored_expiration(Version(b"\0k", b"", 2, time=1700000001), vbid=1, by_seqno=5, cas=6)
    form = StreamForm(delete_times=delete_times, expiry_opcode=expiry_opcode)
    (frame,) = frames(render(block_of(stored), 1, form).data)
    assert (frame.opcode, len(frame.extras)) == (opcode, extras_bytes)
    message = decode_message(frame, strict=True)
    assert (message.by_seqno, message.rev_seqno) == (5, 2)  # type: ignore[attr-defined]
    if delete_times:
        assert message.delete_time == 1700000001  # type: ignore[attr-defined]


def test_xattrs_are_stripped_where_they_are_not_wanted() -> None:
    stored = mutation(1, value=encode_xattrs(XATTRS, b'{"a":1}'), datatype=Datatype.JSON | Datatype.XATTR)
    (frame,) = frames(render(block_of(stored), 1, StreamForm(xattrs=False)).data)
    assert (frame.value, frame.datatype) == (b'{"a":1}', Datatype.JSON)


@each_case("is_packed", [False, True])
@each_case(
    ("form", "has_xattrs", "has_body", "datatype"),
    [
        (StreamForm(no_value=True, xattrs=False), False, False, 0),
        (StreamForm(no_value=True, xattrs=True), True, False, 4),
        (StreamForm(no_value=True, xattrs=False, keep_datatype=True), False, False, None),
        (StreamForm(no_value=True, xattrs=True, keep_datatype=True), True, False, None),
        (StreamForm(xattrs=False), False, True, 1),
    ],
)
def test_values_and_datatypes_by_form(
    form: StreamForm, has_xattrs: bool, has_body: bool, datatype: int | None, is_packed: bool
) -> None:
    value = encode_xattrs(XATTRS, b'{"a":1}')
    stored_datatype = Datatype.JSON | Datatype.XATTR
    if is_packed:
        value, stored_datatype = snappy_compress(value), stored_datatype | Datatype.SNAPPY
    (frame,) = frames(render(block_of(mutation(1, value=value, datatype=stored_datatype)), 1, form).data)
    expected = (encode_xattrs(XATTRS) if has_xattrs else b"") + (b'{"a":1}' if has_body else b"")
    assert frame.value == expected
    assert frame.datatype == (stored_datatype if datatype is None else datatype)


def test_snappy_forms() -> None:
    text = b"abc" * 200
    packed = snappy_compress(text)
    plain, compressed = mutation(1, value=text, datatype=0), mutation(2, value=packed, datatype=Datatype.SNAPPY)
    short = mutation(3, value=b"x", datatype=0)
    block = block_of(plain + compressed + short)
    by_form = {
        form: [(frame.value, frame.datatype) for frame in frames(render(block, 1, StreamForm(snappy=form)).data)]
        for form in ("none", "passive", "force")
    }
    assert by_form["none"] == [(text, 0), (text, 0), (b"x", 0)]
    assert by_form["passive"] == [(text, 0), (packed, 2), (b"x", 0)]
    assert by_form["force"] == [(packed, 2), (packed, 2), (b"x", 0)]


def test_user_xattrs_of_deletions_are_dropped_unless_asked_for() -> None:
    stored = encode_stored_deletion(
        Version(b"\0k", encode_xattrs(XATTRS), 2, datatype=Datatype.XATTR, time=4), vbid=1, by_seqno=1, cas=3
    )
    (frame,) = frames(render(block_of(stored), 1, StreamForm(user_xattrs_on_delete=False)).data)
    assert decode_xattrs(frame.value) == ({"_sync": XATTRS["_sync"]}, b"")
    (frame,) = frames(render(block_of(stored), 1, StreamForm()).data)
    assert decode_xattrs(frame.value) == (XATTRS, b"")


def test_deletions_from_disk_keep_their_xattrs_compressed() -> None:
    section = encode_xattrs({"_sync": XATTRS["_sync"]})
    stored = encode_stored_deletion(
        Version(b"\0k", section, 2, datatype=Datatype.XATTR, time=4), vbid=3, by_seqno=1, cas=3
    )
    whole, parts = StreamForm(packs_deletions=True), StreamForm(packs_deletions=True, user_xattrs_on_delete=False)
    (frame,) = frames(render(block_of(stored), 1, whole).data)
    assert frame.datatype == Datatype.XATTR | Datatype.SNAPPY
    assert snappy_uncompress(frame.value) == section
    (frame,) = frames(render(block_of(stored), 1, parts).data)
    assert (frame.datatype, frame.value) == (Datatype.XATTR, section)
    (frame,) = frames(render(block_of(mutation(1)), 1, whole).data)
    assert frame.value == b'{"a":1}'


def test_a_stream_id_goes_into_the_framing() -> None:
    (frame,) = frames(render(block_of(mutation(1)), 1, StreamForm(stream_id=513)).data)
    message = decode_message(frame, strict=True)
    assert isinstance(message, Mutation)
    assert message.stream_id == 513
    assert frame.size == len(mutation(1)) + 3


def test_the_recorded_full_stream_gives_the_recorded_legacy_stream() -> None:
    """The real server sent the same documents in both forms: ours of the one must be the other, message for message."""
    as_stored = {Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION}
    form = dataclasses.replace(AS_STORED, collections=False, xattrs=False)
    full = [decode_frame(data) for data in recorded.split_frames(recorded.stream_bytes("full"))]
    legacy = [decode_frame(data) for data in recorded.split_frames(recorded.stream_bytes("legacy"))]
    wanted = {
        (frame.vbid, frame.extras[:8]): frame for frame in legacy if frame.opcode in as_stored and frame.is_request
    }
    form = dataclasses.replace(form, delete_times=False, expiry_opcode=False)
    checked = 0
    for _, group in itertools.groupby(full, key=lambda frame: frame.vbid if frame.is_request else -1):
        stored = [frame for frame in group if frame.is_request and frame.opcode in as_stored]
        if not stored:
            continue
        opaque = stored[0].opaque
        block: FrameBlock = block_of(b"".join(frame.encode() for frame in stored))
        for frame in frames(render(block, opaque, form).data):
            expected = wanted[frame.vbid, frame.extras[:8]]
            assert (frame.opcode, frame.extras, frame.key, frame.value) == (
                expected.opcode,
                expected.extras,
                expected.key,
                expected.value,
            )
            assert (frame.cas, frame.datatype, frame.opaque) == (expected.cas, expected.datatype, expected.opaque)
            checked += 1
    assert checked == len(wanted) == 7524
