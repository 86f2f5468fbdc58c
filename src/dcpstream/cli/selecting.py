"""Which changes `tail` shows: by key, by a path into the document, and since a time. Pure functions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dcpstream.client import Change
from dcpstream.errors import ConfigError
from dcpstream.model import Op

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_STEP = re.compile(r"\.?([^.\[\]=]+)|\[(\d+)\]")
_NOTHING = object()


def compiled(pattern: str | None) -> re.Pattern[str] | None:
    """A regular expression of the user.

    Raises: ConfigError: it is none.
    """
    try:
        return None if pattern is None else re.compile(pattern)
    except re.error as error:
        message = f"--regex: {pattern} is not a regular expression: {error}"
        raise ConfigError("--regex", pattern, "a regular expression", message=message) from None


def nanoseconds_since(text: str, now_ns: int) -> int:
    """A time as nanoseconds since 1970.

    Args:
        text: how long ago (90s, 15m, 2h, 1d), or a date and time in ISO form; without a zone in the local one.
        now_ns: the present time.

    Raises: ConfigError: it is neither.
    """
    duration = _DURATION.fullmatch(text)
    if duration is not None:
        return now_ns - int(float(duration[1]) * _UNITS[duration[2]] * 1e9)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1_000_000) * 1000
    except (ValueError, OverflowError):
        message = f"--since: {text} is no time. Write how long ago (90s, 15m, 2h, 1d) or 2026-01-31T12:00:00"
        raise ConfigError("--since", text, "90s, 15m, 2h, 1d, or an ISO time", message=message) from None


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A place in documents, and the value wanted there if one was given."""

    steps: tuple[str | int, ...]
    wanted: Any = _NOTHING

    @classmethod
    def parse(cls, text: str) -> JsonPath:
        """Read `order.items[0].sku`, with `=VALUE` behind it to compare; `$.` in front is allowed.

        The value is JSON, or else a text.

        Raises: ConfigError: it is no path.
        """
        path, equals, value = text.partition("=")
        rest = path.strip().removeprefix("$").lstrip(".")
        steps: list[str | int] = []
        at = 0
        while at < len(rest):
            step = _STEP.match(rest, at)
            if step is None:
                steps = []
                break
            steps.append(step[1] if step[2] is None else int(step[2]))
            at = step.end()
        if not steps:
            message = f"--path: {path} is no path. Write it as order.items[0].sku, with =VALUE to compare"
            raise ConfigError("--path", text, "order.items[0].sku", message=message)
        return cls(tuple(steps), _json_or_text(value) if equals else _NOTHING)

    def matches(self, document: Any) -> bool:
        """Whether the document has the place, with the wanted value."""
        found = document
        for step in self.steps:
            if isinstance(found, list) != isinstance(step, int):
                return False
            try:
                found = found[step]
            except (LookupError, TypeError):  # TypeError: it is neither a list nor an object
                return False
        return self.wanted is _NOTHING or found == self.wanted


def selector(
    *, prefix: str, pattern: re.Pattern[str] | None, paths: Sequence[JsonPath], since_ns: int
) -> Callable[[Change], bool]:
    """Whether a change is shown. Rollbacks and events of collections always are.

    A deletion has no document, so paths leave it out.
    """
    start = prefix.encode()

    def is_wanted(change: Change) -> bool:
        if Op(change.op).is_control:
            return True
        if change.cas < since_ns or not change.key.startswith(start):
            return False
        if pattern is not None and not pattern.search(change.key.decode(errors="replace")):
            return False
        if not paths:
            return True
        try:
            document = json.loads(change.value or b"")
        except (ValueError, RecursionError):
            return False
        return all(path.matches(document) for path in paths)

    return is_wanted


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
