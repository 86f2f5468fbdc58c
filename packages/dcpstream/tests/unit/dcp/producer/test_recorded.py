"""The producer machine answers recorded clients as the recorded server of its release did, byte for byte."""

from tests.kit.cases import each_case
from tests.kit.replay import Replay, comparable

SCENARIOS = ("s03", "s05", "s07", "s08", "s09", "s10", "s15", "s17", "s26", "s28")
NOT_PURE = {
    "s26": ("multi#2", "multi2#3"),  # several vbuckets on one connection: the order between them is free
}


@each_case("scenario", SCENARIOS)
@each_case("release", ["7.2", "8.0"])
def test_answers_as_recorded(release, scenario):
    peers = Replay(scenario, release).run()
    assert peers
    for name, peer in peers.items():
        ours, recorded = comparable(peer.ours), comparable(peer.recorded)
        if name in NOT_PURE.get(scenario, ()):
            ours, recorded = sorted(map(repr, ours)), sorted(map(repr, recorded))
        assert ours == recorded, name
        assert peer.was_closed == (peer.machine.close_reason is not None), name
