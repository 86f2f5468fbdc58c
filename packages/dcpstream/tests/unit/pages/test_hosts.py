"""Headers Host that name the server itself, and others."""

from __future__ import annotations

from dcpstream.pages.hosts import is_own_host
from tests.kit.cases import each_case


@each_case(
    "header",
    [
        "",
        "127.0.0.1",
        "127.0.0.1:9464",
        "10.1.2.3:80",
        "[::1]:9464",
        "[fd00::1]",
        "localhost:8091",
        "LOCALHOST.",
        "app.localhost:1",
        "db.example:8091",
        "DB.example",
    ],
)
def test_addresses_and_names_of_its_own(header: str) -> None:
    assert is_own_host(header, ["Db.Example"])
