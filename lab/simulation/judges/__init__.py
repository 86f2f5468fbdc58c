"""Judges of a simulated cluster: they watch, compare with what they wrote down themselves, and complain.

A judge shares no code with what it judges: it cuts frames, keeps histories and finds common points on its own. `frames`
reads the few messages that judges need. `history` has every branch of every vbucket, item by item, as the active copies
wrote them. `conversations` watches the bytes between nodes and machines. `readers` compares what a client holds with
the history. `Judge` joins them.

A complaint is a `Violation`, which says which promise was broken, where and how.
"""

from __future__ import annotations

from lab.simulation.judges.conversations import Conversations
from lab.simulation.judges.history import Branch, Histories, Violation
from lab.simulation.judges.judge import Judge
from lab.simulation.judges.readers import TableJudge

__all__ = ["Branch", "Conversations", "Histories", "Judge", "TableJudge", "Violation"]
