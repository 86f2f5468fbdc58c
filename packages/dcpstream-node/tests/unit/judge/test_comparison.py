"""The comparison: what is equal although it is not the same, and what is reported."""

from __future__ import annotations

import struct

from dcpstream.wire.codes import SystemEventId
from dcpstream.wire.system_events import CollectionEvent, flatbuffer_of
from dcpstream_node.judge.comparison import Comparison, compare
from dcpstream_node.judge.packets import Op, Status, packet, response
from dcpstream_node.judge.steps import read_steps
from dcpstream_node.judge.transcript import Line

START: Line = {"dir": "note", "hex": "", "event": "start", "unix": 1_700_000_000, "release": "8.0", "note": ""}
CONNECT: Line = {"dir": "note", "conn": "a#1", "hex": "", "event": "connect", "note": ""}


def asked(op: int = Op.GET, opaque: int = 0x1001) -> Line:
    return {"dir": "c2s", "conn": "a#1", "hex": packet(op, opaque=opaque).hex(), "note": "GET a"}


def answered(op: int = Op.GET, **fields: object) -> Line:
    raw = response(op, **{"opaque": 0x1001, **fields})
    return {"dir": "s2c", "conn": "a#1", "hex": raw.hex(), "note": ""}


def compared(reference: list[Line], candidate: list[Line], name: str = "s99") -> Comparison:
    return compare(*(read_steps(name, [START, CONNECT, *lines]) for lines in (reference, candidate)))


def kinds(found: Comparison) -> list[str]:
    return [each.kind for each in found.failures]


def test_a_difference_has_the_request_and_both_frames() -> None:
    found = compared([asked(), answered(val=b"v")], [asked(), answered(status=1)])
    (difference,) = found.failures
    assert (difference.kind, difference.request) == ("changed", "GET a")
    assert difference.request_hex == packet(Op.GET, opaque=0x1001).hex()
    assert difference.expected_hex == response(Op.GET, opaque=0x1001, val=b"v").hex()
    assert difference.got_hex == response(Op.GET, opaque=0x1001, status=1).hex()
    assert "status or vbucket: 0 against 1" in difference.detail


def test_missing_and_extra_steps() -> None:
    both = [asked(), answered()]
    noop: Line = {"dir": "s2c", "conn": "a#1", "hex": packet(Op.DCP_STREAM_END, ext=bytes(4)).hex(), "note": ""}
    assert kinds(compared([*both, noop], both)) == ["missing"]
    assert kinds(compared(both, [*both, noop])) == ["extra"]


def test_cas_values_correspond_one_to_one() -> None:
    twice = [asked(), answered(cas=5), asked(), answered(cas=5)]
    assert kinds(compared(twice, [asked(), answered(cas=9), asked(), answered(cas=9)])) == []
    assert kinds(compared(twice, [asked(), answered(cas=9), asked(), answered(cas=8)])) == ["role"]
    other = [asked(), answered(cas=5), asked(), answered(cas=6)]
    assert kinds(compared(other, [asked(), answered(cas=9), asked(), answered(cas=9)])) == ["role"]


def test_uids_of_manifests_correspond_one_to_one_and_may_begin_at_0() -> None:
    def made(uid: int, collection: int) -> Line:
        extras, value = struct.pack(">QIB", 3, 0, 0), struct.pack(">QII", uid, 0, collection)
        raw = packet(Op.DCP_SYSTEM_EVENT, ext=extras, val=value)
        return {"dir": "s2c", "conn": "a#1", "hex": raw.hex(), "note": ""}

    reference = [made(0x650D, 0x50), made(0x6901, 0x51)]
    assert kinds(compared(reference, [made(0, 0x50), made(1, 0x51)])) == []
    assert kinds(compared(reference, [made(0, 0x50), made(0, 0x51)])) == ["role"]
    assert kinds(compared(reference, [made(0, 0x50), made(1, 0x52)])) == ["changed"]


def test_uids_of_manifests_in_flatbuffers_correspond_one_to_one() -> None:
    def made(uid: int, collection: int, name: str = "fruit") -> Line:
        event = CollectionEvent(SystemEventId.CREATE_COLLECTION, uid, 0, collection, name, 30)
        raw = packet(Op.DCP_SYSTEM_EVENT, ext=struct.pack(">QIB", 3, 0, 2), key=b"k", val=flatbuffer_of(event))
        return {"dir": "s2c", "conn": "a#1", "hex": raw.hex(), "note": ""}

    reference = [made(0x650D, 0x50), made(0x6901, 0x51)]
    assert kinds(compared(reference, [made(0, 0x50), made(1, 0x51)])) == []
    assert kinds(compared(reference, [made(0, 0x50), made(0, 0x51)])) == ["role"]
    assert kinds(compared(reference, [made(0, 0x50), made(1, 0x52)])) == ["changed"]
    assert kinds(compared(reference, [made(0, 0x50), made(1, 0x51, "apple")])) == ["changed"]


def test_optional_steps_may_be_refused() -> None:
    reference = [asked(), {**answered(), "optional": True}]
    refused = compared(reference, [asked(), {**answered(status=Status.UNKNOWN_COMMAND), "optional": True}])
    assert (kinds(refused), refused.skipped) == ([], 1)
    failed = compared(reference, [asked(), {**answered(status=Status.ENOMEM), "optional": True}])
    assert kinds(failed) == ["changed"]


def test_a_variation_does_not_count_and_is_kept() -> None:
    with_map = answered(status=Status.NOT_MY_VBUCKET, val=b'{"rev":1}')
    found = compared([asked(), answered(status=Status.NOT_MY_VBUCKET)], [asked(), with_map])
    assert kinds(found) == []
    assert [each.varies for each in found.differences] == [
        "only one of the servers has a cluster map, which NOT_MY_VBUCKET carries"
    ]


def test_a_scenario_that_could_not_run_differs() -> None:
    aborted: Line = {"dir": "note", "hex": "", "event": "aborted", "note": "TimeoutError: x"}
    found = compared([asked(), answered()], [asked(), answered(), aborted])
    assert [(each.kind, each.got) for each in found.failures] == [("scenario could not run", "TimeoutError: x")]
    both = compared([asked(), answered(), aborted], [asked(), answered(), aborted])
    assert kinds(both) == ["scenario could not run"], "two servers that both fail are not equal"
