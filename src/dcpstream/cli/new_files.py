"""Files that commands make: their places are looked at before any work, and a new file comes whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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


@contextmanager
def new_file(option: str, path: Path) -> Iterator[Path]:
    """The path of a file to write, which gets its own name when the block ends; an error leaves nothing.

    Until then it lies in a hidden directory beside that name.

    Args:
        option: what gives the path, for messages.
        path: where the file is to be.

    Raises: ConfigError: there is a file already, which stays as it is, or none can be made there.
    """
    import tempfile

    check_directory(option, path)
    if os.path.lexists(path):
        message = f"{option}: {path} exists already. Choose another file, or remove this one"
        raise ConfigError(option, str(path), "a new file", message=message)
    with ExitStack() as cleanup:
        try:
            directory = cleanup.enter_context(tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent))
        except OSError as error:
            message = f"{option}: no file can be made in {path.absolute().parent}: {error.strerror}"
            raise ConfigError(
                option, str(path), "a file in a directory that can be written", message=message
            ) from error
        temporary = Path(directory) / path.name
        yield temporary
        temporary.rename(path)
