"""Directories that are stores, and others that a creation left."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcpstream_node.store import DiskBucketStore
from dcpstream_node.store.closed.detect import is_store, is_unfinished, vbuckets_of
from dcpstream_node.store.metadata import FILE_NAME
from tests.kit.stores import fill, key_of, put


def test_a_store_with_and_without_documents(tmp_path: Path) -> None:
    with DiskBucketStore(tmp_path, 3) as store:
        assert (is_store(tmp_path), is_unfinished(tmp_path), vbuckets_of(tmp_path)) == (True, False, 3)
        fill(store)
        put(store.vbuckets[0], key_of("a"), b"")
    assert (is_store(tmp_path), is_unfinished(tmp_path), vbuckets_of(tmp_path)) == (True, False, 3)
    (tmp_path / FILE_NAME).unlink()
    assert (is_store(tmp_path), is_unfinished(tmp_path), vbuckets_of(tmp_path)) == (True, False, None)
    (tmp_path / FILE_NAME).touch()
    assert (is_store(tmp_path), is_unfinished(tmp_path), vbuckets_of(tmp_path)) == (True, False, None)


@pytest.mark.parametrize(
    "names", [["lock"], ["lock", FILE_NAME], [f"{FILE_NAME}.new"], [FILE_NAME, f"{FILE_NAME}-journal"]]
)
def test_what_a_creation_left(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert is_unfinished(tmp_path)
    assert is_store(tmp_path) is (FILE_NAME in names)
    (tmp_path / "notes.txt").touch()
    assert not is_unfinished(tmp_path), "somebody keeps something else here"


@pytest.mark.parametrize("content", [b"no database" * 100, b"x"])
def test_what_cannot_be_read_may_have_held_something(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    assert (is_store(tmp_path), is_unfinished(tmp_path)) == (True, False)
