"""The rule by which a node recognizes JSON documents from their bytes.

Source: kv_engine daemon/protocol/mcbp/mutation_context.cc.
"""

from __future__ import annotations

import json
from typing import NoReturn

JSON_STARTS = frozenset(b'{["-0123456789tfn \t\r\n')
"""Bytes with which a JSON text can begin."""


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(text)


# Numbers are only checked, not made: `len` is the cheapest function that takes their text.
_scan_json = json.JSONDecoder(parse_float=len, parse_int=len, parse_constant=_refuse_constant).decode


def is_json(value: bytes) -> bool:
    """Whether the bytes are one JSON text in UTF-8."""
    if not value or value[0] not in JSON_STARTS:
        return False
    try:
        _scan_json(value.decode())
    except (ValueError, RecursionError):
        return False
    return True
