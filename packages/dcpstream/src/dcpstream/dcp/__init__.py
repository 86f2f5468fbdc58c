"""The machines of the protocol: which message is legal when, and what answers it. Sans-IO.

A node has one machine for each DCP connection: a `ProducerConnection` if it sends history, a `ConsumerConnection` if it
receives some. The shell passes each frame to `handle(frame, now)` and sends what `data_to_send` returns; `wake_at`
and `handle_timeout` replace the clock. A `close_reason` asks the shell to close the connection. The bucket behind both
machines is an interface (`bucket`), which the node implements.

- `producer`: stream requests and rollback, streams of snapshots, takeover.
- `consumer`: controls, stream requests, rows into a replica.
- `controls`: the table of DCP_CONTROL, which both ends and the client use.
- `opening`: DCP_OPEN, which decides between the two; `refusals`: the checks and answers that both share.
- `snapshot`, `window`, `liveness`: the rules that both ends, and the client, share: which message of a stream fits,
  which bytes are acknowledged, when a peer is given up.
- `stats`: the `dcp` stats group.
- `transitions`: tables of states and events, which every machine with states uses.
- `sasl`: both ends of a login.

The names below are loaded when they are first used: a client needs the logins and the rules that both ends share, and
not what a node's history is made of, for which numpy is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcpstream.lazy import lazy_names

if TYPE_CHECKING:
    from dcpstream.dcp.bucket import HistorySource, VBucketView
    from dcpstream.dcp.consumer.connection import ConsumerConnection
    from dcpstream.dcp.producer.connection import ProducerConnection, ProducerLimits
    from dcpstream.dcp.producer.rollback import Accept, Decision, Refuse, Rollback, decide
    from dcpstream.dcp.sasl import (
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

_HOME_OF = {
    "Accept": "dcpstream.dcp.producer.rollback",
    "ClientLogin": "dcpstream.dcp.sasl",
    "ConsumerConnection": "dcpstream.dcp.consumer.connection",
    "Credentials": "dcpstream.dcp.sasl",
    "Decision": "dcpstream.dcp.producer.rollback",
    "HistorySource": "dcpstream.dcp.bucket",
    "MECHANISMS": "dcpstream.dcp.sasl",
    "Outcome": "dcpstream.dcp.sasl",
    "ProducerConnection": "dcpstream.dcp.producer.connection",
    "ProducerLimits": "dcpstream.dcp.producer.connection",
    "Refuse": "dcpstream.dcp.producer.rollback",
    "Rollback": "dcpstream.dcp.producer.rollback",
    "ServerLogin": "dcpstream.dcp.sasl",
    "ServerStep": "dcpstream.dcp.sasl",
    "VBucketView": "dcpstream.dcp.bucket",
    "decide": "dcpstream.dcp.producer.rollback",
    "strongest_mechanism": "dcpstream.dcp.sasl",
}

__getattr__, __dir__ = lazy_names(__name__, _HOME_OF)
