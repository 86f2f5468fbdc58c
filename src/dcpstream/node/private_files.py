"""Files of the data directory that hold secrets: written whole, durably, and readable by their owner alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from dcpstream.errors import ConfigError
from dcpstream.runtime import SystemFileSystem, write_whole
from dcpstream.runtime.files import FILE_MODE

KEPT_IN: Final = ".security"
"""Directory within the data directory; no bucket's name begins with a dot."""


def write_file(path: Path, content: str, mode: int = FILE_MODE) -> None:
    """Write a file atomically and durably; by default only its owner may read it.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        if mode == FILE_MODE:
            write_whole(SystemFileSystem(), path, content.encode())
        else:
            _write_for_others(path, content, mode)
    except OSError as error:
        raise ConfigError("file", f"{path} ({error.strerror})", "a file that can be written") from error


def _write_for_others(path: Path, content: str, mode: int) -> None:
    """As `write_whole`, with a temporary name per process: several nodes may write to the directory."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    SystemFileSystem().sync_directory(path.parent)


def make_secret_directory(directory: Path) -> None:
    """Make a directory that only its owner may read.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        SystemFileSystem().make_directory(directory)
        directory.chmod(0o700)
    except OSError as error:
        raise ConfigError("path", f"{directory} ({error.strerror})", "a directory that can be made") from error
