"""The JSON value of STREAM_REQ, and the filter that follows the events of a stream's own history."""

import pytest

from dcpstream.dcp.producer.stream_filter import LiveFilter, StreamFilter, read_filter, refusal_on_connection
from dcpstream.dcp.refusals import Refusal
from dcpstream.errors import RemoteProtocolError
from dcpstream.model import MAX_SEQNO, Collection, Manifest, Scope
from dcpstream.wire import Status, SystemEventId
from dcpstream.wire.release import RELEASES
from dcpstream.wire.system_events import CollectionEvent
from tests.kit.cases import each_case
from tests.kit.rules import rule

MANIFEST = Manifest(
    3,
    (Scope(0, "_default", (Collection(0, "_default"), Collection(8, "fruit"))), Scope(9, "s", (Collection(10, "v"),))),
)


def read(value, *, collections=True, sids=False, sync=False):
    """The filter, or the refusal of the value or else of the connection."""
    found = read_filter(value, MANIFEST, has_collections=collections)
    if isinstance(found, Refusal):
        return found
    refusal = refusal_on_connection(found, has_collections=collections, has_stream_ids=sids, has_sync_writes=sync)
    return refusal or found


@rule("COL-08", "COL-11", "COL-16")
@each_case(
    ("value", "expected"),
    [
        (b"", StreamFilter()),
        (b'{"uid":"1"}', StreamFilter()),
        (b'{"uid":"zz","more":1}', StreamFilter()),
        (b'{"collections":["8","a"]}', StreamFilter(frozenset((8, 10)))),
        (b'{"collections":["0"]}', StreamFilter(frozenset((0,)))),
        (b'{"scope":"9"}', StreamFilter(frozenset((10,)), scope_id=9)),
        (b'{"collections":[]}', StreamFilter(frozenset())),
        (b'{"uid":5,"cts":[]}', StreamFilter()),
        (b'\xef\xbb\xbf{"uid":"1"}', StreamFilter()),
    ],
)
def test_accepted(value, expected):
    assert read(value) == expected


@rule("COL-10", "COL-12", "COL-13", "COL-14")
@each_case(
    ("value", "status"),
    [
        (b"{}", Status.EINVAL),
        (b"[]", Status.EINVAL),
        (b'{"more":1}', Status.EINVAL),
        (b"{", Status.EINVAL),
        (b"\xff", Status.EINVAL),
        (b'{"collections":"8"}', Status.EINVAL),
        (b'{"collections":[8]}', Status.EINVAL),
        (b'{"collections":["xyz"]}', Status.EINVAL),
        (b'{"collections":["8"],"scope":"9"}', Status.EINVAL),
        (b'{"collections":["8","77"]}', Status.UNKNOWN_COLLECTION),
        (b'{"scope":9}', Status.EINVAL),
        (b'{"scope":"77"}', Status.UNKNOWN_SCOPE),
        (b'{"scope":"1"}', Status.EINVAL),
        (b'{"scope":"7"}', Status.EINVAL),
        (b'{"scope":"8"}', Status.UNKNOWN_SCOPE),
        (b'{"collections":["1"]}', Status.UNKNOWN_COLLECTION),
        (b'{"collections":["2"]}', Status.EINVAL),
        (b'{"collections":["7"]}', Status.EINVAL),
        (b'{"collections":["0x8"]}', Status.EINVAL),
        (b'{"collections":[" 8"]}', Status.EINVAL),
        (b'{"cts":{}}', Status.EINVAL),
        (b'{"uid":NaN}', Status.EINVAL),
        ('{"uid":"1"}'.encode("utf-16"), Status.EINVAL),
        (b'{"sid":5}', Status.DCP_STREAMID_INVALID),
    ],
)
def test_refused(value, status):
    refusal = read(value)
    assert isinstance(refusal, Refusal)
    assert refusal.status is status
    assert (refusal.manifest_uid == 3) == (status in (Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE))


@rule("SID-03", "SID-04", "SID-05")
@each_case(
    ("value", "expected"),
    [
        (b'{"sid":1}', 1),
        (b'{"sid":65535}', 65535),
        (b'{"sid":18446744073709551615}', 65535),
        (b'{"sid":0}', Status.DCP_STREAMID_INVALID),
        (b'{"sid":65536}', Status.DCP_STREAMID_INVALID),
        (b'{"sid":"1"}', Status.EINVAL),
        (b'{"sid":1.5}', Status.EINVAL),
        (b'{"sid":-1}', Status.EINVAL),
        (b'{"sid":true}', Status.EINVAL),
        (b'{"uid":"1"}', Status.DCP_STREAMID_INVALID),
        (b"", Status.DCP_STREAMID_INVALID),
    ],
)
def test_stream_ids(value, expected):
    found = read(value, sids=True)
    assert (found.status if isinstance(found, Refusal) else found.stream_id) == expected


