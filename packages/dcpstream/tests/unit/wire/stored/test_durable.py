"""Durable writes as they are stored, and as they go out."""

from __future__ import annotations

import struct
from typing import Any

from dcpstream.wire import Opcode, decode_frame
from dcpstream.wire.stored.block import BlockKind, Version, encode_stored_deletion, encode_stored_mutation
from dcpstream.wire.stored.durable import DurableForm, encode_stored_abort, encode_stored_prepare, read_prepare
from dcpstream.wire.stored.form import StreamForm
from dcpstream.wire.stored.rendering import render
from tests.kit.blocks import block_of
from tests.kit.cases import each_case

PAIR = struct.Struct(">QQ")


def history() -> bytes:
    """prepare 1, commit 2 of a; prepare 3, abort 4 of b; prepare 5, committed deletion 6 of c; 7 is plain."""
    prepare: dict[str, Any] = {"vbid": 1, "cas": 9, "level": 2}
    return b"".join(
        (
            encode_stored_prepare(Version(b"\0a", b"v", 1, flags=7, time=8), by_seqno=1, **prepare),
            encode_stored_mutation(Version(b"\0a", b"v", 1), vbid=1, by_seqno=2, cas=9),
            encode_stored_prepare(Version(b"\0b", b"w", 1), by_seqno=3, **prepare),
            encode_stored_abort(vbid=1, key=b"\0b", by_seqno=4, prepared_seqno=3),
            encode_stored_prepare(Version(b"\0c", b"", 1), by_seqno=5, is_deleted=True, **prepare),
            encode_stored_deletion(Version(b"\0c", b"", 1, time=5), vbid=1, by_seqno=6, cas=9),
            encode_stored_mutation(Version(b"\0d", b"v", 1), vbid=1, by_seqno=7, cas=9),
        )
    )


def sent(form: StreamForm) -> list[tuple[int, bytes]]:
    """(opcode, extras) of what a stream gets."""
    data, at, found = bytes(render(block_of(history()), 5, form).data), 0, []
    while at < len(data):
        frame = decode_frame(data, at)
        assert frame.opaque == 5
        found.append((frame.opcode, frame.extras))
        at += frame.size
    return found


def test_a_prepare_is_read_back() -> None:
    frame = encode_stored_prepare(
        Version(b"\0k", b"v", 5, datatype=1, flags=7, time=8), vbid=1, by_seqno=4, cas=6, level=3, is_deleted=True
    )
    prepare = read_prepare(frame)
    assert (prepare.key, prepare.value, prepare.datatype, prepare.cas) == (b"\0k", b"v", 1, 6)
    assert (prepare.seqno, prepare.prepared_seqno, prepare.rev_seqno) == (4, 4, 5)
    assert (prepare.flags, prepare.expiration, prepare.level) == (7, 8, 3)
    assert (prepare.is_deleted, prepare.is_abort) == (True, False)


def test_an_abort_is_stored_with_its_own_seqno_first() -> None:
    frame = encode_stored_abort(vbid=1, key=b"\0k", by_seqno=9, prepared_seqno=4)
    assert list(block_of(frame).seqnos) == [9]
    abort = read_prepare(frame)
    assert (abort.key, abort.seqno, abort.prepared_seqno, abort.is_abort) == (b"\0k", 9, 4, True)


def test_prepares_and_aborts_are_hidden() -> None:
    assert block_of(history()).kinds & BlockKind.PREPARE
    assert [opcode for opcode, _ in sent(StreamForm())] == [
        Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_MUTATION
    ]  # fmt: skip


def test_all_of_it_goes_out_from_memory() -> None:
    found = sent(StreamForm(durable=DurableForm({2: 1, 6: 5})))
    assert [opcode for opcode, _ in found] == [
        Opcode.DCP_PREPARE, Opcode.DCP_COMMIT, Opcode.DCP_PREPARE, Opcode.DCP_ABORT, Opcode.DCP_PREPARE,
        Opcode.DCP_COMMIT, Opcode.DCP_MUTATION,
    ]  # fmt: skip
    assert [PAIR.unpack(extras) for opcode, extras in found if opcode in (Opcode.DCP_COMMIT, Opcode.DCP_ABORT)] == [
        (1, 2), (3, 4), (5, 6)
    ]  # fmt: skip


def test_from_disk_only_what_is_undecided() -> None:
    found = sent(StreamForm(durable=DurableForm({}, completed_seqno=3)))
    assert [opcode for opcode, _ in found] == [
        Opcode.DCP_MUTATION, Opcode.DCP_ABORT, Opcode.DCP_PREPARE, Opcode.DCP_DELETION, Opcode.DCP_MUTATION
    ]  # fmt: skip


@each_case("collections", [True, False])
@each_case("no_value", [True, False])
def test_exact_counters(collections: bool, no_value: bool) -> None:
    data = b"".join(
        (
            encode_stored_mutation(Version(b"\0a", b"v", 1), vbid=1, by_seqno=1, cas=9, nru=2),
            encode_stored_mutation(Version(b"\0b", b"v", 1), vbid=1, by_seqno=2, cas=9, nru=3),
            encode_stored_deletion(Version(b"\0c", b"", 1, time=0x02020202), vbid=1, by_seqno=3, cas=9),
        )
    )
    block = block_of(data)
    for hifi_counter, expected in ((False, 2), (True, 4)):
        form = StreamForm(collections=collections, no_value=no_value, hifi_counter=hifi_counter)
        out, at, counters = bytes(render(block, 5, form).data), 0, []
        while at < len(out):
            frame = decode_frame(out, at)
            counters.append(frame.extras[-1])
            at += frame.size
        assert counters == [expected, 3, 0]
