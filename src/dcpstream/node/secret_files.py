"""Files of the data directory that hold secrets: written whole, durably, and readable by their owner alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from dcpstream.errors import ConfigError

KEPT_IN: Final = ".security"
"""Directory within the data directory; no bucket's name begins with a dot."""


def write_file(path: Path, content: str, mode: int = 0o600) -> None:
    """Write a file so that a reader sees all of it or none, durably, and nobody else may read a secret.

    Raises:
        ConfigError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                os.fchmod(file.fileno(), mode)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise ConfigError("file", f"{path} ({error.strerror})", "a file that can be written") from error


def make_secret_directory(directory: Path) -> None:
    """A directory that only its owner may look into.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o700)
    except OSError as error:
        raise ConfigError("path", f"{directory} ({error.strerror})", "a directory that can be made") from error
