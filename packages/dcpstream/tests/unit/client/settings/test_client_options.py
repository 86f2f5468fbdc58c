"""The options of a client are checked where they are made."""

from __future__ import annotations

from typing import Any

import pytest

from dcpstream.client.settings.client_options import MAX_BUFFER_BYTES, MIN_BUFFER_BYTES, ClientOptions
from dcpstream.client.settings.options import access
from dcpstream.errors import ConfigError
from tests.kit.cases import each_case


@each_case(
    "options",
    [
        {"sasl_mechanism": "GSSAPI"},
        {"buffer_bytes": MIN_BUFFER_BYTES - 1},
        {"buffer_bytes": MAX_BUFFER_BYTES + 1},
        {"priority": "urgent"},
        {"priority": ""},
        {"backfill_order": "random"},
    ],
)
def test_refused_options(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        ClientOptions(**options)
    assert caught.value.option == next(iter(options))


def test_connections_get_the_options() -> None:
    options = ClientOptions(sasl_mechanism="scram-sha1", name="reader", buffer_bytes=MIN_BUFFER_BYTES)
    given = access("couchbase://a", "u", "p", "b", options).connect_options()
    assert (given.login.mechanism, given.connect_timeout_s) == ("SCRAM-SHA1", options.connect_timeout_s)
    assert (given.settings.name, given.settings.buffer_bytes) == ("reader", MIN_BUFFER_BYTES)
    assert (given.settings.priority, given.settings.backfill_order) == (None, None)
    assert given.for_questions.settings.name == "reader:control"


def test_priority_and_order_become_controls() -> None:
    options = ClientOptions(priority="low", backfill_order="sequential")
    controls = access("couchbase://a", "u", "p", "b", options).connect_options().settings.controls()
    assert {("set_priority", "low", False), ("backfill_order", "sequential", False)} <= set(controls)
    plain = {name for name, *_ in access("couchbase://a", "u", "p", "b").connect_options().settings.controls()}
    assert plain.isdisjoint({"set_priority", "backfill_order"})
    assert "supports_cursor_dropping" in plain
