"""Seeds from SRV records, with resolvers of the test's own."""

from __future__ import annotations

import pytest

from dcpstream.client.settings.connection_string import parse
from dcpstream.client.settings.srv import MAX_RECORDS, SRV_TIMEOUT_S, resolve_seeds, wants_srv
from tests.kit.cases import each_case

RECORDS = [(10, 0, "b.example.", 11210), (0, 1, "c.example.", 11211), (0, 9, "a.example.", 11210)]


@each_case(
    ("text", "wanted"),
    [
        ("couchbase://db.example", True),
        ("couchbases://db", True),
        ("db.example", False),
        ("couchbase://db.example:11210", False),
        ("couchbase://a.example,b.example", False),
        ("couchbase://127.0.0.1", False),
        ("couchbase://[::1]", False),
        ("couchbase://localhost", False),
        ("couchbase://db.example?enable_dns_srv=false", False),
    ],
)
def test_only_a_single_name_without_a_port_is_looked_up(text: str, wanted: bool) -> None:
    assert wants_srv(parse(text)) is wanted


def test_records_are_used_in_the_order_of_their_priority() -> None:
    asked = []

    def lookup(name: str, timeout_s: float) -> list[tuple[int, int, str, int]]:
        asked.append((name, timeout_s))
        return RECORDS

    seeds = resolve_seeds(parse("couchbases://db.example"), lookup)
    assert [str(seed) for seed in seeds] == ["a.example:11210", "c.example:11211", "b.example:11210"]
    assert asked == [("_couchbases._tcp.db.example", SRV_TIMEOUT_S)]
    resolve_seeds(parse("couchbase://db.example"), lookup)
    assert asked[1][0] == "_couchbase._tcp.db.example"


@each_case("records", [[], [(0, 0, ".", 0)], None])
def test_without_records_the_name_is_the_seed(records: list[tuple[int, int, str, int]] | None) -> None:
    def lookup(name: str, timeout_s: float) -> list[tuple[int, int, str, int]]:
        if records is None:
            raise OSError("no resolver")
        return records

    assert [str(seed) for seed in resolve_seeds(parse("couchbase://db.example"), lookup)] == ["db.example:11210"]


def test_records_are_bounded() -> None:
    many = [(0, 0, f"n{number}.example.", 11210) for number in range(1000)]
    assert len(resolve_seeds(parse("couchbase://db.example"), lambda _name, _timeout: many)) == MAX_RECORDS


def test_the_systems_resolver_is_asked_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import dns.exception
    import dns.resolver

    waited = []

    def resolve(name: str, kind: str, *, lifetime: float) -> None:
        waited.append((name, kind, lifetime))
        raise dns.exception.Timeout

    monkeypatch.setattr(dns.resolver, "resolve", resolve)
    assert [seed.host for seed in resolve_seeds(parse("couchbase://db.example"))] == ["db.example"]
    assert waited == [("_couchbase._tcp.db.example", "SRV", SRV_TIMEOUT_S)]
