"""tshark as a judge: it captures a session of a real client on loopback, and may find no malformed frame in it.

Warnings are not counted: tshark warns of stray characters after keys with a collection prefix, which are correct. It
reports one kind of correct frame as malformed: the answer to GET_META for a missing document, where it expects extras
that a server does not send either.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from dcpstream.wire import Opcode, Status
from dcpstream_node import Node
from lab.interop.building import Missing
from lab.interop.running import Outcome, served
from lab.tools.patience import patient

START_TIMEOUT_S = patient(20.0)
STOP_TIMEOUT_S = patient(20.0)
DECODE_TIMEOUT_S = patient(120)
CAPTURE_KB = 200_000
"""Size limit of a capture; the sessions have at most 50 MB."""
KERNEL_BUFFER_MB = 64
LAST_BLOCK_S = 0.5
"""Longest delay until the kernel hands over a block of captured packets."""
AT_LEAST_FRAMES = 1000
"""Least number of packets; with fewer, the capture has failed."""
_UNTRUE = frozenset({(int(Opcode.GET_META), int(Status.KEY_ENOENT))})


class Decoded(NamedTuple):
    """The findings of tshark.

    Attributes:
        opcodes: frames by opcode.
        malformed: the packets that it reports as malformed, by number, with opcodes and statuses.
    """

    opcodes: Counter[int]
    malformed: list[str]


class Capture:
    """Records the packets of a loopback port; a context manager.

    Raises:
        Missing: the capture did not begin; the text is tshark's.
    """

    def __init__(self, command: list[str], port: int, path: Path) -> None:
        limits = ["-B", str(KERNEL_BUFFER_MB), "-a", f"filesize:{CAPTURE_KB}"]
        self._process = subprocess.Popen(
            [*command, "-i", "lo", "-f", f"tcp port {port}", *limits, "-w", str(path)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        said = []
        timer = threading.Timer(START_TIMEOUT_S, self._process.kill)
        timer.start()
        for line in self._process.stderr:
            said.append(line.strip())
            if line.startswith("Capturing on"):
                break
        timer.cancel()
        if not said or not said[-1].startswith("Capturing on"):
            self._end()
            raise Missing(f"no right to capture on loopback: {' '.join(said)[-300:]}")

    def __enter__(self) -> Capture:
        """Start, and wait until recording has begun."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop when all packets are in the file."""
        time.sleep(LAST_BLOCK_S)
        self._end()

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()


def decode(command: list[str], path: Path, port: int) -> Decoded:
    """Decode a capture."""
    names = ("frame.number", "couchbase.opcode", "couchbase.status", "_ws.malformed")
    fields = [part for name in names for part in ("-e", name)]
    done = subprocess.run(
        [*command, "-r", str(path), "-d", f"tcp.port=={port},couchbase", "-T", "fields", "-E", "separator=|", *fields],
        capture_output=True,
        text=True,
        timeout=DECODE_TIMEOUT_S,
        check=True,
    )
    return read(done.stdout)


def read(text: str) -> Decoded:
    """The lines of tshark, one per packet: number, opcodes, statuses, and a text if the packet is malformed."""
    opcodes: Counter[int] = Counter()
    malformed = []
    for line in text.splitlines():
        number, codes, statuses, wrong = line.split("|")
        found = [int(code, 0) for code in codes.split(",") if code]
        opcodes.update(found)
        last = (found[-1] if found else -1, int(statuses.split(",")[-1] or "0", 0))
        # Decoding ends at the malformed frame, so it is the last one of the packet.
        if wrong and last not in _UNTRUE:
            malformed.append(f"{number} (opcodes {codes}, statuses {statuses})")
    return Decoded(opcodes, malformed)


def judge(command: list[str], drive: Callable[[Node], Outcome], options: Mapping[str, Any]) -> Outcome:
    """Capture a client's session with a fresh node, and judge it.

    Raises:
        Missing: this user must not capture.
    """
    started = time.monotonic()
    with TemporaryDirectory() as directory, served(options=options) as node:
        path = Path(directory) / "session.pcapng"
        with Capture(command, node.port, path):
            session = drive(node)
        opcodes, malformed = decode(command, path, node.port)
    outcome = Outcome(output=f"{session.output}\n{opcodes.total()} frames, {len(opcodes)} opcodes")
    outcome.trouble = "" if session.is_fine else f"the session that was captured has failed: {session.failed}"
    for name, why in (
        ("no malformed frame", f"packets {'; '.join(malformed[:20])}" if malformed else ""),
        ("all of the session", "" if opcodes.total() >= AT_LEAST_FRAMES else f"only {opcodes.total()} frames"),
    ):
        if why:
            outcome.failed[name] = why
        else:
            outcome.passed.append(name)
    outcome.seconds = time.monotonic() - started
    return outcome
