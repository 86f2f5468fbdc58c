"""Answers of a client that a producer accepts, and others."""

from functools import partial

from dcpstream.dcp.producer import responses
from dcpstream.wire import Opcode, Status
from dcpstream.wire.release import NEWEST, RELEASES
from tests.kit.cases import each_case

is_tolerated = partial(responses.is_tolerated, release=NEWEST)
DATA = [Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION, Opcode.DCP_SYSTEM_EVENT, Opcode.DCP_PREPARE]
ENDS = [Opcode.DCP_COMMIT, Opcode.DCP_ABORT]


@each_case("opcode", [*DATA, *ENDS, Opcode.DCP_STREAM_END, Opcode.DCP_CACHE_TRANSFER])
@each_case("has_v7_codes", [False, True])
def test_success_and_plain_words_for_gone_streams(opcode, has_v7_codes):
    for status in (Status.SUCCESS, Status.NOT_MY_VBUCKET, Status.DCP_STREAM_NOT_FOUND, Status.OPAQUE_NO_MATCH):
        assert is_tolerated(opcode, status, has_v7_codes=has_v7_codes)


@each_case("opcode", DATA)
def test_older_words_for_gone_streams_unless_the_client_has_its_own(opcode):
    for status in (Status.KEY_ENOENT, Status.KEY_EEXISTS):
        assert is_tolerated(opcode, status, has_v7_codes=False)
        assert not is_tolerated(opcode, status, has_v7_codes=True)


@each_case("opcode", ENDS)
def test_a_lost_prepare_is_no_gone_stream(opcode):
    assert not is_tolerated(opcode, Status.KEY_ENOENT, has_v7_codes=False)
    assert is_tolerated(opcode, Status.KEY_EEXISTS, has_v7_codes=False)


@each_case("status", [Status.EINVAL, Status.ERANGE, Status.ENOMEM, Status.EINTERNAL, 0x7777])
def test_refused_messages(status):
    assert not any(is_tolerated(opcode, status, has_v7_codes=False) for opcode in [*DATA, *ENDS])


def test_exceptions():
    assert is_tolerated(Opcode.DCP_STREAM_END, Status.KEY_ENOENT, has_v7_codes=True)
    assert is_tolerated(Opcode.DCP_CACHE_TRANSFER, Status.ENOMEM, has_v7_codes=True)
    assert is_tolerated(Opcode.DCP_SNAPSHOT_MARKER, Status.EINVAL, has_v7_codes=True)
    assert not is_tolerated(Opcode.DCP_SEQNO_ACKNOWLEDGED, Status.SUCCESS, has_v7_codes=False)


@each_case("opcode", [Opcode.DCP_CONTROL, Opcode.DCP_STREAM_REQ, Opcode.DCP_OPEN, Opcode.DCP_BUFFER_ACK])
def test_answers_to_what_a_producer_never_asks_go_by_their_status(opcode):
    assert is_tolerated(opcode, Status.SUCCESS, has_v7_codes=True)
    assert is_tolerated(opcode, Status.KEY_ENOENT, has_v7_codes=False)
    assert not is_tolerated(opcode, Status.KEY_ENOENT, has_v7_codes=True)
    assert not is_tolerated(opcode, Status.EINVAL, has_v7_codes=False)


@each_case("opcode", [Opcode.DCP_CACHE_TRANSFER, Opcode.DCP_CACHE_TRANSFER_END])
def test_older_producers_know_no_cache_transfer(opcode):
    assert is_tolerated(opcode, Status.SUCCESS, has_v7_codes=False)
    for name in ("7.2", "8.0"):
        release = RELEASES[name]
        assert not responses.is_tolerated(opcode, Status.SUCCESS, has_v7_codes=False, release=release)
        assert responses.is_tolerated(Opcode.DCP_MUTATION, Status.SUCCESS, has_v7_codes=False, release=release)
