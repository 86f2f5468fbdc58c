"""Files that commands make."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from dcpstream.cli.new_files import new_file
from dcpstream.errors import ConfigError


def test_a_new_file_comes_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "new"
    with new_file("--out", path) as temporary:
        temporary.write_bytes(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with suppress(KeyboardInterrupt), new_file("--out", tmp_path / "new") as temporary:
        temporary.write_bytes(b"a part")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("there", r"^--out: \S+/there exists already\. Choose another file, or remove this one$"),
        ("link", r"^--out: \S+/link exists already\. Choose another file, or remove this one$"),
        ("missing/new", r"^--out: the directory \S+/missing does not exist\. Make it, or choose another file$"),
        ("there/new", r"^--out: the directory \S+/there does not exist\. Make it, or choose another file$"),
    ],
)
def test_a_place_that_cannot_be_used_is_told_and_stays_as_it_is(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "there").write_bytes(b"old")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(ConfigError, match=why), new_file("--out", tmp_path / name):
        raise AssertionError("never entered")
    assert (tmp_path / "there").read_bytes() == b"old"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["link", "there"]


def test_a_directory_in_which_nothing_can_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, _mode: int = 0) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("os.mkdir", refuse)
    with pytest.raises(ConfigError, match=rf"^--out: no file can be made in {tmp_path}: Permission denied$"):
        new_file("--out", tmp_path / "new").__enter__()
