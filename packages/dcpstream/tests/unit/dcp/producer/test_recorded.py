"""The producer machine answers recorded clients as the recorded server did, byte for byte."""

import pytest

from dcpstream.dcp.opening import read_open
from dcpstream.dcp.refusals import Refusal, refuse
from dcpstream.wire import Opcode, decode_frame
from tests.kit.recorded import server_transcript
from tests.kit.replay import Replay, comparable

SCENARIOS = ("s03", "s05", "s07", "s08", "s09", "s10", "s15", "s17", "s26", "s28")
NOT_PURE = {
    "s26": ("multi#2", "multi2#3"),  # several vbuckets on one connection: the order between them is free
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_answers_as_recorded(scenario):
    peers = Replay(scenario).run()
    assert peers
    for name, peer in peers.items():
        ours, recorded = comparable(peer.ours), comparable(peer.recorded)
        if name in NOT_PURE.get(scenario, ()):
            ours, recorded = sorted(map(repr, ours)), sorted(map(repr, recorded))
        assert ours == recorded, name
        assert peer.was_closed == (peer.machine.close_reason is not None), name


def opens():
    """Every recorded DCP_OPEN of a logged-in connection, with the status of its answer."""
    for scenario in ("s02", "s34"):
        asked = {}
        for line in server_transcript(scenario):
            if line.event or len(line.frame) < 24 or line.frame[1] != Opcode.DCP_OPEN:
                continue
            frame = decode_frame(line.frame)
            if line.direction == "c2s":
                asked[line.connection, frame.opaque] = frame
            elif (line.connection, 0x1004) == (line.connection, frame.opaque):
                yield f"{scenario} {line.connection}", asked[line.connection, frame.opaque], frame


@pytest.mark.parametrize(("name", "request_frame", "expected"), list(opens()))
def test_opens_as_recorded(name, request_frame, expected):
    request = read_open(request_frame)
    if expected.status:
        assert isinstance(request, Refusal), name
        answer = decode_frame(refuse(request_frame, request))
        assert (answer.status, answer.datatype) == (expected.status, expected.datatype)
        assert bool(answer.value) == bool(expected.value)
    else:
        assert not isinstance(request, Refusal), (name, request)
        assert request.name == request_frame.key
