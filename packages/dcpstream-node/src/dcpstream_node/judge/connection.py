"""A connection that writes down everything that passes over it."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dcpstream_node.judge.packets import HEADER_BYTES, Op, Packet, packet, stream_request_extras
from dcpstream_node.judge.transcript import Line, Recorder, RequestCount, Stopped

FRAME_BYTES_MAX = 64 << 20
"""The largest frame that is read: three times what a server may send. A longer one is a wrong length."""
RECV_BYTES = 1 << 20
CONNECT_TIMEOUT_S = 10.0
SEND_TIMEOUT_S = 10.0
SHORTEST_WAIT_S = 0.001
"""Waiting for nothing would be another mode of a socket."""
STAT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of a server, and how to reach it.

    Attributes:
        host, port: of its data port.
        tls: the context of connections with TLS; None: without.
        connect_timeout_s: how long making a connection may take.
        forbids: gives the reason why a request may not be sent to it, by its opcode, or nothing.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    forbids: Callable[[int], str] = lambda _opcode: ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"couchbase{'s' if self.tls else ''}://{host}:{self.port}"

    def connect(self) -> socket.socket:
        """A connected socket. Raises: OSError."""
        plain = socket.create_connection((self.host, self.port), timeout=self.connect_timeout_s)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.tls is None:
            return plain
        try:
            return self.tls.wrap_socket(plain, server_hostname=self.host)
        except OSError:
            plain.close()
            raise


class Connection:
    """One connection of a scenario.

    Args:
        recorder: takes the lines.
        endpoint: where to connect.
        name: the connection's in the transcript, as `conn#1`.
        is_setup: whether what passes is not what the scenario is about.
    """

    def __init__(self, recorder: Recorder, endpoint: Endpoint, name: str, *, is_setup: bool = False) -> None:
        recorder.check_deadline()
        self.recorder = recorder
        self.name = name
        self.endpoint = endpoint
        self.socket = endpoint.connect()
        self.buffer = b""
        self.closed = False
        self.ended = False
        self.opaque = 0x1000
        self.count = RequestCount()
        self.marks: Line = {"setup": True} if is_setup else {}
        self._note({"event": "connect"} | self.marks, "connected")

    def _note(self, fields: Line, note: str) -> None:
        self.recorder.write(fields, note, self.name)

    @contextmanager
    def marked(self, **marks: Any) -> Iterator[None]:
        """Lines written inside carry these fields."""
        before = self.marks
        self.marks = before | marks
        try:
            yield
        finally:
            self.marks = before

    def set_setup(self, is_setup: bool) -> None:
        """From now on lines are set-up, or are not."""
        self.marks = {"setup": True} if is_setup else {}

    def send(self, raw: bytes, note: str = "", written: bytes | None = None) -> None:
        """Send bytes as they are; `written` stands in the transcript in their place, if they are secret.

        Raises: Stopped: one of the requests in them may not be sent.
        """
        self.recorder.check_deadline()
        self._check_allowed(raw)
        try:
            text = Packet.parse(written or raw).describe()
        except (IndexError, struct.error):
            text = "(malformed)"
        self.recorder.write(self.marks, f"{note} | {text}" if note else text, self.name, "c2s", written or raw)
        self.count.add(self.recorder.lines[-1])
        try:
            self.socket.settimeout(SEND_TIMEOUT_S)
            self.socket.sendall(raw)
        except OSError:
            self.server_closed()

    def _check_allowed(self, raw: bytes) -> None:
        while len(raw) > 1:
            if raw[0] in (0x80, 0x08):
                reason = self.endpoint.forbids(raw[1])
                if reason:
                    raise Stopped(reason, self.name, self.count.requests)
            size = struct.unpack(">I", raw[8:12])[0] if len(raw) >= HEADER_BYTES else len(raw)
            raw = raw[HEADER_BYTES + size :]

    def stop(self, reason: str) -> Stopped:
        """The end of a scenario at this connection's last request, which the server rightly refused."""
        return Stopped(reason, self.name, self.count.requests - 1)

    def server_closed(self) -> None:
        """Write down, once, that the server closed the connection."""
        if not self.ended:
            fields = {"event": "closed", "undelivered": len(self.buffer)}
            self._note(fields | self.marks, "server closed the connection")
        self.closed = True
        self.ended = True

    def take_frame(self) -> Packet | None:
        """The next whole frame in the buffer, or None."""
        if len(self.buffer) < HEADER_BYTES:
            return None
        size = HEADER_BYTES + struct.unpack(">I", self.buffer[8:12])[0]
        if size > FRAME_BYTES_MAX:
            raise ValueError(f"a frame of {size} bytes is announced")
        if len(self.buffer) < size:
            return None
        raw, self.buffer = self.buffer[:size], self.buffer[size:]
        return Packet.parse(raw)

    def read_socket(self, seconds: float) -> None:
        """Read what arrives within some seconds into the buffer."""
        self.socket.settimeout(max(SHORTEST_WAIT_S, seconds))
        try:
            data = self.socket.recv(RECV_BYTES)
        except (TimeoutError, ssl.SSLWantReadError):
            return
        except OSError:
            data = b""
        self.buffer += data
        if not data:
            self.server_closed()

    def recv(self, timeout: float = 3.0, note: str = "") -> Packet | None:
        """The next frame, or None at the timeout or the end."""
        end = self.now() + timeout
        while True:
            self.recorder.check_deadline()
            frame = self.take_frame()
            if frame:
                text = frame.describe()
                text = f"{note} | {text}" if note else text
                self.recorder.write(self.marks, text, self.name, "s2c", frame.raw)
                return frame
            left = end - self.now()
            if self.closed or left <= 0:
                return None
            self.read_socket(left)

    def now(self) -> float:
        """The time that deadlines are reckoned by."""
        return self.recorder.clock.monotonic()

    def recv_all(self, idle: float = 1.0, total: float = 15) -> list[Packet]:
        """Frames until none comes for `idle` seconds, `total` at most."""
        out: list[Packet] = []
        end = self.now() + total
        while self.now() < end:
            frame = self.recv(idle)
            if frame is None:
                break
            out.append(frame)
        return out

    def unix(self) -> int:
        """Seconds since 1970."""
        return self.recorder.clock.time_ns() // 1_000_000_000

    def next_opaque(self) -> int:
        """A new opaque: from 0x1001 on, one by one."""
        self.opaque += 1
        return self.opaque

    def cmd(self, op: int, note: str = "", timeout: float = 5, **fields: Any) -> Packet | None:
        """Send a request and wait for its response; other frames pass by."""
        if "opaque" not in fields:
            fields["opaque"] = self.next_opaque()
        self.send(packet(op, **fields), note)
        return self._answer(op, fields["opaque"], timeout)

    def _answer(self, op: int, opaque: int, timeout: float = 5) -> Packet | None:
        """The response to a request; other frames pass by."""
        end = self.now() + timeout
        while self.now() < end:
            frame = self.recv(max(0.01, end - self.now()))
            if frame is None:
                break
            if self.is_answer(frame, op, opaque):
                return frame
        if not self.closed:
            self._note({"event": "silence"}, f"no response in {timeout}s")
        return None

    @staticmethod
    def is_answer(frame: Packet, op: int, opaque: int) -> bool:
        """Whether a frame is the response to this request."""
        return frame.is_response and frame.op == op and frame.opaque == opaque

    def optional(self, op: int, **fields: Any) -> Packet | None:
        """A request that another kind of node need not know."""
        with self.marked(optional=True):
            return self.cmd(op, **fields)

    def hello(self, features: Sequence[int], note: str = "") -> Packet | None:
        """HELLO with a list of features."""
        value = struct.pack(f">{len(features)}H", *features)
        note = note or "HELLO features=" + ",".join(hex(item) for item in features)
        return self.cmd(Op.HELLO, key=b"dcpstream", val=value, note=note)

    def auth(self, user: str, password: str) -> Packet | None:
        """SASL PLAIN. The transcript does not have the password."""
        opaque = self.next_opaque()
        raw, written = (
            packet(Op.SASL_AUTH, key="PLAIN", val=f"\0{user}\0{word}", opaque=opaque) for word in (password, "********")
        )
        self.send(raw, written=written)
        return self._answer(Op.SASL_AUTH, opaque)

    def select(self, bucket: str) -> Packet | None:
        """SELECT_BUCKET."""
        return self.cmd(Op.SELECT_BUCKET, key=bucket)

    def dcp_open(
        self, name: str, flags: int = 1, note: str = "", seqno: int = 0, val: str | bytes = b"", dt: int = 0
    ) -> Packet | None:
        """DCP_OPEN; flag 1 makes the server the producer."""
        extras = struct.pack(">II", seqno, flags)
        return self.cmd(Op.DCP_OPEN, key=name, ext=extras, val=val, dt=dt, note=note)

    def control(self, key: str, value: str, note: str = "") -> Packet | None:
        """DCP_CONTROL."""
        return self.cmd(Op.DCP_CONTROL, key=key, val=value, note=note)

    def stream_request(self, vb: int, val: str | bytes = b"", note: str = "", **fields: Any) -> Packet | None:
        """STREAM_REQ; the fields are those of its extras."""
        extras = stream_request_extras(**fields)
        return self.cmd(Op.DCP_STREAM_REQ, ext=extras, vb=vb, val=val, note=note)

    def read_stream(self, vb: int, idle: float, **fields: Any) -> None:
        """STREAM_REQ, and what comes until nothing does for `idle` seconds."""
        self.stream_request(vb, **fields)
        self.recv_all(idle)

    def close_stream(self, vb: int, **fields: Any) -> Packet | None:
        """CLOSE_STREAM."""
        return self.cmd(Op.DCP_CLOSE_STREAM, vb=vb, **fields)

    def stats(self, key: str = "", timeout: float = STAT_TIMEOUT_S) -> dict[str, str]:
        """STAT, as a dictionary; empty if the node does not know the group."""
        out: dict[str, str] = {}
        with self.marked(optional=True):
            self.send(packet(Op.STAT, key=key, opaque=self.next_opaque()))
            while True:
                frame = self.recv(timeout)
                if frame is None or frame.status or not frame.key:
                    return out
                out[frame.key.decode(errors="replace")] = frame.value.decode(errors="replace")

    def close(self) -> None:
        """Close our side."""
        if not self.ended:
            self._note({"event": "client_closed"} | self.marks, "we close")
        self.closed = True
        self.ended = True
        self.socket.close()
