"""The file of users that were made while the node ran: salted hashes, which only the owner may read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from dcpstream.errors import ConfigError
from dcpstream.runtime import FileSystem
from dcpstream_node.directory.checksummed_json import read_file, to_text
from dcpstream_node.engine import Users
from dcpstream_node.private_files import KEPT_IN, make_secret_directory, write_file

FILE_NAME = "users.json"
MAX_FILE_BYTES = 16 * 1024 * 1024
"""Largest file: a thousand users and a thousand groups with 200 roles each take less."""
_NAMES: Final = frozenset({"version", "secret", "users", "groups"})


class UserFile:
    """Keeps the users of a node in step with a file.

    Args:
        users: of the node; a new version of them must be saved.
        path: the data directory; None saves nothing.
        file_system: None for the system's.

    Raises:
        ConfigError: there is a file, and it cannot be read.
    """

    def __init__(self, users: Users, path: Path | None, file_system: FileSystem | None = None) -> None:
        self._users = users
        self._file_system = file_system
        self._file = path / KEPT_IN / FILE_NAME if path is not None else None
        self._load()
        self._kept = users.version

    def _load(self) -> None:
        if self._file is not None and (content := read_users_file(self._file)) is not None:
            self._users.load(content)

    def keep(self) -> None:
        """Save changed users durably; called before the change is acknowledged.

        Raises:
            ConfigError: the file cannot be written.
        """
        if self._file is None or self._kept == self._users.version:
            return
        version = self._users.version
        make_secret_directory(self._file.parent, self._file_system)
        write_file(self._file, to_text(self._users.to_json()), file_system=self._file_system)
        self._kept = version


def read_users_file(file: Path) -> dict[str, Any] | None:
    """The content for `Users.load`; None if there is no such file.

    Raises:
        ConfigError: the file is damaged. The message quotes none of it, because it holds hashes of passwords.
    """
    try:
        return read_file(file, _NAMES, MAX_FILE_BYTES)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else _reason(error)
        raise ConfigError(
            "users",
            str(file),
            f"the file that the node wrote ({why}); restore it from a copy, or remove it and make its users again",
        ) from None


def _reason(error: ValueError) -> str:
    return type(error).__name__ if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else str(error)
