"""Calls between two ends, as two processes make them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from dcpstream.errors import ConfigError, ConnectionLost, DcpstreamError, NotMyVbucket, StatusError
from dcpstream_node.channel import Channel
from tests.kit.waiting import TIMEOUT_S, wait_until


class Ends:
    """Two channels that are joined; `b` carries out what is in `methods`."""

    def __init__(self) -> None:
        self.methods: dict[str, Any] = {}
        first, second = socket.socketpair()
        self.a = Channel(first, "end b", self._handle).start()
        self.b = Channel(second, "end a", self._handle).start()

    def _handle(self, name: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        return self.methods[name](*arguments, **options)

    def call(self, name: str, *arguments: Any, timeout_s: float = TIMEOUT_S, **options: Any) -> Any:
        return self.a.call(name, arguments, options, timeout_s)


@pytest.fixture
def ends() -> Iterator[Ends]:
    found = Ends()
    yield found
    found.a.close(TIMEOUT_S)
    found.b.close(TIMEOUT_S)


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("port", 1, "2"),
        NotMyVbucket("no", status=7, opcode=1, vbid=3, opaque=9),
        ConnectionLost("gone", cause=OSError(1, "x")),
    ],
)
def test_errors_cross_with_their_attributes(ends: Ends, error: DcpstreamError):
    def refuse() -> None:
        raise error

    ends.methods["refuse"] = refuse
    with pytest.raises(type(error)) as raised:
        ends.call("refuse")
    assert str(raised.value) == str(error)
    if isinstance(error, StatusError):
        assert isinstance(raised.value, StatusError)
        assert (raised.value.status, raised.value.vbid) == (error.status, error.vbid)


def test_what_cannot_cross_is_reported_in_words(ends: Ends):
    ends.methods["result"] = lambda: lambda: None
    with pytest.raises(DcpstreamError, match="result"):
        ends.call("result")


class Unreadable(DcpstreamError):
    """Cannot be made again from its text."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Unreadable, (str(self),)


class Spoiled:
    """Can be sent, and not be read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def test_what_cannot_be_read_spoils_its_own_call_alone(ends: Ends):
    def refuse() -> None:
        raise Unreadable(1, 2)

    ends.methods |= {"refuse": refuse, "spoil": Spoiled, "take": lambda _: None, "add": lambda a: a + 1}
    with pytest.raises(DcpstreamError, match=r"refuse: .*1 and 2"):
        ends.call("refuse")
    with pytest.raises(DcpstreamError, match=r"end b answered cannot be read: .*no number"):
        ends.call("spoil")
    with pytest.raises(ValueError, match="no number"):
        ends.call("take", Spoiled())
    assert ends.call("add", 1) == 2


def test_a_call_that_waits_holds_up_no_other_one_and_may_call_back(ends: Ends):
    go = threading.Event()
    ends.methods["wait"] = lambda: go.wait(TIMEOUT_S)
    ends.methods["go"] = go.set
    ends.methods["both_ways"] = lambda: ends.b.call("answer", (), {}, TIMEOUT_S) + 1
    ends.methods["answer"] = lambda: 41
    found: list[bool] = []
    waiter = threading.Thread(target=lambda: found.append(ends.call("wait")))
    waiter.start()
    assert ends.call("both_ways") == 42
    ends.call("go")
    waiter.join(TIMEOUT_S)
    assert found == [True]


@pytest.mark.parametrize("error", [PermissionError(13, "not allowed", "/data"), TimeoutError("of the call itself")])
def test_an_error_of_the_system_is_not_taken_for_the_end_of_the_other_process(ends: Ends, error: OSError):
    def refuse() -> None:
        raise error

    ends.methods["refuse"] = refuse
    with pytest.raises(type(error)) as raised:
        ends.call("refuse")
    assert str(raised.value) == str(error)


def test_whoever_waits_learns_that_the_other_end_is_gone(ends: Ends):
    go = threading.Event()
    ends.methods["wait"] = lambda: go.wait(TIMEOUT_S)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            ends.call("wait")
        except ConnectionLost as error:
            errors.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    ends.b.close(0)
    waiter.join(TIMEOUT_S)
    go.set()
    assert [str(error) for error in errors] == ["end b has ended"]
    wait_until(lambda: ends.a.is_over)
    with pytest.raises(ConnectionLost, match="end b has ended"):
        ends.call("wait")
