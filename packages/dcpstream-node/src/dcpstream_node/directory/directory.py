"""The data directory: a directory for each bucket, and a file of the facts that no store holds.

That file (`.node.json`; no bucket's name begins with a dot) keeps the identities of the cluster and of each bucket, so
that clients recognise them after a restart, and the ephemeral buckets, which have no directory. Stores are found
without it: a directory with a store in it is a bucket.

A bucket is made under a temporary name (`.making-…`) and then renamed, so that a kill leaves all of it or nothing.
One node at a time uses a data directory; after locking it, the node removes the remains of interrupted steps.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dcpstream.errors import ConfigError, CorruptLog, StoreError, StoreInUse
from dcpstream.model import BucketSettings, Manifest
from dcpstream.model.cluster import MAX_VBUCKETS
from dcpstream.runtime import (
    DirectoryLock,
    FileSystem,
    Random,
    SystemFileSystem,
    make_durable_directory,
    make_private,
    write_whole,
)
from dcpstream.runtime.files import DIRECTORY_MODE, NEW_SUFFIX
from dcpstream_node.directory.checksummed_json import read_file, reason_of, to_text
from dcpstream_node.engine import ClusterConfig
from dcpstream_node.private_files import KEPT_IN
from dcpstream_node.store import SEGMENT_BYTES, BucketStore, MemoryBucketStore
from dcpstream_node.store.closed.detect import is_store, is_unfinished, vbuckets_of
from dcpstream_node.store.metadata import MISSING_HINT

if TYPE_CHECKING:
    from dcpstream_node.engine import Bucket

logger = logging.getLogger(__name__)

FILE_NAME = ".node.json"
CLUSTER_FILE: Final = ".cluster.json"
"""File of a directory whose nodes are a cluster, each with a directory of its own in it."""
FORMAT = 1
MAX_FILE_BYTES = 64 * 1024 * 1024
"""Largest file: 30 buckets with the largest possible manifests take a tenth of it."""
STORE_FILE = "meta.sqlite"
LOCK_FILE: Final = ".lock"
"""Made only if the directory itself cannot be locked."""
GONE_PREFIX = ".deleted-"
"""Before the name of a bucket whose files are being removed."""
MAKING_PREFIX: Final = ".making-"
"""Before the name of a bucket whose files are being made."""
_NAMES: Final = frozenset({"format", "cluster_uuid", "buckets", "cluster"})
UUID_BITS = 128
_BUCKET_NAME = re.compile(r"[A-Za-z0-9_%-][A-Za-z0-9_%.-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBucket:
    """A bucket from before this start.

    Attributes:
        uuid: its identity; empty if unknown.
        vbuckets: their number; 0 if unknown, because its files are damaged.
        settings, manifest: of an ephemeral bucket; None: its store has them.
    """

    uuid: str = ""
    vbuckets: int
    settings: BucketSettings | None = None
    manifest: Manifest | None = None


class DataDirectory:
    """The place of a node's buckets. Without a path they are in memory, and there was no earlier start.

    Args:
        path: the directory; made if it is missing.
        random: for new identities.
        segment_bytes: size at which a store begins its next file.

    Attributes:
        cluster_uuid: identity of the node's cluster.
        cluster: settings of the cluster, see `ClusterConfig.settings_to_json`.
        known: name → the bucket from before this start.
        damaged: names of known buckets that are not served because of their files; they are kept in the file.

    Raises:
        StoreInUse: another node uses it. StoreError: it cannot be read.
    """

    def __init__(
        self,
        path: Path | None,
        random: Random,
        segment_bytes: int = SEGMENT_BYTES,
        file_system: FileSystem | None = None,
    ) -> None:
        self._path = path
        self._random = random
        self._file_system = file_system or SystemFileSystem()
        self._lock: DirectoryLock | None = None
        self._segment_bytes = segment_bytes
        self.cluster_uuid = f"{random.getrandbits(UUID_BITS):0{UUID_BITS // 4}x}"
        self.cluster: dict[str, Any] = {}
        self.known: dict[str, KnownBucket] = {}
        self.damaged: set[str] = set()
        self._written = ""
        if path is not None:
            self._read(path)

    def _read(self, path: Path) -> None:
        try:
            self._look(path)
        except BlockingIOError as error:
            raise StoreInUse(f"the data directory {path} is in use by another node; give each its own") from error
        except OSError as error:
            self.close()
            raise StoreError(f"the data directory {path} cannot be used: {_reason(error, path)}") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let another node use the directory; a second time does nothing."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _look(self, path: Path) -> None:
        if (path / STORE_FILE).is_file():
            parent = path.absolute().parent
            raise StoreError(f"{path} is the directory of one bucket; give a node the one that it lies in, {parent}")
        if (path / CLUSTER_FILE).exists():
            raise StoreError(
                f"{path} holds the directories of a cluster's nodes: start it as a cluster, with as many nodes "
                "(dcpstream_node.Cluster, or dcpstream node --nodes)"
            )
        make_durable_directory(self._file_system, path)
        self._lock = self._file_system.lock_directory(path, LOCK_FILE, always_makes_file=False)
        file = path / FILE_NAME
        is_known = file.exists()
        if is_known:
            self._written, self.cluster_uuid, self.known, self.cluster = read_node_file(file)
        self._clean(path)
        for name in buckets_in(path, self.known):
            known = self.known.get(name)
            self.known[name] = known or KnownBucket(vbuckets=vbuckets_of(path / name) or 0)
        for name, bucket in list(self.known.items()):
            if bucket.settings is None and not (path / name).is_dir():
                logger.warning("bucket %s was in %s and is not there any more", name, path)
                del self.known[name]
        if self.known and not is_known:
            logger.warning(
                "%s is missing, and %s holds buckets: clients take them for other buckets, because they get new "
                "identities, and ephemeral buckets are gone. If the file was lost, stop the node and restore it from a "
                "copy",
                file,
                path,
            )
        keep_to_owner(path)

    def _clean(self, path: Path) -> None:
        """Remove the remains of interrupted steps, which were never acknowledged."""
        with suppress(OSError):
            self._file_system.remove(path / (FILE_NAME + NEW_SUFFIX))
        for unfinished in unfinished_in(path, self.known):
            if not unfinished.name.startswith(GONE_PREFIX):
                logger.warning("%s is what an unfinished creation of a bucket left, and was removed", unfinished)
            self._remove(unfinished)

    def remember(self, buckets: Iterable[Bucket]) -> None:
        """Save the facts for the next start, if they have changed.

        A failed write is only logged, because it loses no document.
        """
        if self._path is None:
            return
        content: dict[str, Any] = {
            "format": FORMAT,
            "cluster_uuid": self.cluster_uuid,
            "cluster": self.cluster,
            "buckets": {
                name: _known_entry(self.known[name])
                for name in sorted(self.damaged & self.known.keys())
                if self.known[name].vbuckets
            }
            | {bucket.name: _entry(bucket) for bucket in buckets},
        }
        text = to_text(content)
        if text == self._written:
            return
        try:
            write_whole(self._file_system, self._path / FILE_NAME, text.encode())
            self._written = text
        except OSError as error:
            logger.error("%s could not be written: %s; the next change tries again", self._path / FILE_NAME, error)

    def open(self, name: str, vbuckets: int, settings: BucketSettings | None = None) -> BucketStore:
        """Open the store of a bucket, or make it.

        Raises:
            ConfigError: an invalid name.
            StoreError: it cannot be made or opened, or has another number of vbuckets.
            CorruptLog: its files are damaged or incomplete.
        """
        check_bucket_name(name)
        known = self.known.get(name)
        is_ephemeral = settings is not None and settings.is_ephemeral
        if known is not None:
            # An existing bucket keeps its kind, whatever the settings for new buckets are.
            settings, is_ephemeral = known.settings or settings, known.settings is not None
        if self._path is None or is_ephemeral:
            store: BucketStore = MemoryBucketStore(vbuckets, settings)
            if known is not None and known.manifest is not None:
                store.manifest = known.manifest
            return store
        from dcpstream_node.store import DiskBucketStore
        from dcpstream_node.store.disk import make_store

        path = self._path / name
        if known is not None and not (path / STORE_FILE).exists():
            raise missing_metadata(path)
        if not path.exists():
            making = self._path / f"{MAKING_PREFIX}{name}"
            try:
                make_store(making, vbuckets, settings, self._file_system)
                self._file_system.rename(making, path)
                self._file_system.sync_directory(self._path)
            except (OSError, StoreError) as error:
                self._remove(making)
                # If the last step failed, the bucket was never acknowledged.
                self._remove(path)
                cause = error.__cause__ if isinstance(error, StoreError) else error
                if isinstance(cause, PermissionError):
                    raise StoreError(_not_ours(name, self._path)) from error
                if isinstance(error, StoreError):
                    raise
                raise StoreError(f"the store in {path} cannot be made durable: {error}") from error
        # If the number of vbuckets is unknown, the files are damaged, and opening reports the damage.
        return DiskBucketStore(
            path,
            vbuckets or 1,
            settings,
            file_system=self._file_system,
            segment_bytes=self._segment_bytes,
            random=self._random,
        )

    def holds(self, name: str) -> bool:
        """Whether a bucket of that name has files, served or not."""
        return self._path is not None and (self._path / name).exists()

    def uuid_of(self, name: str) -> str:
        """The identity of a bucket from before this start; empty if there was none."""
        known = self.known.get(name)
        return known.uuid if known is not None else ""

    def forget(self, name: str) -> None:
        """A bucket was deleted: a new one of that name gets a new identity."""
        self.known.pop(name, None)

    def discard(self, name: str) -> None:
        """Remove a bucket's files. May be called from any thread.

        The directory is renamed first, so that a killed node does not leave half of a store.
        """
        check_bucket_name(name)
        if self._path is not None:
            gone = self._path / f"{GONE_PREFIX}{name}"
            self._remove(gone)
            try:
                self._file_system.rename(self._path / name, gone)
                self._file_system.sync_directory(self._path)
            except FileNotFoundError:
                return  # one in memory
            except OSError as error:
                logger.warning("%s could not be set aside: %s; it is removed as it is", self._path / name, error)
                gone = self._path / name
            self._remove(gone)

    def _remove(self, path: Path) -> None:
        """Remove a directory; after a failure, the next start removes it."""
        with suppress(OSError):
            self._file_system.remove_tree(path)


def _reason(error: OSError, path: Path) -> str:
    """Why a directory cannot be used, in words, with the file if it is not the directory itself."""
    if isinstance(error, FileExistsError | NotADirectoryError):
        return f"{error.filename or path} is not a directory"
    where = "" if error.filename in (None, str(path)) else f"{error.filename}: "
    return f"{where}{error.strerror or error}"


def _not_ours(name: str, path: Path) -> str:
    """Why no bucket can be made in a directory of another user, and what to do."""
    user = os.geteuid()
    return (
        f"bucket {name} cannot be made: the user {user} may not write in {path}. Give that user the directory "
        f"(chown -R {user} {path}), or choose another one"
    )


def buckets_in(path: Path, known: Iterable[str]) -> list[str]:
    """The buckets that have files in a data directory, damaged ones among them.

    Args:
        known: names of acknowledged buckets. Remains of the creation of others are not buckets.
    """
    names = {*known}
    return [
        entry.name
        for entry in sorted(path.iterdir())
        if _BUCKET_NAME.fullmatch(entry.name) and is_store(entry) and (entry.name in names or not is_unfinished(entry))
    ]


def unfinished_in(path: Path, known: Iterable[str]) -> list[Path]:
    """Directories of buckets whose creation or deletion was interrupted; they are not acknowledged."""
    names = {*known}
    return [
        entry
        for entry in sorted(path.iterdir())
        if entry.name.startswith((GONE_PREFIX, MAKING_PREFIX))
        or (_BUCKET_NAME.fullmatch(entry.name) and entry.name not in names and is_unfinished(entry))
    ]


def keep_to_owner(path: Path) -> None:
    """Remove the permissions of others on a data directory and its own files; stores do so for theirs.

    A directory is left alone if it has another owner or other content, because a node may use /tmp.
    """
    for name in (FILE_NAME, LOCK_FILE, KEPT_IN):
        with suppress(OSError):
            make_private(path / name)
    with suppress(OSError):
        ours = {entry.name for entry in path.iterdir() if is_store(entry)}
        others = [entry for entry in path.iterdir() if entry.name not in ours and not entry.name.startswith(".")]
        found = path.stat()
        is_shared = found.st_uid != os.geteuid() or found.st_mode & stat.S_ISVTX
        if not others and not is_shared and found.st_mode & 0o077:
            path.chmod(DIRECTORY_MODE)


def missing_metadata(path: Path) -> CorruptLog:
    """The error for a bucket that lacks the metadata file, without which no other file can be read."""
    return CorruptLog(str(path / STORE_FILE), 0, "a file", "no file", MISSING_HINT)


def read_node_file(file: Path) -> tuple[str, str, dict[str, KnownBucket], dict[str, Any]]:
    """The file's text, the identity of the cluster, the buckets, and the settings of the cluster.

    Raises: StoreError: the file is damaged. OSError: it cannot be read.
    """
    try:
        content = read_file(file, _NAMES, MAX_FILE_BYTES)
        cluster = content["cluster"]
        ClusterConfig([]).take_settings(cluster)
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']}, not {FORMAT}")
        for name in content["buckets"]:
            check_bucket_name(name)
        known = {name: _known(entry) for name, entry in content["buckets"].items()}
        return to_text(content), str(content["cluster_uuid"]), known, cluster
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise StoreError(
            f"{file} cannot be understood: {reason_of(error)}. Restore it from a copy, or remove it. Without it the "
            "stores are found all the same, but buckets get new identities, which makes clients take them for other "
            "buckets; ephemeral ones are gone."
        ) from error


def check_bucket_name(name: str) -> None:
    """Refuse an invalid name. The check also keeps a bucket's directory within the data directory.

    Raises:
        ConfigError: the name is invalid.
    """
    if not _BUCKET_NAME.fullmatch(name):
        raise ConfigError("bucket", name, "1 to 100 of A-Z a-z 0-9 _ - % . and not a dot at the start")


def _known(entry: dict[str, Any]) -> KnownBucket:
    vbuckets = int(entry["vbuckets"])
    if not 1 <= vbuckets <= MAX_VBUCKETS:
        raise ValueError(f"{vbuckets} vbuckets")
    settings, manifest = entry.get("settings"), entry.get("manifest")
    return KnownBucket(
        uuid=str(entry["uuid"]),
        vbuckets=vbuckets,
        settings=None if settings is None else BucketSettings.from_json(settings),
        manifest=None if manifest is None else Manifest.from_json(manifest),
    )


def _known_entry(known: KnownBucket) -> dict[str, Any]:
    return {"uuid": known.uuid, "vbuckets": known.vbuckets}


def _entry(bucket: Bucket) -> dict[str, Any]:
    entry: dict[str, Any] = {"uuid": bucket.uuid, "vbuckets": bucket.vbucket_count}
    if bucket.settings.is_ephemeral:
        entry |= {"settings": bucket.settings.to_json(), "manifest": bucket.manifest.to_json()}
    return entry
