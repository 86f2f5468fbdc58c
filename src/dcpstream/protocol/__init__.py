"""Sans-IO machines of the protocol: what may be said when, and what is answered.

Nothing here touches sockets, clocks, threads or chance: bytes and messages come in as arguments, `now` (seconds of a
monotonic clock) with them, and what is to be sent is asked for. Servers, clients and tests are shells around it.
"""

from dcpstream.protocol.bucket import HistorySource, VBucketView
from dcpstream.protocol.consumer.connection import ConsumerConnection
from dcpstream.protocol.producer.connection import ProducerConnection, ProducerLimits
from dcpstream.protocol.producer.rollback import Accept, Decision, Refuse, Rollback, decide
from dcpstream.protocol.sasl import (
    MECHANISMS,
    ClientLogin,
    Credentials,
    Outcome,
    ServerLogin,
    ServerStep,
    strongest_mechanism,
)

__all__ = [
    "MECHANISMS",
    "Accept",
    "ClientLogin",
    "ConsumerConnection",
    "Credentials",
    "Decision",
    "HistorySource",
    "Outcome",
    "ProducerConnection",
    "ProducerLimits",
    "Refuse",
    "Rollback",
    "ServerLogin",
    "ServerStep",
    "VBucketView",
    "decide",
    "strongest_mechanism",
]
