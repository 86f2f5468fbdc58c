"""SET_PARAM: every parameter has its effect, and what has none is refused."""

from __future__ import annotations

import json
import struct

import pytest

from dcpstream.wire import Opcode, Status
from dcpstream_node.engine.bucket.parameters import (
    CHECKPOINT,
    CONFIG,
    DCP,
    FLUSH,
    PARAMETERS,
    REPLICATION,
    VBUCKET,
)
from tests.kit.cases import each_case
from tests.kit.engine import Talker, engine_of
from tests.kit.rules import rule

GOOD = {
    "compression_mode": ("active", "active"),
    "min_compression_ratio": ("2.5", "2.5"),
    "max_ttl": ("77", "77"),
    "max_size": (str(200 << 20), str(200 << 20)),
    "exp_pager_stime": ("60", "60"),
    "durability_min_level": ("majority_and_persist_on_active", "majority_and_persist_on_active"),
    "getl_default_timeout": ("5", "5"),
    "getl_max_timeout": ("60", "60"),
    "seqno_persistence_timeout": ("9", "9"),
    "range_scan_max_lifetime": ("10", "10"),
    "allow_sanitize_value_in_deletion": ("false", "false"),
    "dcp_idle_timeout": ("100", "100"),
    "dcp_takeover_max_time": ("10", "10"),
    "dcp_oso_backfill": ("disabled", "disabled"),
    "dcp_oso_backfill_small_value_ratio": ("0.5", "0.5"),
    "dcp_oso_backfill_large_value_ratio": ("0.25", "0.25"),
    "dcp_oso_backfill_small_item_size_threshold": ("100", "100"),
    "dcp_oso_max_collections_per_backfill": ("3", "3"),
    "dcp_consumer_buffer_ratio": ("0.1", "0.1"),
    "dcp_cache_transfer_enabled": ("false", "false"),
}


@pytest.fixture
def client():
    return Talker(engine_of(release="8.5"))


def set_param(client: Talker, name: str, value: str, group: int):
    extras = struct.pack(">I", group)
    return client.call(Opcode.SET_PARAM, key=name.encode(), value=value.encode(), extras=extras)


def test_every_parameter_has_a_value_here():
    assert sorted(GOOD) == sorted(PARAMETERS)


@rule("KV-PARAM-01")
@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_a_parameter_is_set_and_shown(client, name):
    value, shown = GOOD[name]
    before = client.stats("config")[f"ep_{name}"]
    assert before != shown
    for group in PARAMETERS[name].groups:
        assert set_param(client, name, value, group).status == 0
        assert client.stats("config")[f"ep_{name}"] == shown
    assert set_param(client, name, value, VBUCKET).status == Status.KEY_ENOENT
    for wrong in ("-1", "x", "inf") if name == "min_compression_ratio" else ("-1", "x", "1.5", str(1 << 60)):
        answer = set_param(client, name, wrong, PARAMETERS[name].groups[0])
        assert answer.status == Status.EINVAL
        assert name in json.loads(answer.value)["error"]["context"] or name == "max_size"
    assert client.stats("config")[f"ep_{name}"] == shown


@rule("KV-PARAM-01")
def test_parameters_that_came_later_are_no_configuration():
    client = Talker(engine_of(release="8.5"))
    assert set_param(client, "dcp_cache_transfer_enabled", "true", CONFIG).status == 0
    assert set_param(client, "chk_period", "1", CONFIG).status == Status.EINVAL


@each_case(
    ("name", "value"),
    [
        *(("max_ttl", text) for text in ("+5", "1_0", " 5", "5 ", "0x5")),
        *(("getl_max_timeout", text) for text in ("0", "2147483648", "-1")),
        ("min_compression_ratio", "nan"),
    ],
)
def test_numbers_that_a_server_takes_by_their_beginning_are_refused(name: str, value: str) -> None:
    client = Talker(engine_of(release="8.0"))
    before = client.stats("config")[f"ep_{name}"]
    assert set_param(client, name, value, FLUSH).status == Status.EINVAL
    assert client.stats("config")[f"ep_{name}"] == before


@rule("KV-PARAM-01")
def test_parameters_that_came_later_are_unknown():
    client = Talker(engine_of(release="7.2"))
    for name in ("dcp_oso_max_collections_per_backfill", "dcp_consumer_buffer_ratio", "dcp_cache_transfer_enabled"):
        assert set_param(client, name, "1", DCP).status == Status.KEY_ENOENT
        assert name not in PARAMETERS or f"ep_{name}" not in client.stats("config")


@rule("KV-PARAM-01")
@each_case(
    ("release", "names"),
    [
        ("7.2", {"dcp_conn_buffer_size", "chk_period", "replication_throttle_threshold"}),
        ("7.6", {"dcp_backfill_byte_limit", "checkpoint_destruction_tasks"}),
        ("8.0", {"dcp_backfill_byte_limit", "checkpoint_destruction_tasks", "dcp_checkpoint_dequeue_limit"}),
    ],
)
def test_names_that_a_release_has_without_an_effect_here_are_invalid_and_others_unknown(release, names):
    client = Talker(engine_of(release=release))
    groups = {
        "dcp_conn_buffer_size": DCP,
        "dcp_backfill_byte_limit": DCP,
        "dcp_checkpoint_dequeue_limit": DCP,
        "chk_period": CHECKPOINT,
        "checkpoint_destruction_tasks": CHECKPOINT,
        "replication_throttle_threshold": REPLICATION,
    }
    found = {name for name, group in groups.items() if set_param(client, name, "1", group).status == Status.EINVAL}
    assert found == names
    unknown = set(groups) - found
    assert {set_param(client, name, "1", groups[name]).status for name in unknown} == {Status.KEY_ENOENT}


@rule("KV-PARAM-01")
@pytest.mark.parametrize("name", ["dcp_enable_noop", "connection_manager_interval", "nonsense", "max_failover_entries"])
def test_what_has_no_effect_is_refused(client, name):
    for group in (FLUSH, DCP, CONFIG):
        is_unknown = group == DCP and not name.startswith(("dcp", "connection"))
        assert set_param(client, name, "1", group).status == (Status.KEY_ENOENT if is_unknown else Status.EINVAL)


@rule("KV-PARAM-01")
def test_groups(client):
    assert set_param(client, "max_ttl", "1", 2).status == Status.KEY_ENOENT
    assert set_param(client, "max_ttl", "1", 0).status == Status.EINVAL
    assert set_param(client, "max_ttl", "1", 7).status == Status.EINVAL
    assert set_param(client, "dcp_takeover_max_time", "9", FLUSH).status == Status.EINVAL
    assert client.call(Opcode.SET_PARAM, key=b"\xff", value=b"1", extras=bytes(3) + b"\1").status == Status.EINVAL
