"""Users: who may do what, the users file, and that passwords are nowhere to be seen."""

from __future__ import annotations

import pickle

import pytest

from dcpstream.errors import ConfigError
from dcpstream.node.engine import ALL_PRIVILEGES, Users
from tests.unit.node.kit import SeededRandom


@pytest.fixture
def users():
    return Users(SeededRandom())


def test_users_of_a_file(users):
    users.add_from_json(
        {
            "admin": {"password": "one"},
            "all": {"password": "two", "privileges": ["all"]},
            "reader": {"password": "three", "privileges": ["Read", "DcpProducer"]},
            "nobody": {"password": "four", "privileges": []},
        }
    )
    assert users.find("admin").privileges == users.find("all").privileges == ALL_PRIVILEGES
    assert users.find("reader").privileges == {"Read", "DcpProducer"}
    assert users.find("nobody").privileges == frozenset()
    assert users.find("other") is None
    assert users.credentials("admin").matches(b"one")
    assert not users.credentials("admin").matches(b"two")
    assert users.credentials("other") is None


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"a": "hunter22"},
        {"a": {"password": 5}},
        {"a": {"password": "hunter22", "roles": []}},
        {"a": {"password": "hunter22", "privileges": "all"}},
        {"a": {"password": "hunter22", "privileges": ["Fly"]}},
        {"": {"password": "hunter22"}},
        {"a" * 200: {"password": "hunter22"}},
    ],
)
def test_a_wrong_file_is_told_without_its_passwords(users, content):
    with pytest.raises(ConfigError) as raised:
        users.add_from_json(content)
    assert "hunter22" not in str(raised.value)


def test_a_password_is_in_no_representation(users):
    users.add("admin", "hunter22")
    user = users.find("admin")
    assert "hunter22" not in repr(user)
    assert "hunter22" not in repr(user.credentials)


def test_a_password_is_kept_only_as_what_checks_it(users):
    users.add("admin", "hunter22")
    credentials = users.credentials("admin")
    assert credentials.matches(b"hunter22")
    assert credentials.keys("SCRAM-SHA1")
    assert b"hunter22" not in pickle.dumps(credentials)
