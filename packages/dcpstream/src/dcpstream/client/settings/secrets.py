"""Secrets that may change while a program runs: a text, or a function that returns the text when it is needed.

Passwords and tokens are needed for each login, and the password of a client certificate's key for each client. A client
calls the function once for each connection that it makes, so a new password or token is used without a restart.
Connections that are open stay logged in, as long as the token is valid. The cluster and the place of the secret do not
change at one moment, so a refused login with such a secret is tried again, as long as a node may be away.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from dcpstream.errors import ConfigError

Secret: TypeAlias = str | Callable[[], str]
"""A secret, or a function that returns it. The function should return at once, because it runs between messages."""

MAX_SECRET_FILE_BYTES = 16 * 1024
"""Bytes of a file of a secret that are read: a token of more fits into no login."""

MAX_TOKEN_CHARACTERS = 16_000
"""Longest token: a node closes a connection that sends more than 16 KiB before its login."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""The characters of a bearer token. Source: RFC 6750, section 2.1."""


@dataclass(frozen=True, slots=True)
class SecretFile:
    """The secret in the first line of a file, read when it is needed.

    Attributes:
        path: of the file, in UTF-8.
        option: the name of the option that gave it, for errors.
    """

    path: str
    option: str = "password"

    def __call__(self) -> str:
        """The first line.

        Raises:
            ConfigError: the file cannot be read, or its first line is empty. The error never quotes the file.
        """
        try:
            with Path(self.path).open(encoding="utf-8") as file:
                secret = file.read(MAX_SECRET_FILE_BYTES).partition("\n")[0].rstrip("\r")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "not text"
            message = f"{self.option}: {self.path} cannot be read: {why}"
            raise ConfigError(self.option, self.path, "a file that can be read", message=message) from None
        if not secret:
            message = f"{self.option}: the first line of {self.path} is empty. The secret must be there"
            raise ConfigError(self.option, self.path, "a file whose first line is the secret", message=message)
        return secret


@dataclass(frozen=True, slots=True)
class SecretFunction:
    """The secret that a function of a module returns; the module is imported in the process that needs it.

    Attributes:
        reference: `module:function`; the function takes no arguments.
        option: the name of the option that gave it, for errors.
    """

    reference: str
    option: str = "password"

    def __call__(self) -> str:
        """The secret.

        Raises:
            ConfigError: there is no such function, it fails, or it returns no text.
        """
        module, _, name = self.reference.partition(":")
        try:
            secret = getattr(importlib.import_module(module), name)()
        except Exception as error:
            message = f"{self.option}: {self.reference} gave no text: {type(error).__name__}: {error}"
            raise ConfigError(self.option, self.reference, "module:function", message=message) from error
        if not isinstance(secret, str):
            message = f"{self.option}: {self.reference} returned {type(secret).__name__}. It must return a text"
            raise ConfigError(self.option, self.reference, "a function that returns a text", message=message)
        return secret


def current(secret: Secret) -> str:
    """The secret as it is now.

    Raises:
        ConfigError: it cannot be had.
    """
    return secret if isinstance(secret, str) else secret()


def current_token(token: Secret) -> str:
    """The token as it is now, checked; white space around it does not count.

    Raises:
        ConfigError: it cannot be had, or is no token. The error never quotes it.
    """
    text = current(token).strip()
    if len(text) > MAX_TOKEN_CHARACTERS or not _TOKEN.fullmatch(text):
        what = f"a text of {len(text)} characters"
        allowed = f"1 to {MAX_TOKEN_CHARACTERS} letters, digits and . _ ~ + / - ="
        message = f"token: {what} is not a token. A token has {allowed}"
        raise ConfigError("token", what, allowed, message=message)
    return text
