"""A check of a data directory without a node: its own files, and the buckets in it.

A node may use the directory meanwhile: it replaces its files atomically, so each one can always be read. Damaged files
can be moved away as a whole, because nothing in them shows which values were changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dcpstream.errors import ConfigError, StoreError, StoreInUse
from dcpstream.node.directory.directory import (
    FILE_NAME,
    LOCK_FILE,
    LOST_AND_FOUND,
    buckets_in,
    read_node_file,
    unfinished_in,
)
from dcpstream.node.directory.user_file import FILE_NAME as USERS_FILE
from dcpstream.node.directory.user_file import read_users_file
from dcpstream.node.engine import Users
from dcpstream.node.private_files import KEPT_IN
from dcpstream.node.shell.certificates import KEPT_PAIRS, trouble_with_pair
from dcpstream.runtime import SystemFileSystem, SystemRandom

MAX_REPAIRS: Final = 1000


@dataclass(slots=True, kw_only=True)
class DirectoryReport:
    """A data directory.

    Attributes:
        stores: directories of buckets.
        acknowledged: names of the buckets on disk in the node's own file.
        gone: those of them without a directory.
        unfinished: remains of interrupted creations and deletions of buckets. A node removes them at its start.
        damaged: file → its fault and the remedy.
    """

    directory: Path
    stores: list[Path] = field(default_factory=list)
    acknowledged: set[str] = field(default_factory=set)
    gone: list[str] = field(default_factory=list)
    unfinished: list[Path] = field(default_factory=list)
    damaged: dict[Path, str] = field(default_factory=dict)

    @property
    def is_of_node(self) -> bool:
        """Whether there are files of a node."""
        return bool(self.stores or self.unfinished or self.damaged or (self.directory / FILE_NAME).exists())


def check_directory(directory: Path) -> DirectoryReport:
    """Check everything but the stores. Raises: OSError: a file cannot be read."""
    report = DirectoryReport(directory=directory)
    file = directory / FILE_NAME
    if file.exists():
        try:
            known = read_node_file(file)[2]
        except StoreError as error:
            report.damaged[file] = str(error)
        else:
            report.acknowledged = {name for name, bucket in known.items() if bucket.settings is None}
    report.gone = [name for name in sorted(report.acknowledged) if not (directory / name).is_dir()]
    names = {*buckets_in(directory, report.acknowledged), *report.acknowledged.difference(report.gone)}
    report.stores = [directory / name for name in sorted(names)]
    report.unfinished = unfinished_in(directory, report.acknowledged)
    users = directory / KEPT_IN / USERS_FILE
    try:
        if (content := read_users_file(users)) is not None:
            Users(SystemRandom()).load(content)
    except ConfigError as error:
        report.damaged[users] = str(error)
    for name in KEPT_PAIRS:
        if why := trouble_with_pair(directory / KEPT_IN, name):
            report.damaged[directory / KEPT_IN / f"{name}.pem"] = why
    return report


def acknowledged_beside(store: Path) -> bool:
    """Whether the data directory of a store knows it."""
    with suppress(StoreError, OSError):
        known = read_node_file(store.absolute().parent / FILE_NAME)[2].get(store.absolute().name)
        return known is not None and known.settings is None
    return False


def remove_unfinished(directory: Path, path: Path) -> None:
    """Remove the remains of an interrupted creation or deletion of a bucket.

    Raises:
        StoreInUse: a node uses the directory. StoreError: it cannot be removed.
    """
    with _locked(directory):
        SystemFileSystem().remove_tree(path)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lock out nodes. Raises: StoreInUse: one is running. StoreError: the work inside failed."""
    try:
        lock = SystemFileSystem().lock_directory(directory, LOCK_FILE, always_makes_file=False)
    except BlockingIOError as error:
        raise StoreInUse(f"a node uses {directory}; stop it first") from error
    except OSError as error:
        raise StoreError(f"{directory} cannot be repaired: {error}") from error
    try:
        yield
    except OSError as error:
        raise StoreError(f"{directory} cannot be repaired: {error}") from error
    finally:
        lock.release()


def move_damaged(report: DirectoryReport) -> Path:
    """Move damaged files to a new directory in `lost+found`, which is returned.

    Raises:
        StoreInUse: a node uses the directory. StoreError: they cannot be moved.
    """
    files, directory = SystemFileSystem(), report.directory
    with _locked(directory):
        for count in range(1, MAX_REPAIRS + 1):
            place = directory / LOST_AND_FOUND / f"repair-{count}"
            if not place.exists():
                break
        else:
            raise StoreError(f"{directory / LOST_AND_FOUND} holds {MAX_REPAIRS} repairs; move them away")
        files.make_directory(place)
        for damaged in report.damaged:
            of_pair = [damaged.with_suffix(suffix) for suffix in (".pem", ".key") if damaged.suffix == ".pem"]
            for file in of_pair or [damaged]:
                if file.exists():
                    files.rename(file, place / file.name)
            files.sync_directory(damaged.parent)
        files.sync_directory(place)
        return place
