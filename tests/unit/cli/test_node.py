"""Options of `dcpstream node` that are more than one word."""

from __future__ import annotations

import pytest

from dcpstream.cli.app import run
from dcpstream.cli.node import read_alternate_addresses, read_settings, settings_with_defaults
from dcpstream.errors import ConfigError
from dcpstream.model import BucketSettings


def test_alternate_addresses():
    texts = ("external=db.example,kv=31210,mgmt=38091", "inner=10.0.0.1")
    assert read_alternate_addresses(texts) == {
        "external": {"hostname": "db.example", "kv": 31210, "mgmt": 38091},
        "inner": {"hostname": "10.0.0.1"},
    }
    assert read_alternate_addresses(()) == {}


@pytest.mark.parametrize("texts", [("db.example",), ("a=b", "a=c"), ("a=b,kv",), ("a=b,kv=x",), ("a=b,kv=1,kv=2",)])
def test_alternate_addresses_that_cannot_be(texts: tuple[str, ...]):
    with pytest.raises(ConfigError, match="--alternate-address"):
        read_alternate_addresses(texts)


def test_settings_are_listed_as_they_are_given(capsys: pytest.CaptureFixture[str]):
    assert run(["node", "--set", "help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "persist=group" in lines
    assert lines == settings_with_defaults()
    assert read_settings(tuple(lines), None) == BucketSettings()
