"""Findings: inputs that broke a promise, one for each place in the code and kind of error."""

from __future__ import annotations

import hashlib
import traceback
from pathlib import Path

SMALLER = 0.8
"""An input replaces that of the same finding if it is smaller by this factor, so that few are written."""


def signature_of(error: BaseException) -> str:
    """A short name for the place and the kind of an error: the innermost functions, without their line numbers."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{Path(frame.filename).stem}.{frame.name}" for frame in frames if "site-packages" not in frame.filename]
    # The functions of a recursion repeat; how deep it went does not matter.
    places = list(dict.fromkeys(places))
    text = " > ".join([type(error).__name__, *places[-3:]])
    return f"{type(error).__name__}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


class Findings:
    """The findings of a target, in files below a folder: `NAME.input` and `NAME.txt`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sizes: dict[str, int] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, data: bytes, error: BaseException) -> None:
        """Write an input and its error down, unless a smaller input showed the same."""
        name = signature_of(error)
        size = self._sizes.get(name)
        if size is not None and len(data) > SMALLER * size:
            return
        self._sizes[name] = len(data)
        (self._folder / f"{name}.input").write_bytes(data)
        text = "".join(traceback.format_exception(error))
        (self._folder / f"{name}.txt").write_text(text, encoding="utf-8", errors="backslashreplace")

    def names(self) -> list[str]:
        """Names of the findings, also of libFuzzer's own: a crash, a hang, or too much memory."""
        return sorted(path.stem for path in self._folder.iterdir() if path.suffix != ".txt")
