"""JSON files of the data directory that carry a checksum, so that a flipped bit changes no setting silently.

The checksum is one of the object's values: XXH3-64 of the rest of the object as JSON with sorted names, in
16 hexadecimal digits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from dcpstream_node.store.log.blocks import checksum

CHECKSUM: Final = "checksum"


def to_text(content: dict[str, Any]) -> str:
    """The file's text."""
    return json.dumps(content | {CHECKSUM: _checksum_of(content)}, indent=1) + "\n"


def from_text(text: str, names: frozenset[str]) -> dict[str, Any]:
    """The content of a file without its checksum.

    Args:
        names: of the values that it must have, and no others.

    Raises:
        ValueError: not such a file, or a damaged one. The message quotes no value.
    """
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("too many brackets within each other") from None
    if not isinstance(content, dict):
        raise ValueError("no JSON object")
    expected = content.pop(CHECKSUM, None)
    if names != content.keys():
        # An unknown name may be that of the checksum with a flipped bit.
        raise ValueError(f"it has not the values {', '.join(sorted(names))} alone")
    actual = _checksum_of(content)
    if expected != actual:
        raise ValueError(f"its checksum does not fit: the content's is {actual}")
    return content


def read_file(file: Path, names: frozenset[str], max_bytes: int) -> dict[str, Any]:
    """The content of a file without its checksum; see `from_text`.

    Raises:
        OSError: it cannot be read. ValueError: as `from_text`, or it is larger.
    """
    if file.stat().st_size > max_bytes:
        raise ValueError(f"more than {max_bytes} bytes")
    return from_text(file.read_text(encoding="utf-8"), names)


def reason_of(error: Exception) -> str:
    """Why a file's content cannot be used, for messages."""
    return str(error) if isinstance(error, ValueError) else repr(error)


def _checksum_of(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"{checksum(text.encode(), 0):016x}"
