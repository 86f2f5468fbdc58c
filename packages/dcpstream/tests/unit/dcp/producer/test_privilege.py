"""Who may stream what."""

from __future__ import annotations

from types import SimpleNamespace

from dcpstream.dcp.producer.privilege import Access, everything, refusal_of
from dcpstream.dcp.producer.stream_filter import StreamFilter
from dcpstream.wire import Status
from tests.kit.cases import each_case
from tests.kit.rules import rule

GRANTED, DENIED, INVISIBLE = Access


def places(**found: Access):
    """Access by place: `bucket`, `s8` for a scope, `c8` for a collection; everything else is invisible."""

    def access(scope_id, collection_id):
        if scope_id is not None:
            return found.get(f"s{scope_id}", INVISIBLE)
        return found.get("bucket" if collection_id is None else f"c{collection_id}", INVISIBLE)

    return SimpleNamespace(at=access, basis=lambda: None, sees_system=lambda: True)


@rule("SEC-05")
@each_case(
    ("wanted", "access", "status"),
    [
        (StreamFilter(), places(bucket=GRANTED), None),
        (StreamFilter(), places(bucket=DENIED), Status.EACCESS),
        (StreamFilter(), places(bucket=INVISIBLE), Status.EACCESS),
        (StreamFilter(frozenset((8,))), places(c8=GRANTED), None),
        (StreamFilter(frozenset((8, 9))), places(c8=GRANTED, c9=DENIED), Status.EACCESS),
        (StreamFilter(frozenset((8, 9, 10))), places(c8=GRANTED, c9=DENIED), Status.UNKNOWN_COLLECTION),
        (StreamFilter(frozenset((8,)), scope_id=8), places(s8=GRANTED), None),
        (StreamFilter(frozenset((8,)), scope_id=8), places(s8=DENIED, c8=GRANTED), Status.EACCESS),
        (StreamFilter(frozenset((8,)), scope_id=8), places(c8=GRANTED), Status.UNKNOWN_SCOPE),
        (StreamFilter(frozenset((8,))), everything, None),
    ],
)
def test_refusals(wanted, access, status) -> None:
    refusal = refusal_of(wanted, access, 5)
    assert (refusal and refusal.status) == status
    if status in (Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE):
        assert refusal is not None
        assert refusal.manifest_uid == 5
