"""tshark as a judge: a session of a real client is captured on loopback, and no frame of it may be malformed.

Its warnings are not counted: it warns of stray characters behind keys with a collection prefix, which are right. One
kind of frame it calls malformed without reason: the answer to GET_META that there is no such document, of which it
reads extras that a server does not send either.
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

from dcpstream.node import Node
from dcpstream.wire import Opcode, Status
from interop.building import Missing
from interop.running import Outcome, served
from tools.patience import patient

START_TIMEOUT_S = patient(20.0)
STOP_TIMEOUT_S = patient(20.0)
DECODE_TIMEOUT_S = patient(120)
CAPTURE_KB = 200_000
"""A capture ends by itself at this size; the sessions make 50 MB at most."""
KERNEL_BUFFER_MB = 64
LAST_BLOCK_S = 0.5
"""What the kernel has captured is handed over in blocks, at most this much later."""
AT_LEAST_FRAMES = 1000
"""Of fewer the judgement would mean nothing: the capture has failed."""
_UNTRUE = frozenset({(int(Opcode.GET_META), int(Status.KEY_ENOENT))})


class Decoded(NamedTuple):
    """What tshark found.

    Attributes:
        opcodes: frames by opcode.
        malformed: the packets that it calls malformed, by number, with opcodes and statuses.
    """

    opcodes: Counter[int]
    malformed: list[str]


class Capture:
    """Records what goes over a port of loopback while it lasts.

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
        """Recording has begun."""
        return self

    def __exit__(self, *_: object) -> None:
        """End, with all that was sent in the file."""
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
    """Have a capture decoded."""
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
    """The lines of tshark, one a packet: number, opcodes, statuses, and something if the packet is malformed."""
    opcodes: Counter[int] = Counter()
    malformed = []
    for line in text.splitlines():
        number, codes, statuses, wrong = line.split("|")
        found = [int(code, 0) for code in codes.split(",") if code]
        opcodes.update(found)
        last = (found[-1] if found else -1, int(statuses.split(",")[-1] or "0", 0))
        # Decoding ends at the frame that it stumbles over, so that is the last one of the packet.
        if wrong and last not in _UNTRUE:
            malformed.append(f"{number} (opcodes {codes}, statuses {statuses})")
    return Decoded(opcodes, malformed)


def judge(command: list[str], drive: Callable[[Node], Outcome], options: Mapping[str, Any]) -> Outcome:
    """Capture a client's session with a fresh node, and judge it.

    Raises:
        Missing: this user may not capture.
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
