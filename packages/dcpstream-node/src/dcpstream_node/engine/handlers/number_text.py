"""Decimal numbers in the text of counters and of STAT, read as servers read them.

Source: kv_engine utilities/util.cc (safe_strtoull, safe_strtous).
"""

from __future__ import annotations

import re

from dcpstream.wire.release import Release, Rule

DIGITS_MAX = 20
"""Digits of the largest number of 64 bits."""

_U64 = 1 << 64
_BLANKS = b" \t\n\v\f\r"
_STRTOULL = re.compile(rb"[ \t\n\v\f\r]*([+-]?)([0-9]+)(?:[ \t\n\v\f\r\0]|\Z)")
_SIGNED = re.compile(rb"[ \t\n\v\f\r]*[+-]?[0-9]")
_DIGITS = re.compile(rb"[ \t\n\v\f\r]*\+?([0-9]+)(?:[ \t\n\v\f\r]|\Z)")


def read_number(text: bytes, release: Release, *, limit: int = _U64) -> int | None:
    """The number below the limit that a text begins with, or None if there is none.

    Blanks and a plus sign may be before it, and anything behind a blank after it. Until 7.2 the text is read as C's
    strtoull reads it: a minus sign turns the number around, a text that begins with a blank and has no number is 0, and
    a byte 0 ends the text.
    """
    number = _by_strtoull(text) if release.has(Rule.NUMBERS_BY_STRTOULL) else _by_digits(text)
    return None if number is None or number >= limit else number


def _value_of(digits: bytes) -> int | None:
    digits = digits.lstrip(b"0") or b"0"
    return None if len(digits) > DIGITS_MAX or int(digits) >= _U64 else int(digits)


def _by_digits(text: bytes) -> int | None:
    found = _DIGITS.match(text)
    return None if found is None else _value_of(found[1])


def _by_strtoull(text: bytes) -> int | None:
    found = _STRTOULL.match(text)
    if found is None:
        return 0 if text and text[0] in _BLANKS and not _SIGNED.match(text) else None
    sign, digits = found.groups()
    number = _value_of(digits)
    if number is None:
        return None
    number = -number % _U64 if sign == b"-" else number
    return None if b"-" in text.partition(b"\0")[0] and number >= _U64 // 2 else number
