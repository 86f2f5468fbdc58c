"""DCP_OPEN where the recordings do not reach: values, roles, what drops."""

import pytest

from dcpstream.dcp.opening import OpenRequest, read_open
from dcpstream.dcp.refusals import Refusal
from dcpstream.wire import Opcode, Status
from tests.kit.lists import frame_of


def read(flags=1, key=b"name", value=b"", datatype=0):
    frame = frame_of(
        Opcode.DCP_OPEN, key=key, extras=bytes(4) + flags.to_bytes(4, "big"), value=value, datatype=datatype
    )
    return read_open(frame)


def test_the_producer_flag_is_about_the_servers_end():
    assert read(flags=1).is_producer
    assert not read(flags=0).is_producer


def test_a_consumer_may_be_named():
    assert read(0, value=b'{"consumer_name":"n1"}', datatype=1) == OpenRequest(b"name", 0, "n1")


def test_an_empty_object_drops_a_consumer():
    assert read(0, value=b"{}", datatype=1).drops
    assert not read(1, value=b"{}", datatype=1).drops


@pytest.mark.parametrize(
    ("flags", "value", "datatype"),
    [
        (0, b"", 1),
        (0, b'{"consumer_name":"n1"}', 0),
        (0, b'{"consumer_name":"n1"}', 3),
        (0, b'{"consumer_name":1}', 1),
        (0, b"[]", 1),
        (0, b"\xff", 1),
        (1, b'{"consumer_name":"n1"}', 1),
        (0x02, b"", 0),
        (0x11, b"", 0),
        (0x80, b"", 0),
        (0x201, b"", 0),
        (0x80000001, b"", 0),
        (0x49, b"", 0),
        (0x101, b"", 0),
    ],
)
def test_refused_with_a_text(flags, value, datatype):
    refusal = read(flags, value=value, datatype=datatype)
    assert isinstance(refusal, Refusal)
    assert refusal.status is Status.EINVAL
    assert refusal.context


@pytest.mark.parametrize("name", [b"x", b"n" * 250, b"with space \x00 and nul", b"\xff\xfe"])
def test_any_bytes_are_a_name(name):
    assert read(key=name).name == name
