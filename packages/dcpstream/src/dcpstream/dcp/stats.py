"""The text of values in the `dcp` stats group, for both ends.

Source: kv_engine engines/ep/src/dcp/connhandler.cc (addStats), recorded names.
"""

from __future__ import annotations


def milliseconds(seconds: float) -> str:
    """A duration as the server writes it."""
    return f"{int(seconds * 1000)} ms"


def stat_text(value: object) -> str:
    """A value as the server writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
