"""The file system's calls, as the store relies on them."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcpstream.runtime import (
    File,
    SystemFileSystem,
    is_locked,
    make_durable_directory,
    make_private,
    replace_shared,
    write_whole,
)
from dcpstream.runtime.files import LOCK_NAME, WRITEV_MAX

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


def test_a_lock_on_the_file_alone_keeps_out(files: SystemFileSystem, tmp_path: Path) -> None:
    """As older versions hold it."""
    with (tmp_path / LOCK_NAME).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert is_locked(tmp_path)
        with pytest.raises(BlockingIOError):
            files.lock_directory(tmp_path)
    files.lock_directory(tmp_path).release()


@pytest.mark.parametrize("always_makes_file", [False, True])
def test_where_directories_cannot_be_locked_the_file_is(
    files: SystemFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, always_makes_file: bool
) -> None:
    real = fcntl.flock

    def locks_files(descriptor: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", locks_files)
    lock = files.lock_directory(tmp_path, always_makes_file=always_makes_file)
    assert is_locked(tmp_path)
    with pytest.raises(BlockingIOError):
        files.lock_directory(tmp_path)
    lock.release()
    files.lock_directory(tmp_path).release()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_full_disk_has_no_room_for_a_lock_file_and_needs_none(
    files: SystemFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real = os.open

    def has_no_room(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            raise OSError(code, os.strerror(code))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", has_no_room)
    lock = files.lock_directory(tmp_path)
    with pytest.raises(BlockingIOError):
        files.lock_directory(tmp_path)
    lock.release()


def test_a_lock_that_is_held_for_a_moment_is_waited_for(
    files: SystemFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, waits = files.lock_directory(tmp_path), []

    def release(seconds: float) -> None:
        waits.append(seconds)
        lock.release()

    monkeypatch.setattr("time.sleep", release)
    files.lock_directory(tmp_path).release()
    assert len(waits) == 1


def modes(path: Path) -> dict[str, int]:
    return {
        str(entry.relative_to(path.parent)): stat.S_IMODE(entry.lstat().st_mode) for entry in (path, *path.rglob("*"))
    }


@pytest.fixture(params=[0o000, 0o022, 0o777])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_what_is_made_is_for_its_owner_alone_whatever_the_umask(files: SystemFileSystem, tmp_path: Path) -> None:
    path = tmp_path / "a"
    make_durable_directory(files, path / "b")
    files.open(path / "segment").close()
    files.lock_directory(path).release()
    write_whole(files, path / "b" / "whole", b"x")
    assert modes(path) == {"a": 0o700, "a/b": 0o700, "a/segment": 0o600, "a/lock": 0o600, "a/b/whole": 0o600}


def test_what_was_made_for_everybody_is_taken_from_them(files: SystemFileSystem, tmp_path: Path) -> None:
    path = tmp_path / "a"
    (path / "b").mkdir(parents=True, mode=0o777)
    outside = tmp_path / "outside"
    for file in (path / "1", path / "b" / "2", outside):
        file.touch(0o666)
        file.chmod(0o666)
    (path / "link").symlink_to(outside)
    make_private(path)
    assert {name: mode for name, mode in modes(path).items() if name != "a/link"} == {
        "a": 0o700, "a/b": 0o700, "a/1": 0o600, "a/b/2": 0o600
    }  # fmt: skip
    assert stat.S_IMODE(outside.stat().st_mode) == 0o666
    (path / "1").chmod(0o644)
    files.open(path / "1").close()
    assert modes(path)["a/1"] == 0o600


def test_a_file_is_written_whole_or_stays_as_it_was(
    files: SystemFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    (tmp_path / "file.new").write_bytes(b"what a crash left")
    write_whole(files, file, b"one")
    write_whole(files, file, b"2")
    assert file.read_bytes() == b"2"
    for call in ("fdatasync", "writev", "ftruncate"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            with pytest.raises(OSError, match="No space"):
                write_whole(files, file, b"three")
        assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
        assert file.read_bytes() == b"2"


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_system_without_an_answer_is_taken_to_have_it(tmp_path, monkeypatch):
    monkeypatch.setattr("dcpstream.runtime.files._NOWAIT", None)
    file = SystemFileSystem().open(tmp_path / "file")
    assert file.is_at_hand(0)
    file.close()


def test_a_shared_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "shared.json"
    replace_shared(path, b"old")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600, "only its owner reads it"
    replace_shared(path, b"new", 0o644)
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o644)

    def full(descriptor: int) -> None:
        # Another writer comes in between: its file is another one.
        monkeypatch.undo()
        replace_shared(path, b"other")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_shared(path, b"never")
    assert path.read_bytes() == b"other"
    assert [one.name for one in tmp_path.iterdir()] == ["shared.json"], "nothing is left behind"
