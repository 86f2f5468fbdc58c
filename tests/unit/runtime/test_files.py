"""The file system's calls, as the store relies on them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcpstream.runtime import File, SystemFileSystem
from dcpstream.runtime.files import WRITEV_MAX

HOLD_LOCK = """
import sys
from pathlib import Path
from dcpstream.runtime import SystemFileSystem
lock = SystemFileSystem().lock_directory(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def files() -> SystemFileSystem:
    return SystemFileSystem()


@pytest.fixture
def file(files: SystemFileSystem, tmp_path: Path) -> Iterator[File]:
    opened = files.open(tmp_path / "segment")
    yield opened
    opened.close()


def test_buffers_are_appended_in_order(file: File) -> None:
    assert file.append([b"ab", bytearray(b"cd"), memoryview(b"ef")]) == 6
    assert file.append([b"g"]) == 1
    assert file.size() == 7
    assert file.read(0, 100) == b"abcdefg"


def test_more_buffers_than_one_call_takes(file: File) -> None:
    buffers = [bytes([number % 251]) for number in range(2 * WRITEV_MAX + 3)]
    assert file.append(buffers) == len(buffers)
    assert file.read(0, len(buffers)) == b"".join(buffers)


def test_a_write_that_takes_only_part_goes_on_from_there(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.writev

    def writes_three_bytes(descriptor: int, buffers: list[memoryview]) -> int:
        return real(descriptor, [b"".join(buffers)[:3]])

    monkeypatch.setattr(os, "writev", writes_three_bytes)
    assert file.append([b"abcd", b"", b"efghij"]) == 10
    assert file.read(0, 10) == b"abcdefghij"


@pytest.mark.parametrize(("offset", "length", "expected"), [(1, 2, b"bc"), (3, 5, b"d"), (4, 1, b""), (9, 1, b"")])
def test_reads_are_short_only_at_the_end(file: File, offset: int, length: int, expected: bytes) -> None:
    file.append([b"abcd"])
    assert file.read(offset, length) == expected


def test_appending_goes_on_after_a_cut(file: File) -> None:
    file.append([b"abcdef"])
    file.truncate(2)
    file.append([b"XY"])
    file.sync()
    assert file.read(0, 10) == b"abXY"


def test_a_file_opened_again_is_appended_to(files: SystemFileSystem, tmp_path: Path) -> None:
    for text in (b"one", b"two"):
        opened = files.open(tmp_path / "segment")
        opened.append([text])
        opened.close()
        opened.close()
    assert (tmp_path / "segment").read_bytes() == b"onetwo"


def test_names_come_sorted_and_go_when_removed(files: SystemFileSystem, tmp_path: Path) -> None:
    files.make_directory(tmp_path / "a" / "b")
    files.make_directory(tmp_path / "a" / "b")
    for name in ("2", "10", "1"):
        (tmp_path / "a" / "b" / name).touch()
    files.remove(tmp_path / "a" / "b" / "10")
    files.sync_directory(tmp_path / "a" / "b")
    assert files.names(tmp_path / "a" / "b") == ["1", "2"]


def test_a_locked_directory_keeps_others_of_this_process_out(files: SystemFileSystem, tmp_path: Path) -> None:
    lock = files.lock_directory(tmp_path)
    with pytest.raises(BlockingIOError):
        files.lock_directory(tmp_path)
    lock.release()
    lock.release()
    files.lock_directory(tmp_path).release()


def test_a_lock_ends_with_the_process_that_held_it(files: SystemFileSystem, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(BlockingIOError):
            files.lock_directory(tmp_path)
        holder.kill()
        holder.wait(30)
        files.lock_directory(tmp_path).release()


def test_what_was_just_written_is_at_hand(tmp_path):
    file = SystemFileSystem().open(tmp_path / "file")
    file.append([b"x" * 100])
    assert file.is_at_hand(0)
    assert file.is_at_hand(99)
    file.close()


def test_a_system_that_does_not_tell_is_believed_to_have_it(tmp_path, monkeypatch):
    monkeypatch.setattr("dcpstream.runtime.files._NOWAIT", None)
    file = SystemFileSystem().open(tmp_path / "file")
    assert file.is_at_hand(0)
    file.close()
