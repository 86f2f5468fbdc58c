"""Users: who may do what, the users file, and that passwords are nowhere to be seen."""

from __future__ import annotations

import pickle

import pytest

from dcpstream.errors import ConfigError
from dcpstream_node.engine import ALL_PRIVILEGES, Users
from dcpstream_node.testing.simulation import SeededRandom


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
        {"a": {"password": "hunter22", "roles": ["fly[default]"]}},
        {"a": {"password": "hunter22", "roles": "admin"}},
        {"a": {"password": "hunter22", "groups": []}},
        {"a": {"roles": []}},
        {"a,b": {"password": "hunter22"}},
        {"a\n": {"password": "hunter22"}},
        {"a": {"password": "hunter22" * 200}},
        {"a": {"password": "hunter22", "privileges": "all"}},
        {"a": {"password": "hunter22", "privileges": ["Fly"]}},
        {"": {"password": "hunter22"}},
        {"a" * 200: {"password": "hunter22"}},
    ],
)
def test_a_wrong_file_is_reported_without_its_passwords(users, content):
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


def test_a_user_with_roles_in_the_file_has_those_alone(users):
    users.add_from_json(
        {
            "boss": {"password": "one", "roles": ["admin"]},
            "eye": {"password": "two", "roles": ["data_reader[travel]"], "name": "An Eye"},
            "both": {"password": "two", "roles": ["data_reader[travel]"], "privileges": ["Delete"]},
            "none": {"password": "two", "roles": []},
            "card": {"password": None, "roles": ["admin"]},
        }
    )
    assert users.find("boss").is_admin
    eye = users.find("eye")
    assert eye.may("Read", "travel")
    assert not eye.may("Read", "other")
    assert not eye.may("Upsert", "travel")
    assert eye.display_name == "An Eye"
    assert users.find("both").may("Delete", "other")
    assert not users.find("none").may_use("travel")
    assert users.find("card").credentials is None
    assert users.authenticate("card", b"") is None


def test_the_user_of_all_privileges_is_shown_as_an_administrator(users):
    users.add("admin", "secret")
    users.add("other", "secret", frozenset(("Read",)))
    assert [str(role) for role in users.find("admin").roles] == ["admin"]
    assert users.find("other").roles == ()


def test_put_makes_changes_and_remove_takes_away(users):
    made = users.put("ann", "secret", ["data_reader[travel]"], "Ann")
    assert users.authenticate("ann", b"secret") is made
    assert users.put("ann", None, ["data_writer[travel]"], "Ann B.") is made
    assert made.may("Upsert", "travel")
    assert not made.may("Read", "travel")
    assert made.display_name == "Ann B."
    assert users.authenticate("ann", b"secret") is made, "no password given: it stays"
    users.put("ann", "other", made.roles)
    assert users.authenticate("ann", b"secret") is None
    assert users.authenticate("ann", b"other") is made
    assert [user.name for user in users.all()] == ["ann"]
    assert users.remove("ann")
    assert not users.remove("ann")
    assert not made.may("Upsert", "travel"), "who still holds the user holds nothing"
    assert users.all() == []


def test_put_needs_a_password_for_a_new_user_and_leaves_those_of_the_options_alone(users):
    users.add("admin", "secret")
    with pytest.raises(ConfigError, match="password"):
        users.put("ann")
    for change in (lambda: users.put("admin", "x"), lambda: users.remove("admin")):
        with pytest.raises(ConfigError, match="not started with"):
            change()
    users.set_password("admin", "new")
    assert users.authenticate("admin", b"new")
    with pytest.raises(ConfigError, match="a user that is there"):
        users.set_password("nobody", "new")


def test_users_are_bounded(users, monkeypatch):
    monkeypatch.setattr("dcpstream_node.engine.access.users.MAX_USERS", 2)
    users.put("a", "x")
    users.put("b", "x")
    users.put("b", "y")
    with pytest.raises(ConfigError, match="at most 2"):
        users.put("c", "x")


def test_roles_of_one_user_are_bounded(users):
    with pytest.raises(ConfigError, match="at most"):
        users.put("a", "x", [f"data_reader[b{number}]" for number in range(201)])


def test_kept_users_come_back_without_their_passwords(users):
    users.add("admin", "secret")
    users.put("ann", "hunter22", ["data_reader[travel:inventory]"], "Ann")
    kept = users.to_json()
    assert set(kept["users"]) == {"ann"}, "those of the options are not kept"
    assert "hunter22" not in str(kept)
    again = Users(SeededRandom(9))
    again.load(kept)
    ann = again.authenticate("ann", b"hunter22")
    assert ann.roles == users.find("ann").roles
    assert ann.display_name == "Ann"
    assert not ann.is_configured
    assert again.decoy("nobody").keys("SCRAM-SHA1").salt == users.decoy("nobody").keys("SCRAM-SHA1").salt


def test_the_users_of_the_options_win_over_kept_ones(users):
    users.put("admin", "old", ["data_reader[travel]"])
    again = Users(SeededRandom(9))
    again.add("admin", "new")
    again.load(users.to_json())
    assert again.authenticate("admin", b"new").is_admin


@pytest.mark.parametrize("data", [None, {}, [], {"version": 2}, {"version": 1, "secret": "zz", "users": {}},
                                  {"version": 1, "secret": "00", "users": {"a": {}}}])  # fmt: skip
def test_what_is_no_list_of_kept_users_is_refused(users, data):
    with pytest.raises(ConfigError, match="cannot be read"):
        users.load(data)


def test_names_are_prepared_so_that_what_looks_the_same_is_the_same(users):
    users.put("ﬁne\u00ad", "secret")
    assert users.find("fine").name == "fine"
    assert users.authenticate("ﬁne", b"secret")
    assert users.find("\u0007bell") is None


def test_an_unknown_name_has_a_salt_of_its_own_that_stays(users):
    users.add("ann", "secret")
    salts = {name: users.decoy(name).keys("SCRAM-SHA512").salt for name in ("bob", "carl")}
    assert salts["bob"] != salts["carl"]
    assert salts["bob"] == users.decoy("bob").keys("SCRAM-SHA512").salt
    known = users.credentials("ann").keys("SCRAM-SHA512")
    unknown = users.decoy("bob").keys("SCRAM-SHA512")
    assert len(known.salt) == len(unknown.salt)
    assert known.iterations == unknown.iterations
