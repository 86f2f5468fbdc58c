"""Files of the data directory that hold secrets: written whole, durably, and readable by their owner alone."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from dcpstream.errors import ConfigError
from dcpstream.runtime import FileSystem, SystemFileSystem, make_durable_directory, replace_shared, write_whole
from dcpstream.runtime.files import FILE_MODE

KEPT_IN: Final = ".security"
"""Directory within the data directory; no bucket's name begins with a dot."""
KEPT_PAIRS: Final = ("ca", "server")
"""Names of the kept certificates: of the authority, and of the node."""


def can_make_certificates() -> bool:
    """Whether the extra `tls` is installed."""
    return find_spec("cryptography") is not None


def write_file(path: Path, content: str, mode: int = FILE_MODE, file_system: FileSystem | None = None) -> None:
    """Write a file atomically and durably; by default only its owner may read it.

    Args:
        file_system: for files of the owner's; None for the system's.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        if mode == FILE_MODE:
            write_whole(file_system or SystemFileSystem(), path, content.encode())
        else:
            replace_shared(path, content.encode(), mode)
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror}"
        raise ConfigError("file", str(path), "a file that can be written", message=message) from error


def make_secret_directory(directory: Path, file_system: FileSystem | None = None) -> None:
    """Make a directory that only its owner may read, so that a power cut leaves it there.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        make_durable_directory(file_system or SystemFileSystem(), directory)
        directory.chmod(0o700)
    except OSError as error:
        message = f"the directory {directory} cannot be made: {error.strerror}"
        raise ConfigError("path", str(directory), "a directory that can be made", message=message) from error
