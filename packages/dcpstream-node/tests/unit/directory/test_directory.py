"""A node's data directory: what is found there, what is kept beside the stores, and names that stay inside."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
from pathlib import Path

import pytest

from dcpstream.errors import ConfigError, CorruptLog, StoreError
from dcpstream.model import BucketSettings, Manifest, Scope
from dcpstream.runtime import SystemFileSystem
from dcpstream_node.directory.directory import FILE_NAME, DataDirectory, check_bucket_name
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


def test_nothing_is_written_if_nothing_changed(tmp_path: Path) -> None:
    directory, bucket = opened(tmp_path), engine_of().buckets["default"]
    directory.remember([bucket])
    (tmp_path / FILE_NAME).unlink()
    directory.remember([bucket])
    assert not (tmp_path / FILE_NAME).exists()


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


def test_a_file_that_cannot_be_written_costs_no_bucket(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = opened(tmp_path)
    (tmp_path / f"{FILE_NAME}.new").mkdir()
    directory.remember([engine_of().buckets["default"]])
    assert "could not be written" in caplog.text
    (tmp_path / f"{FILE_NAME}.new").rmdir()
    directory.remember([engine_of().buckets["default"]])
    assert "default" in json.loads((tmp_path / FILE_NAME).read_text())["buckets"]


def test_a_store_that_cannot_be_looked_at_is_reported_when_it_is_opened(tmp_path: Path) -> None:
    DiskBucketStore(tmp_path / "other", 16).close()
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "meta.sqlite").write_bytes(b"no database" * 100)
    directory = opened(tmp_path)
    assert directory.known.keys() == {"other", "shop"}
    with pytest.raises(CorruptLog, match="shop"):
        directory.open("shop", 1)
    directory.open("other", 16).close()


def test_a_directory_that_is_none_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file"):
        opened(tmp_path / "file")


@pytest.mark.parametrize("name", ["", "..", ".node.json", "a/b", "a\\b", "a\0", "a b", "ä", "x" * 101, "../x"])
def test_names_that_cannot_be(tmp_path: Path, name: str) -> None:
    for refuse in (check_bucket_name, opened(tmp_path).discard, lambda name: opened(tmp_path).open(name, 1)):
        with pytest.raises(ConfigError, match="bucket"):
            refuse(name)
    assert list(tmp_path.iterdir()) == []


def test_the_directory_of_a_bucket_is_not_that_of_a_node(tmp_path: Path) -> None:
    DiskBucketStore(tmp_path / "shop", 2).close()
    with pytest.raises(StoreError, match=f"directory of one bucket; give a node the one that it lies in, {tmp_path}"):
        opened(tmp_path / "shop")


def test_a_file_next_to_the_stores_that_is_no_json_is_reported(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"a":')
    with pytest.raises(StoreError, match=r"cannot be understood: Expecting value: line 1 column 6 .* or remove it"):
        opened(tmp_path)


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


def test_a_directory_that_may_not_be_looked_at_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(StoreError, match=r"the data directory .* cannot be used: .*Permission denied"):
        opened(tmp_path)


class OfAnotherUser(SystemFileSystem):
    def make_directory(self, path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def test_a_directory_of_another_user_is_reported_with_what_to_do(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path, random.Random(1), file_system=OfAnotherUser())
    expected = f"bucket b cannot be made: the user {os.geteuid()} may not write in {tmp_path}. Give that user"
    with pytest.raises(StoreError, match=re.escape(expected)):
        directory.open("b", 4)
