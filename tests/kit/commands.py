"""Commands of `dcpstream`, run in the process of a test."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dcpstream.cli.app import run


class Commands:
    """Runs commands as a user does, and keeps what they printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.error = ""

    def __call__(self, *words: str, expect: int = 0) -> str:
        """Standard output of a command that ends with the status `expect`."""
        status = run(words)
        out, self.error = self._capsys.readouterr()
        assert status == expect, (status, out, self.error)
        return out

    def json(self, *words: str) -> Any:
        """The JSON that a command prints."""
        return json.loads(self(*words, "--json"))

    def refused(self, *words: str, expect: int = 1) -> str:
        """The one line on standard error of a command that fails."""
        assert self(*words, expect=expect) == ""
        assert self.error.count("\n") == 1, self.error
        return self.error
