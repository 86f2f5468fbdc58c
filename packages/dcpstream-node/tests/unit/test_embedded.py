"""Arguments of the wrong kind are refused when they are given."""

from __future__ import annotations

from typing import Any

import pytest

from dcpstream.errors import ConfigError
from dcpstream_node import Node
from tests.kit.cases import each_case


@each_case(
    ("option", "value"),
    [
        ("settings", {"max_ttl": 4}),
        ("settings", "persist=every"),
        ("tls", "yes"),
        ("limits", {"connections": 4}),
        ("vbuckets", "8"),
        ("port", "8091"),
    ],
)
def test_a_value_of_another_kind_is_reported_with_its_option(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=option):
        Node(**{option: value})
