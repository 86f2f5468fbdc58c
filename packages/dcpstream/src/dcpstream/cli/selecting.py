"""The selection of changes that `tail` shows: by key, by a path into the document, and since a time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dcpstream.cli.connection_options import with_options
from dcpstream.errors import ConfigError
from dcpstream.model import Op

if TYPE_CHECKING:
    from dcpstream.client import Change

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_STEP = re.compile(r"\.?([^.\[\]=]+)|\[(\d+)\]")
_NOTHING = object()
_F = TypeVar("_F", bound=Callable[..., Any])
_KEYS = (
    click.option("--prefix", default="", help="Only keys that begin so."),
    click.option("--regex", help="Only keys in which this is found."),
)


def key_options(command: _F) -> _F:
    """Add which keys are wanted; the command gets `prefix` and `regex`, see `key_selector`."""
    return with_options(command, _KEYS)


def _compiled(pattern: str | None) -> re.Pattern[str] | None:
    """A regular expression of the user.

    Raises: ConfigError: it is none.
    """
    try:
        return None if pattern is None else re.compile(pattern)
    except re.error as error:
        message = f"--regex: {pattern} is not a regular expression: {error}"
        raise ConfigError("--regex", pattern, "a regular expression", message=message) from None


def nanoseconds_since(text: str, now_ns: int) -> int:
    """A time in the past as nanoseconds since 1970.

    Args:
        text: how long ago (90s, 15m, 2h, 1d), or a date and time in ISO form; without a zone in the local one.
        now_ns: the present time.

    Raises: ConfigError: it is neither.
    """
    return _moment(text, now_ns, "--since", "how long ago", -1)


def nanoseconds_until(text: str, now_ns: int) -> int:
    """A time to come as nanoseconds since 1970: as `nanoseconds_since`, but a duration counts from now on."""
    return _moment(text, now_ns, "--until", "how long", 1)


def _moment(text: str, now_ns: int, option: str, what: str, sign: int) -> int:
    duration = _DURATION.fullmatch(text)
    if duration is not None:
        return now_ns + sign * int(float(duration[1]) * _UNITS[duration[2]] * 1e9)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1_000_000) * 1000
    except (ValueError, OverflowError):
        message = f"{option}: {text} is no time. Write {what} (90s, 15m, 2h, 1d) or 2026-01-31T12:00:00"
        raise ConfigError(option, text, "90s, 15m, 2h, 1d, or an ISO time", message=message) from None


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


def key_selector(prefix: str, regex: str | None) -> Callable[[bytes], bool]:
    """Whether a key begins so, and has a place that the regular expression finds.

    Raises: ConfigError: it is no regular expression.
    """
    start, pattern = prefix.encode(), _compiled(regex)

    def is_wanted(key: bytes) -> bool:
        return key.startswith(start) and (pattern is None or bool(pattern.search(key.decode(errors="replace"))))

    return is_wanted


def selector(
    is_wanted_key: Callable[[bytes], bool], *, paths: Sequence[JsonPath], since_ns: int
) -> Callable[[Change], bool]:
    """Whether a change is shown. Rollbacks and events of collections always are.

    A deletion has no document, so paths leave it out.
    """

    def is_wanted(change: Change) -> bool:
        if Op(change.op).is_control:
            return True
        if change.cas < since_ns or not is_wanted_key(change.key):
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
