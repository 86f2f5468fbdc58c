"""A node's data directory: a directory per bucket, and a file that tells what the buckets' stores do not.

That file (`.node.json`; no bucket's name begins with a dot) keeps the identities of the cluster and of each bucket, so
that clients take them for the same after a restart, and the ephemeral buckets, which have no directory. Stores are
found without it: a directory with a store in it is a bucket.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcpstream.errors import ConfigError, StoreError
from dcpstream.model import BucketSettings, Manifest
from dcpstream.model.cluster import MAX_VBUCKETS
from dcpstream.runtime import Random, SystemFileSystem
from dcpstream.store import SEGMENT_BYTES, BucketStore, MemoryBucketStore

if TYPE_CHECKING:
    from dcpstream.node.engine import Bucket

logger = logging.getLogger(__name__)

FILE_NAME = ".node.json"
FORMAT = 1
MAX_FILE_BYTES = 64 * 1024 * 1024
"""Of the file: 30 buckets with the largest manifests there can be take a tenth of it."""
STORE_FILE = "meta.sqlite"
GONE_PREFIX = ".deleted-"
"""Before the name of a bucket whose files are being removed."""
UUID_BITS = 128
_BUCKET_NAME = re.compile(r"[A-Za-z0-9_%-][A-Za-z0-9_%.-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBucket:
    """A bucket that was there before this start.

    Attributes:
        uuid: its identity; empty if it was not kept.
        vbuckets: how many.
        settings, manifest: of an ephemeral one; None: its store has them.
    """

    uuid: str = ""
    vbuckets: int
    settings: BucketSettings | None = None
    manifest: Manifest | None = None


class DataDirectory:
    """Where a node keeps its buckets; without a path in memory, and then nothing is known of an earlier start.

    Args:
        path: the directory; made if need be.
        random: for new identities.
        segment_bytes: size at which a store begins its next file.

    Attributes:
        cluster_uuid: identity of the cluster that this node is.
        known: name → what was there before.
        damaged: of these, buckets that are not served because of their files; they are not forgotten.

    Raises:
        StoreError: it cannot be read.
    """

    def __init__(self, path: Path | None, random: Random, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._path = path
        self._segment_bytes = segment_bytes
        self.cluster_uuid = f"{random.getrandbits(UUID_BITS):0{UUID_BITS // 4}x}"
        self.known: dict[str, KnownBucket] = {}
        self.damaged: set[str] = set()
        self._written = ""
        if path is not None:
            self._read(path)

    def _read(self, path: Path) -> None:
        try:
            self._look(path)
        except OSError as error:
            raise StoreError(f"the data directory {path} cannot be used: {error}") from error

    def _look(self, path: Path) -> None:
        if (path / STORE_FILE).is_file():
            parent = path.absolute().parent
            raise StoreError(f"{path} is the directory of one bucket; give a node the one that it lies in, {parent}")
        path.mkdir(parents=True, exist_ok=True)
        file = path / FILE_NAME
        if file.exists():
            self._take(file)
        for entry in sorted(path.iterdir()):
            if entry.name.startswith(GONE_PREFIX):
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name not in self.known and _BUCKET_NAME.fullmatch(entry.name):
                vbuckets = _vbuckets_of(entry)
                if vbuckets is not None:
                    self.known[entry.name] = KnownBucket(vbuckets=vbuckets)
        for name, bucket in list(self.known.items()):
            if bucket.settings is None and not (path / name / STORE_FILE).exists():
                logger.warning("bucket %s was in %s and is not there any more", name, path)
                del self.known[name]

    def _take(self, file: Path) -> None:
        try:
            if file.stat().st_size > MAX_FILE_BYTES:
                raise ValueError(f"more than {MAX_FILE_BYTES} bytes")
            text = file.read_text(encoding="utf-8")
            content = json.loads(text)
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']}, not {FORMAT}")
            self.cluster_uuid = str(content["cluster_uuid"])
            for name, entry in content["buckets"].items():
                check_bucket_name(name)
                self.known[name] = _known(entry)
            self._written = text
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            why = str(error) if isinstance(error, ValueError) else repr(error)
            raise StoreError(
                f"{file} cannot be understood: {why}. Without it the stores are found all the same; move it away, "
                "and buckets get new identities, which makes clients take them for other buckets; ephemeral ones are "
                "gone."
            ) from error

    def remember(self, buckets: Iterable[Bucket]) -> None:
        """Keep what is to be found at the next start; nothing is written if that has not changed.

        A file that cannot be written is logged: no document is lost by that.
        """
        if self._path is None:
            return
        content = {
            "format": FORMAT,
            "cluster_uuid": self.cluster_uuid,
            "buckets": {name: _known_entry(self.known[name]) for name in sorted(self.damaged & self.known.keys())}
            | {bucket.name: _entry(bucket) for bucket in buckets},
        }
        text = json.dumps(content, indent=1)
        if text == self._written:
            return
        try:
            _write(self._path / FILE_NAME, text)
            self._written = text
        except OSError as error:
            logger.error("%s could not be written: %s; the next change tries again", self._path / FILE_NAME, error)

    def open(self, name: str, vbuckets: int, settings: BucketSettings | None = None) -> BucketStore:
        """The store of a bucket, which is made if it is not there.

        Raises:
            ConfigError: the name cannot be one. StoreError: it cannot be opened, or was made for other vbuckets.
        """
        check_bucket_name(name)
        known = self.known.get(name)
        is_ephemeral = settings is not None and settings.is_ephemeral
        if known is not None:
            # What is there stays what it is, whatever the settings say that new buckets get.
            settings, is_ephemeral = known.settings or settings, known.settings is not None
        if self._path is None or is_ephemeral:
            store: BucketStore = MemoryBucketStore(vbuckets, settings)
            if known is not None and known.manifest is not None:
                store.manifest = known.manifest
            return store
        from dcpstream.store import DiskBucketStore

        return DiskBucketStore(self._path / name, vbuckets, settings, segment_bytes=self._segment_bytes)

    def uuid_of(self, name: str) -> str:
        """The identity that a bucket had; empty if there was none."""
        known = self.known.get(name)
        return known.uuid if known is not None else ""

    def forget(self, name: str) -> None:
        """A bucket is deleted: one of that name is another one."""
        self.known.pop(name, None)

    def discard(self, name: str) -> None:
        """Take away a bucket's files. May be called from any thread.

        First it gets a name that no bucket has: killed on the way, a node must not find half of a store.
        """
        check_bucket_name(name)
        if self._path is not None:
            gone = self._path / f"{GONE_PREFIX}{name}"
            shutil.rmtree(gone, ignore_errors=True)
            try:
                (self._path / name).rename(gone)
                SystemFileSystem().sync_directory(self._path)
            except FileNotFoundError:
                return  # one in memory
            except OSError as error:
                logger.warning("%s could not be set aside: %s; it is removed as it is", self._path / name, error)
                gone = self._path / name
            shutil.rmtree(gone, ignore_errors=True)


def check_bucket_name(name: str) -> None:
    """Refuse what cannot be a bucket's name.

    The name becomes a directory's, so this is also what keeps a bucket within the data directory.

    Raises:
        ConfigError: it cannot.
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


def _vbuckets_of(directory: Path) -> int | None:
    """How many vbuckets the store in a directory has; None if there is no store."""
    file = directory / STORE_FILE
    if not file.is_file():
        return None
    try:
        with closing(sqlite3.connect(file)) as connection:
            row = connection.execute("SELECT value FROM store WHERE name = 'vbucket_count'").fetchone()
            return int(row[0]) if row is not None else None
    except (sqlite3.Error, ValueError) as error:
        raise StoreError(f"the store in {directory} cannot be looked at: {error}") from error


def _write(file: Path, text: str) -> None:
    """Replace a file so that a crash leaves the old or the new one."""
    temporary = file.with_name(f"{file.name}.new")
    with temporary.open("w", encoding="utf-8") as output:
        output.write(text)
        output.flush()
        os.fsync(output.fileno())
    temporary.replace(file)
    descriptor = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
