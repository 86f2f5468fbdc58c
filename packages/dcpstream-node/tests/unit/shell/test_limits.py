"""Limits: their ranges, their texts, and how often it is said that one was reached."""

from __future__ import annotations

from dataclasses import fields

import pytest

from dcpstream.errors import ConfigError
from dcpstream_node.shell.limits import Limits
from tests.kit.cases import each_case


def test_limits_from_texts() -> None:
    limits = Limits.parse(["connections=10", "login_s=0.5"])
    assert limits == Limits(connections=10, login_s=0.5)
    assert Limits.parse({}) == Limits()


@each_case("text", ["fly=1", "connections", "connections=many", "connections=0", "login_s=-1", "idle_s=nan"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="limit"):
        Limits.parse([text])


def test_every_limit_is_described() -> None:
    assert Limits.__doc__ is not None
    for field in fields(Limits):
        assert f"{field.name}: " in Limits.__doc__
