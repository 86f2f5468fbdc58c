"""Passwords that may change while a program runs: a text, or a function that returns the password for each login.

A client calls the function once for each connection that it makes, so a new password is used without a restart.
Connections that are open stay logged in. The cluster and the place of the password do not change at one moment, so a
refused login with such a password is tried again, as long as a node may be away.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from dcpstream.errors import ConfigError

Password: TypeAlias = str | Callable[[], str]
"""A password, or a function that returns it. The function should return at once, because it runs between messages."""

MAX_PASSWORD_FILE_BYTES = 4096
"""Bytes of a file of a password that are read."""


@dataclass(frozen=True, slots=True)
class PasswordFile:
    """The password in the first line of a file, read for each login.

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
                password = file.read(MAX_PASSWORD_FILE_BYTES).partition("\n")[0].rstrip("\r")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "not text"
            message = f"{self.option}: {self.path} cannot be read: {why}"
            raise ConfigError(self.option, self.path, "a file that can be read", message=message) from None
        if not password:
            message = f"{self.option}: the first line of {self.path} is empty. Write the password there"
            raise ConfigError(self.option, self.path, "a file whose first line is the password", message=message)
        return password


@dataclass(frozen=True, slots=True)
class PasswordFunction:
    """The password that a function of a module returns; the module is imported in the process that logs in.

    Attributes:
        reference: `module:function`; the function takes no arguments.
        option: the name of the option that gave it, for errors.
    """

    reference: str
    option: str = "password"

    def __call__(self) -> str:
        """The password.

        Raises:
            ConfigError: there is no such function, it fails, or it returns no text.
        """
        module, _, name = self.reference.partition(":")
        try:
            password = getattr(importlib.import_module(module), name)()
        except Exception as error:
            message = f"{self.option}: {self.reference} gave no password: {type(error).__name__}: {error}"
            raise ConfigError(self.option, self.reference, "module:function", message=message) from error
        if not isinstance(password, str):
            message = f"{self.option}: {self.reference} returned {type(password).__name__}. It must return a text"
            raise ConfigError(self.option, self.reference, "a function that returns a text", message=message)
        return password


def current(password: Password) -> str:
    """The password for a login now.

    Raises:
        ConfigError: it cannot be had.
    """
    return password if isinstance(password, str) else password()
