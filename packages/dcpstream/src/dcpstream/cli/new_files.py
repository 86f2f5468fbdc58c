"""Files that commands make: their places are checked before any work."""

from __future__ import annotations

from pathlib import Path

from dcpstream.errors import ConfigError


def check_directory(option: str, path: Path) -> None:
    """Refuse a file in a directory that does not exist.

    Args:
        option: what gives the path, for the message.
        path: of the file.

    Raises: ConfigError: its directory does not exist.
    """
    directory = path.absolute().parent
    if not directory.is_dir():
        message = f"{option}: the directory {directory} does not exist. Make it, or choose another file"
        raise ConfigError(option, str(path), "a file in a directory that exists", message=message)
