"""Passwords that come from files and functions, at each login."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from dcpstream.client import SecretFile
from dcpstream.client.settings.secrets import MAX_TOKEN_CHARACTERS, SecretFunction, current, current_token
from dcpstream.errors import ConfigError


def test_a_file_is_read_for_each_login(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("first\r\nnot this\n")
    password = SecretFile(str(file))
    assert (current("text"), current(password)) == ("text", "first")
    file.write_text("second")
    assert current(password) == "second"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file"),
        (b"\xff", "cannot be read: not text"),
        (b"\nhunter2", "first line .* empty"),
    ],
)
def test_a_file_without_a_password(tmp_path: Path, content: bytes | None, words: str) -> None:
    file = tmp_path / "file"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"passwordFile: .*{words}") as raised:
        SecretFile(str(file), "passwordFile")()
    assert "hunter2" not in str(raised.value)


def test_a_function_of_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("vault")
    module.password = lambda: "word"  # type: ignore[attr-defined]
    module.number = lambda: 1  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vault", module)
    assert SecretFunction("vault:password")() == "word"
    for reference, words in (
        ("vault:nothing", "AttributeError"),
        ("nowhere_at_all:password", "ModuleNotFoundError"),
        ("vault:number", "returned int. It must return a text"),
    ):
        with pytest.raises(ConfigError, match=words):
            SecretFunction(reference)()


def test_a_token_is_checked_where_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(" eyJ.eyJ._-~+/== \nnot this")
    assert current_token(SecretFile(str(file))) == "eyJ.eyJ._-~+/=="
    for wrong in ("", "two words", "a\x01auth=Bearer b", "schlüssel", "==", "a" * (MAX_TOKEN_CHARACTERS + 1)):
        with pytest.raises(ConfigError, match=f"token: a text of {len(wrong)} characters is not a token") as raised:
            current_token(wrong)
        assert len(wrong) < 3 or wrong not in str(raised.value)
