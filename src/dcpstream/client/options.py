"""Options of a DCP connection, checked."""

from __future__ import annotations

from collections.abc import Sequence

from dcpstream.client.handshake import DcpSettings
from dcpstream.errors import ConfigError

MIN_BUFFER_BYTES = 64 * 1024
"""Smallest flow-control window: below it the node waits for acknowledgements most of the time."""

MAX_BUFFER_BYTES = 1024 * 1024 * 1024
"""Largest flow-control window."""

_VALUE_COLUMNS = frozenset(("value", "xattrs", "datatype"))


def check_buffer_bytes(buffer_bytes: int) -> int:
    """The window, if it is one.

    Raises:
        ConfigError: it is too small or too large.
    """
    if not MIN_BUFFER_BYTES <= buffer_bytes <= MAX_BUFFER_BYTES:
        raise ConfigError("buffer_bytes", buffer_bytes, f"{MIN_BUFFER_BYTES} to {MAX_BUFFER_BYTES}")
    return buffer_bytes


def dcp_settings(name: str, buffer_bytes: int, columns: Sequence[str] | None) -> DcpSettings:
    """What has to come over the wire for some columns."""
    wanted = None if columns is None else frozenset(columns)
    return DcpSettings(
        name=name,
        buffer_bytes=buffer_bytes,
        xattrs=wanted is None or "xattrs" in wanted,
        no_value=wanted is not None and not wanted & _VALUE_COLUMNS,
    )
