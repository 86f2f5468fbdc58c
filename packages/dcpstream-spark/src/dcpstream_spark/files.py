"""Directories: local ones, and those that the driver and all executors reach by the same name."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from dcpstream.errors import ConfigError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
"""A scheme with one slash counts, too: `pathlib` makes `s3:/bucket` of `s3://bucket`."""


def is_url(text: str) -> bool:
    """Whether `text`, a path or a URL, begins with the scheme of a URL."""
    return _URL.match(text) is not None


def local_directory(path: str | Path) -> Path | None:
    """The absolute local directory of a path or of a `file:` URL; None for every other URL."""
    text = str(path)
    if not is_url(text):
        return Path(text).absolute()
    parts = urlsplit(text)
    return Path(unquote(parts.path)) if parts.scheme.lower() == "file" and parts.netloc in {"", "localhost"} else None


def check_directory(name: str, text: str) -> str:
    """The directory without a slash at its end: an absolute path, or a URL that Arrow can open.

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
