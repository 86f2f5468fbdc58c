"""The scenarios, a module for each theme; importing one registers its scenarios.

A scenario is a function that drives a server through a `Run` (`kit`). It decides nothing: it sends, reads, and goes on
whatever the answer was. Scenarios make their own vbuckets, from 100 up, so that each can run alone.
"""

from dcpstream_node.judge.scenarios import (
    consumer,
    controls,
    data,
    errors_and_races,
    flow,
    key_value,
    node,
    release_8,
    server_bugs,
    session,
    streams,
)
from dcpstream_node.judge.scenarios.kit import SCENARIOS

__all__ = [
    "SCENARIOS",
    "consumer",
    "controls",
    "data",
    "errors_and_races",
    "flow",
    "key_value",
    "node",
    "release_8",
    "server_bugs",
    "session",
    "streams",
]
