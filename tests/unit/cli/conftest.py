"""What the tests of commands share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import dcpstream
from dcpstream.cli.app import run


@pytest.fixture(scope="module")
def one_node() -> Iterator[dcpstream.Node]:
    """A node for all tests of a module; each uses its own keys or buckets."""
    with dcpstream.Node(vbuckets=4) as node:
        yield node


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


@pytest.fixture
def commands(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)
