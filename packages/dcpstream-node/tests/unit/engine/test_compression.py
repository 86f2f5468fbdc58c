"""SET_PARAM compression_mode, and what it does to values."""

from __future__ import annotations

import pytest

from dcpstream.wire import Feature, Opcode, Status
from dcpstream.wire.values import snappy_compress, snappy_uncompress
from dcpstream_node.testing.simulation import USUAL_FEATURES
from tests.kit.engine import Talker, engine_of
from tests.kit.rules import rule

LONG = b"a" * 100
WITHOUT_SNAPPY = tuple(code for code in USUAL_FEATURES if code != Feature.SNAPPY)


def set_mode(engine, mode: bytes, *, group: int = 1, name: bytes = b"compression_mode") -> int:
    admin = Talker(engine, user="@admin")
    return admin.call(Opcode.SET_PARAM, extras=group.to_bytes(4, "big"), key=name, value=mode).status


def stored(engine):
    return engine.buckets["default"].vbuckets[0].log.get(b"\0k")


@pytest.fixture
def engine():
    engine = engine_of()
    assert set_mode(engine, b"passive") == 0
    return engine


def test_values_stay_as_they_came(engine):
    client = Talker(engine)
    client.set("k", snappy_compress(LONG), datatype=2)
    assert stored(engine).datatype == 2
    got = client.get("k")
    assert (got.datatype, snappy_uncompress(got.value)) == (2, LONG)
    assert (Talker(engine, features=WITHOUT_SNAPPY).get("k").value) == LONG


@pytest.mark.parametrize(("release", "value"), [("7.2", b"\0"), ("8.0", b"")])
@pytest.mark.parametrize("opcode", [Opcode.SET, Opcode.ADD])
def test_an_empty_value_that_is_compressed(release, opcode, value):
    client = Talker(engine_of(release=release))
    assert client.call(opcode, key=b"\0k", extras=bytes(8), value=snappy_compress(b""), datatype=2).status == 0
    got = client.get("k")
    assert (got.value, got.datatype) == (value, 0)


@rule("KV-PARAM-01")
@pytest.mark.parametrize(
    ("group", "name", "mode", "status"),
    [
        (1, b"compression_mode", b"never", Status.EINVAL),
        (1, b"nothing", b"1", Status.EINVAL),
        (2, b"compression_mode", b"off", Status.KEY_ENOENT),
    ],
)
def test_what_cannot_be_set(engine, group, name, mode, status):
    assert set_mode(engine, mode, group=group, name=name) == status


def test_not_by_everybody(engine):
    client = Talker(engine, user="writer")
    answer = client.call(Opcode.SET_PARAM, extras=(1).to_bytes(4, "big"), key=b"compression_mode", value=b"off")
    assert answer.status == Status.EACCESS
