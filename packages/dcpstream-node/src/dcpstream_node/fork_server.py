"""The process that nodes are forks of, and what a fork does: `python -m dcpstream_node.fork_server DESCRIPTOR`.

It loads the code of a node, and waits. Each message on its socket brings the socket of a node that is to be; a fork of
the process serves that. When the socket closes, the parent is gone: nodes that do not end by themselves are killed.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import socket
import sqlite3  # noqa: F401 - loaded for the nodes
import sys
import time
from collections.abc import Mapping
from typing import Any, NoReturn

import dcpstream_node.rest
import dcpstream_node.store.disk  # noqa: F401 - loaded for the nodes
from dcpstream.runtime import SystemClock, keep_large_buffers_apart, spare_what_is_loaded
from dcpstream_node.channel import Channel
from dcpstream_node.embedded import Node

LAST_STOP_S = 10.0
"""Time that nodes get for a last commit when the parent has ended without stopping them."""
LOOK_PAUSE_S = 0.02
MANAGER_TIMEOUT_S = 600.0
"""Longest wait for the cluster's manager: it answers when its order is carried out, and a failover takes seconds."""

COLLECTED_AFTER = 20_000
"""New objects after which a node's process looks for reference cycles: a node makes few, and many objects that stay."""

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s[%(process)d]: %(message)s"


class _Served:
    """The node of this process, as its parent calls it."""

    def __init__(self, end: socket.socket) -> None:
        self._node: Node | None = None
        self._channel = Channel(end, "the parent process", self._handle)

    def serve(self) -> None:
        """Carry out the parent's calls until it is gone."""
        self._channel.run()
        if self._node is not None:
            self._node.stop()

    def _handle(self, name: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        if name == "start":
            return self._start(*arguments)
        assert self._node is not None, "the first call starts it"
        found = getattr(self._node, name)
        return found(*arguments, **options) if callable(found) else found

    def _start(self, arguments: dict[str, Any], has_manager: bool, log_level: int, directory: str) -> dict[str, Any]:
        logging.basicConfig(level=log_level, format=LOG_FORMAT)
        os.chdir(directory)
        if arguments.get("path") is None:
            keep_large_buffers_apart()
        node = self._node = Node(**arguments)
        if has_manager:
            node.manager = self._ask_manager
        node.start()
        spare_what_is_loaded()
        names = ("port", "mgmt_port", "tls_port", "mgmt_tls_port", "ca_certificate")
        return {"pid": os.getpid()} | {name: getattr(node, name) for name in names}

    def _ask_manager(self, *arguments: Any) -> Any:
        return self._channel.call("manager", arguments, {}, MANAGER_TIMEOUT_S)


def _be_node(end: socket.socket) -> NoReturn:
    """Serve in this fork, and end it."""
    status = 1
    gc.set_threshold(COLLECTED_AFTER)
    try:
        _Served(end).serve()
        status = 0
    except BaseException:
        logging.getLogger(__name__).exception("the node ends with an error")
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _end_all(pids: set[int]) -> None:
    """End the nodes that are left: paused ones are resumed, all stop by themselves, or are killed after a while."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    clock = SystemClock()
    end = clock.monotonic() + LAST_STOP_S
    is_first = True
    while pids:
        for pid in list(pids):
            try:
                is_gone = os.waitpid(pid, os.WNOHANG)[0] == pid
            except ChildProcessError:
                is_gone = True
            if is_gone:
                pids.discard(pid)
            elif is_first:
                os.kill(pid, signal.SIGCONT)
            elif clock.monotonic() > end:
                os.kill(pid, signal.SIGKILL)
        is_first = False
        time.sleep(LOOK_PAUSE_S)


def main(descriptor: int) -> None:
    """Serve a parent until it is gone."""
    control = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches a whole group of processes; the parent decides
    signal.signal(signal.SIGCHLD, _reap)
    pids: set[int] = set()
    gc.freeze()  # what is loaded stays shared memory
    while True:
        data, descriptors, *_ = socket.recv_fds(control, 1, 1)
        if not data:
            break
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            _be_node(socket.socket(fileno=descriptors[0]))
        os.close(descriptors[0])
        pids.add(pid)
    _end_all(pids)


if __name__ == "__main__":
    main(int(sys.argv[1]))
