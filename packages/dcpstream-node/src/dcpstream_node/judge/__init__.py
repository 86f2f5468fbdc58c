"""Judge any Couchbase-compatible server by recordings of real ones, or by another server.

A *scenario* (`scenarios`) drives a server over its data port and decides nothing. A `Recorder` writes down every frame
(`transcript`). `steps` makes comparable steps of the lines, `comparison` compares them with the recording of the same
scenario (`recordings`) or with what another server did, and `variations` explains what differs between two runs of one
real server. `playing` joins these to a `Verdict`, and a `Judge` (`judging`) to a whole run; `report` prints.

The judge has its own codec (`packets`), so that a mistake in that of `dcpstream` cannot hide. It takes only the clock,
the errors, and, for the mode that only reads, the effects of messages.
"""

from dcpstream_node.judge.connection import Endpoint
from dcpstream_node.judge.judging import Judge, Wishes
from dcpstream_node.judge.playing import Verdict
from dcpstream_node.judge.scenarios.kit import Scenario, Target

__all__ = ["Endpoint", "Judge", "Scenario", "Target", "Verdict", "Wishes"]
