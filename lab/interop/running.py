"""Runs a program against a fresh node or cluster and reads its output.

A program prints `ok PART` or `FAIL PART: why` for each part and ends with a line `OK n parts` or `FAIL …`. By a line
`DO action` it requests an action on the nodes, and reads `DONE` when that is done.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dcpstream_node import Node
from dcpstream_node.shell.tls import TlsSettings
from dcpstream_node.testing.nodes import add_collections
from lab.tools.patience import patient

PROGRAM_TIMEOUT_S = patient(150)
COLLECTIONS = ("shop.orders", "shop.returns")
PASSWORD = "pässword"
"""Not ASCII, so that the encodings of client and node are compared, too."""
RESTART_PAUSE_S = 0.3
"""Pause of a restart, long enough that every client notices the lost connection."""


@dataclass
class Outcome:
    """The outcome of a program.

    Attributes:
        passed: the parts that passed.
        failed: reasons by part.
        later: parts that failed because the node's release does not have what they use.
        bugs: parts that failed by a known bug of the release, and its name.
        trouble: an error outside of the parts, or empty.
        seconds: wall time.
    """

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    later: list[str] = field(default_factory=list)
    bugs: dict[str, str] = field(default_factory=dict)
    trouble: str = ""
    seconds: float = 0.0
    output: str = ""

    @property
    def is_fine(self) -> bool:
        """True if at least one part passed, and no part failed that the node's release lets pass."""
        return not self.failed and not self.trouble and bool(self.passed)


@contextmanager
def served(*, on_disk: bool = False, options: Mapping[str, Any] | None = None) -> Iterator[Node]:
    """A fresh node with the collections of the programs; it keeps its ports across restarts."""
    with ExitStack() as stack:
        path = stack.enter_context(TemporaryDirectory(prefix="dcpstream-interop-")) if on_disk else None
        port, mgmt_port, tls_port, mgmt_tls_port = free_ports(4)
        settings: dict[str, Any] = {"vbuckets": 64, "password": PASSWORD, "port": port, "mgmt_port": mgmt_port}
        settings |= options or {}
        if settings.get("tls"):
            settings["tls"] = TlsSettings(port=tls_port, mgmt_port=mgmt_tls_port)
        node = stack.enter_context(Node(path=path, **settings))
        add_collections(node, "default", COLLECTIONS)
        _send_out_of_order(node)
        yield node


def _send_out_of_order(node: Node) -> None:
    """Send out-of-order snapshots to all that ask for them: by default they are for small shares of a vbucket."""
    assert node.engine is not None, "it is called while the node runs"
    node.engine.buckets["default"].parameters.oso_backfill = "enabled"


def free_ports(count: int) -> list[int]:
    """Free loopback ports."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in listeners]


def run(command: Sequence[str], order: Callable[[str], None], cwd: Path | None = None) -> Outcome:
    """Run a program to its end.

    Args:
        command: the program and its arguments.
        order: carries out an action that it requests.
        cwd: its working directory.
    """
    started = time.monotonic()
    lines: list[str] = []
    errors: list[str] = []
    process = subprocess.Popen(
        list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    stderr = process.stderr
    reader = threading.Thread(target=lambda: errors.extend(stderr), daemon=True)
    reader.start()
    timer = threading.Timer(PROGRAM_TIMEOUT_S, process.kill)
    timer.start()
    try:
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if line.startswith("DO "):
                order(line[3:].strip())
                process.stdin.write("DONE\n")
                process.stdin.flush()
        code = process.wait()
    except BrokenPipeError:
        code = process.wait()
    finally:
        timer.cancel()
        process.kill()
        process.wait()
        reader.join()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()
    outcome = judged(lines, code)
    outcome.output = "\n".join(lines) + "\n" + "".join(errors)
    if outcome.trouble and errors:
        outcome.trouble += f": {errors[-1].strip()[:300]}"
    outcome.seconds = time.monotonic() - started
    return outcome


def order(node: Node, action: str) -> None:
    """Carry out a program's action on a node."""
    if action not in ("restart", "crash"):
        raise ValueError(f"a program asked for {action!r}: restart or crash")
    if action == "crash":
        node.crash()
    else:
        node.stop()
    time.sleep(RESTART_PAUSE_S)
    node.start()
    _send_out_of_order(node)


def judged(lines: Sequence[str], code: int) -> Outcome:
    """The outcome from a program's lines and exit code."""
    outcome = Outcome()
    for line in lines[:-1]:
        if line.startswith("ok "):
            outcome.passed.append(line[3:])
        elif line.startswith("FAIL "):
            name, _, why = line[5:].partition(": ")
            outcome.failed[name] = why
    last = lines[-1] if lines else ""
    verdict = last.partition(" ")[0]
    if verdict not in ("OK", "FAIL") or code < 0:
        outcome.trouble = f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"it ended with {code}"
    elif verdict == "FAIL" and not outcome.failed:
        outcome.trouble = last[5:]
    return outcome
