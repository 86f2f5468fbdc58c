"""Calls between two processes, in both directions, over one socket.

Each message is a kind and a number, and a pickled object: a call, or the result or error of the call with that number.
An object that cannot be read spoils its own call alone. A call is carried out in a thread of its own, so a call that
waits holds up no other one, and may itself call back. Both ends are processes of one user, and the socket has no name
that others could open; therefore pickled data is trusted.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import pickle
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from itertools import count
from multiprocessing.connection import Connection
from typing import Any, Self

from dcpstream.errors import ConnectionLost, DcpstreamError

CALLS_MAX = 16
"""Calls that are carried out at a time at one end: orders of a program, and those of clients of a management port."""

_CALL, _RESULT, _ERROR = range(3)
_HEAD = struct.Struct(">BQ")
"""Kind and number, before the pickled object."""

Handler = Callable[[str, tuple[Any, ...], Mapping[str, Any]], Any]
"""Carries out a call: its name and its arguments; the result is pickled."""


class Channel:
    """One end.

    Args:
        end: a connected stream socket; the channel takes it over.
        peer: what the other end is, for messages.
        handle: carries out the calls of the other end.

    Attributes:
        is_over: whether the other end closed or is gone.
    """

    def __init__(self, end: socket.socket, peer: str, handle: Handler) -> None:
        self._connection = Connection(end.detach())
        self._peer = peer
        self._handle = handle
        self._sending = threading.Lock()
        self._numbers = count()
        self._waiting: dict[int, concurrent.futures.Future[Any]] = {}
        self._workers = concurrent.futures.ThreadPoolExecutor(CALLS_MAX, thread_name_prefix="dcpstream-calls")
        self._thread = threading.Thread(target=self.run, name="dcpstream-channel", daemon=True)
        self.is_over = False

    def start(self) -> Self:
        """Read in a thread of the channel."""
        self._thread.start()
        return self

    def run(self) -> None:
        """Read in this thread until the other end closes or is gone."""
        try:
            while True:
                message = self._connection.recv_bytes()
                kind, number = _HEAD.unpack_from(message)
                if kind == _CALL:
                    self._workers.submit(self._carry_out, number, message)
                elif (waiting := self._waiting.pop(number, None)) is not None:
                    self._answer(waiting, kind, message)
        except (EOFError, OSError):
            pass
        finally:
            with self._sending:
                self.is_over = True
                self._connection.close()
            for waiting in list(self._waiting.values()):
                waiting.set_exception(self._lost())
            self._waiting.clear()
            self._workers.shutdown(wait=False)

    def _lost(self) -> ConnectionLost:
        return ConnectionLost(f"{self._peer} has ended")

    def _answer(self, waiting: concurrent.futures.Future[Any], kind: int, message: bytes) -> None:
        try:
            found = pickle.loads(memoryview(message)[_HEAD.size :])  # noqa: S301 - see the head of this module
        except Exception as error:  # noqa: BLE001 - whatever the object's class raises
            waiting.set_exception(DcpstreamError(f"what {self._peer} answered cannot be read: {error!r}"))
            return
        if kind == _RESULT:
            waiting.set_result(found)
        else:
            waiting.set_exception(found)

    def _carry_out(self, number: int, message: bytes) -> None:
        name = "a call"
        try:
            name, arguments, options = pickle.loads(memoryview(message)[_HEAD.size :])  # noqa: S301 - as above
            result = self._handle(name, arguments, options)
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller
            answer = _pickled_error(number, name, error)
        else:
            answer = _pickled_result(number, name, result)
        with contextlib.suppress(OSError, ConnectionLost):  # nobody waits any more
            self._send(answer)

    def _send(self, message: bytes) -> None:
        with self._sending:
            if self.is_over:
                raise self._lost()
            self._connection.send_bytes(message)

    def call(self, name: str, arguments: tuple[Any, ...], options: Mapping[str, Any], timeout_s: float) -> Any:
        """Have the other end carry out a call; returns its result.

        Raises:
            TimeoutError: no result in time. ConnectionLost: the other end is gone. What the call raised.
        """
        number, result = next(self._numbers), concurrent.futures.Future[Any]()
        message = _message(_CALL, number, (name, arguments, options))
        self._waiting[number] = result
        try:
            try:
                self._send(message)
            except OSError as error:
                raise self._lost() from error
            try:
                return result.result(timeout_s)
            except TimeoutError:
                if result.done():  # the call itself raised it
                    raise
                raise TimeoutError(f"{self._peer} did not answer {name} within {timeout_s:g} s") from None
        finally:
            self._waiting.pop(number, None)

    def abandon(self) -> None:
        """Let go of the socket in a fork of this process; the process itself keeps its end."""
        self._sending = threading.Lock()  # a thread that is not here may have held the old one
        self.is_over = True
        self._connection.close()

    def close(self, timeout_s: float) -> None:
        """Send no more calls; returns when the other end has closed, too, or after this time."""
        with self._sending:
            if not self.is_over:
                end = socket.socket(fileno=self._connection.fileno())
                try:
                    end.shutdown(socket.SHUT_WR)
                except OSError:
                    pass  # the other end is gone
                finally:
                    end.detach()
        self._thread.join(timeout_s)


def _message(kind: int, number: int, content: object) -> bytes:
    return _HEAD.pack(kind, number) + pickle.dumps(content)


def _pickled_result(number: int, name: str, result: object) -> bytes:
    try:
        return _message(_RESULT, number, result)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        return _message(_ERROR, number, DcpstreamError(f"the result of {name} cannot be sent: {error}"))


def _pickled_error(number: int, name: str, error: BaseException) -> bytes:
    try:
        message = _message(_ERROR, number, error if isinstance(error, DcpstreamError) else _plain(name, error))
        pickle.loads(memoryview(message)[_HEAD.size :])  # noqa: S301 - it was just made
    except Exception:  # noqa: BLE001 - whatever the class of the error raises
        return _message(_ERROR, number, DcpstreamError(f"{name}: {error!r}"))
    return message


def _plain(name: str, error: BaseException) -> BaseException:
    """One of Python's own errors as it is, another one as text: the other end may lack its class."""
    if type(error).__module__ == "builtins":
        return error
    return DcpstreamError(f"{name}: {error!r}")
