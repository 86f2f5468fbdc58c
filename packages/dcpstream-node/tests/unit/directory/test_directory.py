"""A node's data directory: what is found there, what is kept beside the stores, and names that stay inside."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
from pathlib import Path

import pytest

from dcpstream.errors import StoreError
from dcpstream.model import BucketSettings, Manifest, Scope
from dcpstream.runtime import SystemFileSystem
from dcpstream_node.directory.directory import DataDirectory
from dcpstream_node.store import DiskBucketStore, MemoryBucketStore
from tests.kit.engine import engine_of

EPHEMERAL = BucketSettings(is_ephemeral=True, max_ttl=7)


_last: dict[Path | None, DataDirectory] = {}


def opened(path: Path | None, seed: int = 1) -> DataDirectory:
    """The directory as a node finds it when it starts, after the one before has ended."""
    if path in _last:
        _last[path].close()
    _last[path] = DataDirectory(path, random.Random(seed))
    return _last[path]


def test_identities_and_ephemeral_buckets_are_kept(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    engine = engine_of(MemoryBucketStore(8, EPHEMERAL))
    bucket = engine.buckets["default"]
    engine.set_manifest(bucket, Manifest(3, (*bucket.manifest.scopes, Scope(9, "s"))))
    directory.remember([bucket])
    again = opened(tmp_path, seed=2)
    assert again.cluster_uuid == directory.cluster_uuid
    assert again.uuid_of("default") == bucket.uuid
    assert again.known["default"].vbuckets == 8
    store = again.open("default", 8)
    assert isinstance(store, MemoryBucketStore)
    assert (store.settings, store.manifest) == (EPHEMERAL, bucket.manifest)
    again.forget("default")
    assert again.uuid_of("default") == ""
    again.remember([])
    assert opened(tmp_path).known == {}


def test_in_memory_nothing_is_kept() -> None:
    directory = opened(None)
    directory.remember([engine_of().buckets["default"]])
    directory.discard("default")
    assert isinstance(directory.open("default", 2), MemoryBucketStore)
    assert directory.known == {}


def test_a_store_is_found_and_one_that_is_gone_is_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    DiskBucketStore(tmp_path / "shop", 16).close()
    assert opened(tmp_path).known["shop"].vbuckets == 16
    with opened(tmp_path).open("shop", 16) as store:
        directory = opened(tmp_path)
        engine = engine_of(store)
        engine.buckets["default"].name = "shop"
        directory.remember([engine.buckets["default"]])
    opened(tmp_path).discard("shop")
    assert opened(tmp_path).known == {}
    assert "is not there any more" in caplog.text


def test_a_lost_file_of_identities_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    DataDirectory(tmp_path, random.Random(1)).close()
    assert not caplog.text
    DiskBucketStore(tmp_path / "shop", 2).close()
    DataDirectory(tmp_path, random.Random(1)).close()
    assert f"{tmp_path / '.node.json'} is missing" in caplog.text
    assert "restore it from a copy" in caplog.text


def test_the_directory_of_a_bucket_is_not_that_of_a_node(tmp_path: Path) -> None:
    DiskBucketStore(tmp_path / "shop", 2).close()
    with pytest.raises(StoreError, match=f"directory of one bucket; give a node the one that it lies in, {tmp_path}"):
        opened(tmp_path / "shop")


def test_a_bucket_whose_removal_was_cut_short_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DiskBucketStore(tmp_path / "shop", 16).close()
    directory = opened(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # killed before a file went
        directory.discard("shop")
    assert [entry.name for entry in tmp_path.iterdir()] == [".deleted-shop"]
    assert opened(tmp_path).known == {}
    assert list(tmp_path.iterdir()) == [], "what was left is removed at the next start"
    DiskBucketStore(tmp_path / "shop", 16).close()
    directory.discard("shop")
    directory.discard("shop")
    assert list(tmp_path.iterdir()) == []


class OfAnotherUser(SystemFileSystem):
    def make_directory(self, path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def test_a_directory_of_another_user_is_reported_with_what_to_do(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path, random.Random(1), file_system=OfAnotherUser())
    expected = f"bucket b cannot be made: the user {os.geteuid()} may not write in {tmp_path}. Give that user"
    with pytest.raises(StoreError, match=re.escape(expected)):
        directory.open("b", 4)
