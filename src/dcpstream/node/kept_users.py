"""Users that were made while the node ran, kept in its data directory: salted hashes, readable by their owner alone."""

from __future__ import annotations

import json
from pathlib import Path

from dcpstream.errors import ConfigError
from dcpstream.node.engine import Users
from dcpstream.node.secret_files import KEPT_IN, make_secret_directory, write_file

FILE_NAME = "users.json"
MAX_FILE_BYTES = 16 * 1024 * 1024
"""A thousand users and a thousand groups with 200 roles each take less."""


class KeptUsers:
    """Keeps the users of a node in step with a file.

    Args:
        users: of the node; their version tells that something is to be kept.
        path: the data directory; None: nothing is kept.

    Raises:
        ConfigError: there is a file, and it cannot be read.
    """

    def __init__(self, users: Users, path: Path | None) -> None:
        self._users = users
        self._file = path / KEPT_IN / FILE_NAME if path is not None else None
        self._load()
        self._kept = users.version

    def _load(self) -> None:
        if self._file is None:
            return
        try:
            if self._file.stat().st_size > MAX_FILE_BYTES:
                raise ConfigError("users", str(self._file), f"a file of at most {MAX_FILE_BYTES} bytes")
            content = json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise ConfigError(
                "users",
                str(self._file),
                f"the file that the node wrote ({type(error).__name__}); restore it, or move it away "
                "and make its users again",
            ) from None
        self._users.load(content)

    def keep(self) -> None:
        """Write what has changed since the last time, durably, before it is told that it was done.

        Raises:
            ConfigError: the file cannot be written.
        """
        if self._file is None or self._kept == self._users.version:
            return
        version = self._users.version
        make_secret_directory(self._file.parent)
        write_file(self._file, json.dumps(self._users.to_json(), indent=1) + "\n")
        self._kept = version