@rule("COL-12", "COL-14")
@each_case(
    ("value", "status"),
    [
        (b'{"sid":0,"collections":["77"]}', Status.DCP_STREAMID_INVALID),
        (b'{"sid":"1","collections":["77"]}', Status.EINVAL),
        (b'{"sid":1,"collections":["77"]}', Status.UNKNOWN_COLLECTION),
        (b'{"sid":1,"scope":"77"}', Status.UNKNOWN_SCOPE),
        (b'{"sid":1,"collections":["8"],"scope":"77"}', Status.EINVAL),
        (b'{"collections":["77",8]}', Status.UNKNOWN_COLLECTION),
        (b'{"collections":[8,"77"]}', Status.EINVAL),
        (b'{"sid":18446744073709551616}', Status.EINVAL),
    ],
)
def test_of_several_faults_the_first_one_in_the_servers_order_decides(value, status):
    assert read(value).status is status


@rule("COL-17")
def test_sync_writes_take_no_filter():
    assert read(b'{"collections":["8"]}', sync=True) == Refusal(Status.NOT_SUPPORTED)
    assert read(b'{"uid":"1"}', sync=True) == StreamFilter()
    assert read(b"", sync=True, collections=False) == StreamFilter(frozenset((0,)))


BEGIN, END = SystemEventId.CREATE_COLLECTION, SystemEventId.DROP_COLLECTION
SCOPE_9 = Scope(9, "s", (Collection(8, "a"),))
LIVE_MANIFEST = Manifest(1, (Scope(0, "_default", (Collection(0, "_default"),)), SCOPE_9))


def of_scope() -> LiveFilter:
    return LiveFilter(StreamFilter(frozenset((8,)), scope_id=9), LIVE_MANIFEST)


def test_a_stream_of_everything_never_ends() -> None:
    everything = LiveFilter(StreamFilter(), LIVE_MANIFEST)
    everything.coming([CollectionEvent(BEGIN, 2, 9, 10, "b")])
    everything.passed([CollectionEvent(END, 2, 9, 8), CollectionEvent(SystemEventId.DROP_SCOPE, 3, 9)])
    assert everything.collection_ids is None
    assert everything.numbers(LIVE_MANIFEST) is None
    assert not everything.is_over


def test_a_scope_grows_and_outlives_its_collections() -> None:
    scope = of_scope()
    scope.coming([CollectionEvent(BEGIN, 2, 9, 10, "b"), CollectionEvent(BEGIN, 2, 0, 11, "other")])
    assert scope.collection_ids == {8, 10}
    scope.passed([CollectionEvent(END, 3, 9, 8), CollectionEvent(END, 3, 9, 10)])
    scope.passed([CollectionEvent(SystemEventId.DROP_SCOPE, 4, 12), CollectionEvent(END, 4, 9, 13)])
    assert not scope.is_over
    scope.passed([CollectionEvent(SystemEventId.DROP_SCOPE, 5, 9)])
    assert scope.is_over


@rule("COL-18")
@each_case(
    ("text", "number"),
    [
        ('"7"', 7),
        ('"7x"', 7),
        ('" +7"', 7),
        ('"-1"', MAX_SEQNO),
        ('"0x7"', 0),
        ('"000000000000000000000000000000000000000000007"', 7),
        ('"18446744073709551615"', MAX_SEQNO),
        *((text, None) for text in ('""', '"abc"', "7", "null", '["7"]')),
    ],
)
def test_a_purge_seqno_is_read_as_a_server_reads_it(text, number):
    value = b'{"purge_seqno":%s}' % text.encode()
    found = read_filter(value, Manifest.DEFAULT, has_collections=True, release=RELEASES["8.0"])
    assert found == (Refusal(Status.EINVAL) if number is None else StreamFilter(purge_seqno=number))
    assert read_filter(value, Manifest.DEFAULT, has_collections=True, release=RELEASES["7.6"]) == Refusal(Status.EINVAL)


def test_a_release_without_purge_seqnos_ignores_the_member():
    value = b'{"uid":"5","purge_seqno":80}'
    assert read_filter(value, Manifest.DEFAULT, has_collections=True, release=RELEASES["7.6"]) == StreamFilter()
    found = read_filter(value, Manifest.DEFAULT, has_collections=True, release=RELEASES["8.0"])
    assert found == Refusal(Status.EINVAL)


@rule("COL-18")
@each_case("digits", [b"18446744073709551616", b"9" * 5000])
def test_a_purge_seqno_of_more_than_64_bits_ends_the_connection(digits):
    value = b'{"purge_seqno":"%s"}' % digits
    with pytest.raises(RemoteProtocolError):
        read_filter(value, Manifest.DEFAULT, has_collections=True, release=RELEASES["8.0"])
