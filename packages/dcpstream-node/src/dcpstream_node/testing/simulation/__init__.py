"""Nodes without sockets on virtual time, and peers that talk to them: DCP tests in microseconds, repeatable by seed.

    node = SimulatedNode()                         # one bucket in memory; SimulatedNode(path=...) keeps it on disk
    node.set_doc(1, "k", b"v")
    peer = node.producer()                         # HELLO, SASL, SELECT_BUCKET, DCP_OPEN; the node's end is a producer
    frames = peer.stream(1)                        # STREAM_REQ; returns every frame that the node sends
    node.advance(20)                               # virtual time passes: NOOPs, time-outs

`SimulatedNode` runs the engine of `dcpstream_node.Node`. A `Peer` is the other end of one of its connections and sends
any frame, also a malformed one. A `ScriptedProducer` is a peer that plays the producer, so that the node's end is a
consumer. A `PretendWire` joins a producer of one node to a consumer of another and passes one frame at a time, so that
a test can stop, cut or restart between any two frames. Only the test moves the `VirtualClock`, and `SeededRandom`
repeats itself, so a test that fails fails again.

Frames are `dcpstream.wire.Frame`; `dcpstream.wire.decode_message` gives the typed message. Nothing here needs pytest.
"""

from __future__ import annotations

from dcpstream_node.testing.simulation.clock import START_S, START_UNIX_S, SeededRandom, VirtualClock
from dcpstream_node.testing.simulation.node import (
    USUAL_FEATURES,
    WITHOUT_COLLECTIONS,
    FrameFields,
    Peer,
    SimulatedNode,
    known_users,
    simulated_engine,
)
from dcpstream_node.testing.simulation.replication import PretendWire, ScriptedProducer

__all__ = [
    "START_S",
    "START_UNIX_S",
    "USUAL_FEATURES",
    "WITHOUT_COLLECTIONS",
    "FrameFields",
    "Peer",
    "PretendWire",
    "ScriptedProducer",
    "SeededRandom",
    "SimulatedNode",
    "VirtualClock",
    "known_users",
    "simulated_engine",
]
