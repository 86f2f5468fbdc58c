"""Logs as JSON, one object a line, with users' data taken out.

Messages of this package put keys of documents between `<ud>` and `</ud>`, the marks that Couchbase's redaction tools
look for.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import logging
import re

_MARKED = re.compile(r"<ud>(.*?)</ud>", re.DOTALL)


def redacted(text: str, salt: str = "") -> str:
    """The same text with what stands between the marks replaced by its SHA-1, as `cblogredaction` does.

    Args:
        text: a message.
        salt: hashed before each value, so that nobody can try out keys; the same one keeps lines comparable.
    """
    return _MARKED.sub(lambda found: f"<ud>{hashlib.sha1((salt + found[1]).encode()).hexdigest()}</ud>", text)  # noqa: S324


class JsonFormatter(logging.Formatter):
    """One line of JSON for each record: `time` (UTC), `level`, `logger`, `message`, and `error` with a traceback.

    Args:
        redact: whether values between the marks are replaced by their hashes.
        salt: of the hashes.
    """

    def __init__(self, *, redact: bool = False, salt: str = "") -> None:
        super().__init__()
        self._redact = redact
        self._salt = salt

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        at = dt.datetime.fromtimestamp(record.created, dt.UTC)
        fields = {
            "time": at.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        if self._redact:
            fields = {name: redacted(text, self._salt) for name, text in fields.items()}
        return json.dumps(fields, ensure_ascii=False)
