"""The JSON value of STREAM_REQ."""

import pytest

from dcpstream.model import Collection, Manifest, Scope
from dcpstream.protocol.answers import Refusal
from dcpstream.protocol.stream_filter import StreamFilter, read_filter
from dcpstream.wire import Status

MANIFEST = Manifest(
    3,
    (Scope(0, "_default", (Collection(0, "_default"), Collection(8, "fruit"))), Scope(9, "s", (Collection(10, "v"),))),
)


def read(value, *, collections=True, sids=False, sync=False):
    return read_filter(value, MANIFEST, has_collections=collections, has_stream_ids=sids, has_sync_writes=sync)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"", StreamFilter()),
        (b'{"uid":"1"}', StreamFilter()),
        (b'{"uid":"zz","more":1}', StreamFilter()),
        (b'{"collections":["8","a"]}', StreamFilter(frozenset((8, 10)))),
        (b'{"collections":["0"]}', StreamFilter(frozenset((0,)))),
        (b'{"scope":"9"}', StreamFilter(frozenset((10,)), scope_id=9)),
        (b'{"purge_seqno":"80"}', StreamFilter(client_purge_seqno=80)),
    ],
)
def test_accepted(value, expected):
    assert read(value) == expected


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (b"{}", Status.EINVAL),
        (b"[]", Status.EINVAL),
        (b'{"more":1}', Status.EINVAL),
        (b"{", Status.EINVAL),
        (b"\xff", Status.EINVAL),
        (b'{"collections":"8"}', Status.EINVAL),
        (b'{"collections":[8]}', Status.EINVAL),
        (b'{"collections":[]}', Status.EINVAL),
        (b'{"collections":["xyz"]}', Status.EINVAL),
        (b'{"collections":["8"],"scope":"9"}', Status.EINVAL),
        (b'{"collections":["8","77"]}', Status.UNKNOWN_COLLECTION),
        (b'{"scope":9}', Status.EINVAL),
        (b'{"scope":"77"}', Status.UNKNOWN_SCOPE),
        (b'{"purge_seqno":80}', Status.EINVAL),
        (b'{"purge_seqno":"-1"}', Status.EINVAL),
        (b'{"sid":5}', Status.DCP_STREAMID_INVALID),
    ],
)
def test_refused(value, status):
    refusal = read(value)
    assert isinstance(refusal, Refusal)
    assert refusal.status is status
    assert (refusal.manifest_uid == 3) == (status in (Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'{"sid":1}', 1),
        (b'{"sid":65535}', 65535),
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


def test_without_collections_there_is_only_the_default_one_and_no_value():
    assert read(b"", collections=False) == StreamFilter(frozenset((0,)))
    assert read(b'{"collections":["8"]}', collections=False) == Refusal(Status.EINVAL)


def test_sync_writes_take_no_filter():
    assert read(b'{"collections":["8"]}', sync=True) == Refusal(Status.NOT_SUPPORTED)
    assert read(b'{"uid":"1"}', sync=True) == StreamFilter()


def test_a_purge_seqno_above_64_bits_drops_the_connection():
    assert read(b'{"purge_seqno":"18446744073709551615"}').drops is False
    assert read(b'{"purge_seqno":"18446744073709551616"}').drops is True
