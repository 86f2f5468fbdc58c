"""A well-behaved client in a process of its own: it reads a document in a loop and reports the durations.

`lab.bench.load` starts it. It takes the orders `start` and `stop` on its standard input and answers `stop` with a line
of JSON: the number of answers, and the median, 99th percentile and maximum of their durations in milliseconds.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
import time

from dcpstream.wire import Feature, FrameReader, Opcode, encode_request

PAUSE_S = 0.002
"""Pause between two requests: the rate of one worker of a busy web server."""
TIMEOUT_S = 60.0


def main() -> None:
    """Measure until the standard input ends."""
    port, password = int(sys.argv[1]), sys.argv[2]
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = FrameReader()

        def call(request: bytes) -> int:
            connection.sendall(request)
            while True:
                frame = reader.next_frame()
                if frame is not None:
                    return frame.status
                data = connection.recv(65536)
                if not data:
                    raise ConnectionError("the node closed the connection of the good client")
                reader.receive_data(data)

        features = struct.pack(">2H", Feature.XERROR, Feature.COLLECTIONS)
        call(encode_request(Opcode.HELLO, value=features))
        login = b"\0Administrator\0" + password.encode()
        assert call(encode_request(Opcode.SASL_AUTH, key=b"PLAIN", value=login)) == 0
        assert call(encode_request(Opcode.SELECT_BUCKET, key=b"default")) == 0
        get = encode_request(Opcode.GET, key=b"\0good")
        print("ready", flush=True)
        times: list[float] = []
        is_measuring = False
        while True:
            wanted = PAUSE_S if is_measuring else None
            if select.select([sys.stdin], [], [], wanted)[0]:
                order = sys.stdin.readline().strip()
                if not order:
                    return
                if order == "start":
                    times, is_measuring = [], True
                else:
                    is_measuring = False
                    print(json.dumps(_figures(times)), flush=True)
            if is_measuring:
                started = time.perf_counter()
                call(get)
                times.append(time.perf_counter() - started)


def _figures(times: list[float]) -> dict[str, float]:
    ordered = sorted(times) or [0.0]
    return {
        "count": len(times),
        "p50_ms": ordered[len(ordered) // 2] * 1000,
        "p99_ms": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000,
        "max_ms": ordered[-1] * 1000,
    }


if __name__ == "__main__":
    main()
