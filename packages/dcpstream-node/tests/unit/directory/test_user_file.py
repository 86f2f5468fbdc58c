"""Users that are kept with the data: written whole, for their owner alone, without a password."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from dcpstream.errors import ConfigError
from dcpstream_node.directory.user_file import MAX_FILE_BYTES, UserFile
from dcpstream_node.engine import Group, Users, parse_roles
from dcpstream_node.testing.simulation import SeededRandom
from tests.kit.disks import StoppingDisk


def users_of(path: Path | None, disk: StoppingDisk | None = None) -> Users:
    users = Users(SeededRandom(), iterations=1)
    users.add("admin", "secret")
    users.changed = UserFile(users, path, disk).keep
    return users


def test_users_come_back_and_changes_are_kept_at_once(tmp_path: Path) -> None:
    users = users_of(tmp_path)
    users.put("ann", "hunter22", ["data_reader[default]"])
    assert users_of(tmp_path).authenticate("ann", b"hunter22")
    users.set_password("ann", "hunter23")
    assert users_of(tmp_path).authenticate("ann", b"hunter23")
    users.remove("ann")
    assert users_of(tmp_path).find("ann") is None


def test_the_first_user_outlives_a_power_cut(tmp_path: Path) -> None:
    """Also the directory that was made for the file: a change that was answered is there, whatever was not synced."""
    disk = StoppingDisk()
    users_of(tmp_path, disk).put("ann", "hunter22")
    disk.cut_power(0)
    assert users_of(tmp_path).authenticate("ann", b"hunter22")


def test_groups_come_back_with_those_who_are_in_them(tmp_path: Path) -> None:
    users = users_of(tmp_path)
    group = Group(name="readers", roles=parse_roles("data_reader[default]"), description="they read")
    users.put_group(group)
    users.put("ann", "hunter22", ["data_writer[default]"], groups=["readers"])
    again = users_of(tmp_path)
    assert again.groups() == [group]
    ann = again.find("ann")
    assert ann is not None
    assert ann.groups == (group,)
    assert ann.may("Read", "default")
    again.remove_group("readers")
    ann = users_of(tmp_path).find("ann")
    assert ann is not None
    assert (ann.groups, ann.may("Read", "default"), ann.may("Upsert", "default")) == ((), False, True)


def test_the_file_is_for_its_owner_alone_and_has_no_password(tmp_path: Path) -> None:
    users_of(tmp_path).put("ann", "hunter22")
    file = tmp_path / ".security" / "users.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "hunter22" not in file.read_text()
    assert [item.name for item in file.parent.iterdir()] == ["users.json"], "nothing else is left"


def test_nothing_is_written_for_the_users_of_the_options_and_without_a_directory(tmp_path: Path) -> None:
    users_of(tmp_path).set_password("admin", "new")
    assert list(tmp_path.iterdir()) == []
    users_of(None).put("ann", "hunter22")


@pytest.mark.parametrize("content", ["", "{", '{"version": 7}', "[" * 10, "x" * (MAX_FILE_BYTES + 1)])
def test_a_file_that_is_none_is_reported_and_not_overwritten(tmp_path: Path, content: str) -> None:
    file = tmp_path / ".security" / "users.json"
    file.parent.mkdir()
    file.write_text(content)
    with pytest.raises(ConfigError, match="users"):
        users_of(tmp_path)
    assert file.read_text() == content
