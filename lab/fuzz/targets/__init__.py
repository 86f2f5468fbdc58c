"""The targets, one module each, by theme.

A target has `check(data)`, which raises if a promise is broken; `seeds()`, inputs to begin with; `MAX_BYTES`, the
largest input; and, if its inputs are chains of frames, `FRAMES_AT`, the number of bytes before the first of them.
"""

import logging

NAMES = (
    "frames",
    "messages",
    "values",
    "json_texts",
    "documents",
    "columnar",
    "offsets",
    "forms",
    "subdocuments",
    "logins",
    "paths",
    "node",
    "client",
)


class _Formatting(logging.Handler):
    """Formats what is logged and drops it: a message that cannot be formatted is a finding."""

    def emit(self, record: logging.LogRecord) -> None:
        """Format."""
        self.format(record)


def quiet() -> None:
    """Let nothing that is logged reach the terminal."""
    logging.getLogger().handlers[:] = [_Formatting()]
