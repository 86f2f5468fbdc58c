"""A check of a data directory without a node: its own files, and the buckets in it.

A node may use the directory meanwhile: it replaces its files atomically, so each one can always be read.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dcpstream.errors import ConfigError, StoreError
from dcpstream.runtime import SystemRandom
from dcpstream_node.directory.directory import FILE_NAME, buckets_in, read_node_file, unfinished_in
from dcpstream_node.directory.user_file import FILE_NAME as USERS_FILE
from dcpstream_node.directory.user_file import read_users_file
from dcpstream_node.engine import Users
from dcpstream_node.private_files import KEPT_IN, KEPT_PAIRS, can_make_certificates


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
    if can_make_certificates():
        from dcpstream_node.shell.certificates import trouble_with_pair

        for name in KEPT_PAIRS:
            if why := trouble_with_pair(directory / KEPT_IN, name):
                report.damaged[directory / KEPT_IN / f"{name}.pem"] = why
    return report


def is_acknowledged_in_directory(store: Path) -> bool:
    """Whether the data directory of a store knows it."""
    with suppress(StoreError, OSError):
        known = read_node_file(store.absolute().parent / FILE_NAME)[2].get(store.absolute().name)
        return known is not None and known.settings is None
    return False
