"""A node's process as its parent sees it: started, ordered, paused, killed.

Theory of operation. Loading the code of a node takes most of a start. Therefore the first node starts a fork server, an
idle process that has loaded the code (`fork_server`), and every node is a fork of it: a socket goes over, and the
node's process serves that socket with a `Channel`. Parent, fork server and nodes hold no file in common; when a parent
ends, however it ends, its sockets close, and the others end, too. A fork of the parent lets go of them at once: it
keeps no node alive, and its copies of the parent's objects order nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dcpstream
import dcpstream_node
from dcpstream.errors import DcpstreamError
from dcpstream_node.channel import Channel

START_TIMEOUT_S = 120.0
"""Longest wait for the first node: loading the code takes half a second, and opening a large store a second."""
STOP_TIMEOUT_S = 30.0
CALL_TIMEOUT_S = 60.0
"""Longest wait for an order: deleting the files of a large bucket takes some seconds."""
EXIT_TIMEOUT_S = 10.0
"""Longest wait for a process that was killed or has said that it ends."""
SERVER_EXIT_TIMEOUT_S = 15.0
"""The same for the fork server. It is longer than the time that the fork server gives its nodes for a last commit."""

_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""A process that has threads cannot be forked safely, and numpy's libraries start some unless these variables are
set."""


class _ForkServer:
    """The fork server of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self.channels: weakref.WeakSet[Channel] = weakref.WeakSet()
        """Those of the nodes."""
        self.nodes: weakref.WeakSet[NodeProcess] = weakref.WeakSet()

    def fork(self) -> socket.socket:
        """A socket to a new node process."""
        with self._lock:
            for _ in range(2):
                if self._control is None:
                    self._start()
                ours, theirs = socket.socketpair()
                try:
                    assert self._control is not None, "it was started"
                    with theirs:
                        socket.send_fds(self._control, [b"n"], [theirs.fileno()])
                except OSError:  # somebody killed it
                    ours.close()
                    self._end()
                else:
                    return ours
        raise DcpstreamError("the process that starts nodes ends at once; its errors are on standard error")

    def after_fork(self) -> None:
        """This process is a fork of the one that started the server and the nodes; these are not its own."""
        self._lock = threading.Lock()  # a thread that is not here may have held the old one
        atexit.unregister(self._end_all)
        control, self._control, self._process = self._control, None, None
        if control is not None:
            control.close()
        for channel in list(self.channels):
            channel.abandon()
        for node in list(self.nodes):
            node.abandon()
        self.channels.clear()
        self.nodes.clear()

    def _start(self) -> None:
        self._control, theirs = socket.socketpair()
        # Both packages come from where this process has them.
        packages = {str(Path(module.__file__ or "").parents[1]) for module in (dcpstream, dcpstream_node)}
        path = os.pathsep.join([*sorted(packages), *filter(None, [os.environ.get("PYTHONPATH")])])
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - this Python, with the code of these packages
                # -P: no file in the working directory takes the place of a module.
                [sys.executable, "-P", "-m", "dcpstream_node.fork_server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_ONE_THREAD, "PYTHONPATH": path},
            )
        atexit.register(self._end_all)

    def _end_all(self) -> None:
        """This process ends: have nodes that nobody stopped do so now, and wait until they have."""
        for channel in list(self.channels):
            channel.close(0)
        self._end()

    def _end(self) -> None:
        process, control = self._process, self._control
        self._process = self._control = None
        atexit.unregister(self._end_all)
        if control is not None:
            control.close()
        if process is not None:
            try:
                process.wait(SERVER_EXIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


_server = _ForkServer()
os.register_at_fork(after_in_child=_server.after_fork)


class NodeProcess:
    """A node in a process of its own.

    Args:
        arguments: of `dcpstream_node.Node`.
        manager: the cluster's manager, which the node's management port asks; None without a cluster.

    Attributes:
        facts: attributes of the started node: its ports, process id, and authority.
        is_paused: whether `pause` was called, and not `resume`.
    """

    def __init__(self, arguments: Mapping[str, Any], manager: Callable[..., Any] | None) -> None:
        self._manager = manager
        self.is_paused = False
        self._pid_fd = -1
        self._is_over = False
        self._channel = Channel(_server.fork(), "the node's process", self._answer).start()
        _server.channels.add(self._channel)
        _server.nodes.add(self)
        level = logging.getLogger("dcpstream_node").getEffectiveLevel()
        try:
            self.facts: dict[str, Any] = self._channel.call(
                "start", (dict(arguments), manager is not None, level, str(Path.cwd())), {}, START_TIMEOUT_S
            )
            self.pid: int = self.facts["pid"]
            if sys.platform == "linux":
                self._pid_fd = os.pidfd_open(self.pid)  # names this process also after its end
        except BaseException:
            self._channel.close(EXIT_TIMEOUT_S)
            raise

    def _answer(self, name: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Answer a request of the node to its parent."""
        if name != "manager" or self._manager is None:
            raise DcpstreamError(f"{name}: the node belongs to no cluster")
        return self._manager(*arguments, **options)

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return not self._channel.is_over

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the node, or read an attribute.

        Raises: what the method raises. ConnectionLost: the process has ended. DcpstreamError: it is paused.
            TimeoutError: it does not answer.
        """
        if self.is_paused:
            raise DcpstreamError(f"{name}: the node's process is paused; resume it first")
        return self._channel.call(name, arguments, options, CALL_TIMEOUT_S)

    def pause(self) -> None:
        """Stop the process where it is; its sockets stay open (SIGSTOP)."""
        self._signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        """Let the process go on (SIGCONT)."""
        self._signal(signal.SIGCONT)
        self.is_paused = False

    def stop(self) -> None:
        """End it after a last commit. Raises: what the node raises at its end."""
        if self.is_paused:
            self.resume()
        try:
            self._channel.call("stop", (), {}, STOP_TIMEOUT_S)
        finally:
            self.kill()

    def kill(self) -> None:
        """End it at once (SIGKILL); returns when its ports and files are free."""
        self._signal(signal.SIGKILL)
        self._channel.close(EXIT_TIMEOUT_S)
        if self._pid_fd >= 0:
            watched = select.poll()
            watched.register(self._pid_fd, select.POLLIN)
            watched.poll(EXIT_TIMEOUT_S * 1000)
            os.close(self._pid_fd)
            self._pid_fd = -1
        self._is_over = True

    def abandon(self) -> None:
        """Order nothing any more: this process is a fork of the node's parent."""
        self._is_over = True
        if self._pid_fd >= 0:
            os.close(self._pid_fd)
            self._pid_fd = -1

    def _signal(self, number: signal.Signals) -> None:
        if self._is_over:
            return  # the number may be that of another process by now
        with contextlib.suppress(ProcessLookupError):
            if self._pid_fd >= 0:
                signal.pidfd_send_signal(self._pid_fd, number)
            else:
                os.kill(self.pid, number)
