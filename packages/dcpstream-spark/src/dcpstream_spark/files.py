"""Directories that the driver and all executors reach by the same name: absolute paths, or URLs that Arrow can open."""

from __future__ import annotations

from pathlib import Path

from pyarrow import fs

from dcpstream.errors import ConfigError


def check_directory(name: str, text: str) -> str:
    """The directory without a slash at its end.

    Raises:
        ConfigError: a relative path, or a URL that Arrow cannot open.
    """
    if "://" not in text:
        if not Path(text).is_absolute():
            raise ConfigError(
                name, text, "an absolute path, because executors have other working directories, or a URL"
            )
        return text.rstrip("/")
    try:
        fs.FileSystem.from_uri(text)
    except (ValueError, OSError) as error:  # ArrowInvalid is a ValueError
        raise ConfigError(name, text, f"an absolute path, or a URL that Arrow can open ({error})") from None
    return text.rstrip("/")


def can_open(directory: str) -> bool:
    """Whether `check_directory` accepts it."""
    try:
        check_directory("", directory)
    except ConfigError:
        return False
    return True


def opened(directory: str) -> tuple[fs.FileSystem, str]:
    """The file system of a checked directory, and the path in it."""
    if "://" in directory:
        system, path = fs.FileSystem.from_uri(directory)
        return system, path.rstrip("/")
    return fs.LocalFileSystem(), directory
