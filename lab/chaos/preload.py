"""Spark's process for the source of a query, forked from one that has imported everything already.

Spark starts a Python process for the source of each query. Its imports take a second of CPU time, and a round starts
four to eight queries. `python_command` makes a program that Spark runs instead of Python: for such a process it asks a
server for a fork; for all others it is Python itself. A fork runs the same module in the same way, with the environment
and the standard streams that Spark has given. The server never runs any code of the source itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shlex
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODULE = "pyspark.sql.streaming.python_streaming_source_runner"
NEEDED = ("dcpstream_spark.source.coordinator", "dcpstream_spark.source.reading", "dcpstream_spark.data_source")
"""Modules that the process imports before it can plan a batch."""

_MESSAGE_BYTES = 1 << 17
"""An environment fits in, with room to spare: it is sent as one packet."""


@contextlib.contextmanager
def python_command(folder: Path) -> Iterator[Path]:
    """A program for PYSPARK_PYTHON, while its server runs; the server also ends with this process.

    Args:
        folder: for the program and the server's socket; its path is short.
    """
    import subprocess

    address = folder / "preload.socket"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(address))
    listener.listen()
    # The server ends when its standard input does, which nobody writes to and which closes with this process.
    server = subprocess.Popen(
        [sys.executable, "-m", "lab.chaos.preload", "serve", str(listener.fileno())],
        stdin=subprocess.PIPE,
        pass_fds=[listener.fileno()],
    )
    listener.close()
    python = shlex.quote(sys.executable)
    program = folder / "python"
    asking = f"{python} -I -S {shlex.quote(__file__)} ask {shlex.quote(str(address))}"
    program.write_text(
        f'#!/bin/sh\n[ "$2" = {MODULE} ] && exec {asking}\nexec {python} "$@"\n',
        encoding="utf-8",
    )
    program.chmod(0o755)
    try:
        yield program
    finally:
        server.communicate()


def ask(address: str) -> int:
    """Have a process forked, and wait for its end; returns its exit status."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(address)
        message = {"environment": dict(os.environ), "folder": os.getcwd()}  # noqa: PTH109 - imports little
        socket.send_fds(server, [json.dumps(message).encode()], [0, 1, 2])
        answer = server.recv(1)
    return answer[0] if answer else 1


def serve(listener: socket.socket) -> None:
    """Fork a process for each client, until the standard input ends."""
    _import_everything()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    clients: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        for source in (listener, reader, sys.stdin):
            selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    return
                if key.fileobj is listener:
                    client, _ = listener.accept()
                    pid = _forked(client)
                    clients[pid] = client
                    selector.register(client, selectors.EVENT_READ, pid)
                elif key.fileobj == reader:
                    os.read(reader, 1024)
                    for pid, status in _ended():
                        client = clients.pop(pid)
                        with contextlib.suppress(OSError):
                            client.send(bytes([status]))
                        with contextlib.suppress(KeyError):
                            selector.unregister(client)
                        client.close()
                elif key.data in clients:
                    # The client was killed: so is the process that it stands for.
                    selector.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)


def _import_everything() -> None:
    import gc
    import importlib

    for name in (MODULE, *NEEDED):
        importlib.import_module(name)
    # It runs as the main program.
    del sys.modules[MODULE]
    gc.freeze()


def _forked(client: socket.socket) -> int:
    """The process that a client has asked for."""
    import traceback

    data, streams, _, _ = socket.recv_fds(client, _MESSAGE_BYTES, 3)
    pid = os.fork()
    if pid == 0:
        try:
            _become(json.loads(data), streams)
        except BaseException:  # noqa: BLE001 - the fork never returns into the server
            traceback.print_exc()
        finally:
            os._exit(1)
    for stream in streams:
        os.close(stream)
    return pid


def _become(message: dict[str, Any], streams: list[int]) -> None:
    """Run the module as Spark would have started it."""
    import runpy

    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.chdir(message["folder"])
    os.environ.clear()
    os.environ.update(message["environment"])
    known = set(sys.path)
    sys.path += [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in known]
    try:
        runpy.run_module(MODULE, run_name="__main__")
        status = 0
    except SystemExit as error:
        status = error.code & 0xFF if isinstance(error.code, int) else 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _ended() -> list[tuple[int, int]]:
    """(process, exit status) of the processes that have ended."""
    found = []
    with contextlib.suppress(ChildProcessError):
        while (result := os.waitpid(-1, os.WNOHANG))[0]:
            found.append((result[0], max(0, min(255, abs(os.waitstatus_to_exitcode(result[1]))))))
    return found


if __name__ == "__main__":
    if sys.argv[1] == "ask":
        sys.exit(ask(sys.argv[2]))
    serve(socket.socket(fileno=int(sys.argv[2])))
