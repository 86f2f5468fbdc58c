"""A node's engine with one session and nothing else: for unit tests that look at single answers.

`dcpstream_node.testing.simulation` has whole nodes with peers and virtual time.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Any

from dcpstream.wire import (
    Frame,
    FrameReader,
    Magic,
    Opcode,
    RawRequest,
    RawResponse,
    Status,
    decode_message,
    encode_request,
)
from dcpstream.wire.buffers import Buffer
from dcpstream.wire.release import DEFAULT_RELEASE, release_of
from dcpstream_node.engine import Engine, Session
from dcpstream_node.engine.bucket.manifest import read_manifest
from dcpstream_node.store import BucketStore, MemoryBucketStore
from dcpstream_node.testing.simulation import (
    USUAL_FEATURES,
    SeededRandom,
    VirtualClock,
    known_users,
    simulated_engine,
)


def engine_of(store: BucketStore | None = None, *, vbuckets: int = 4, release: str = DEFAULT_RELEASE.name) -> Engine:
    """An engine with the bucket `default` and the users of a simulated node."""
    return simulated_engine(
        store or MemoryBucketStore(vbuckets),
        clock=VirtualClock(),
        random=SeededRandom(2),
        users=known_users(),
        release=release_of(release),
    )


def is_declared(frame: Frame) -> bool:
    """Whether a frame has a layout in the message table; answers that are bare headers or errors need none."""
    if frame.is_response and not (frame.status == Status.SUCCESS and (frame.extras or frame.key or frame.value)):
        return True
    return frame.magic == Magic.SERVER_REQUEST or not isinstance(decode_message(frame), RawRequest | RawResponse)


class Talker:
    """A client of one session."""

    def __init__(self, engine: Engine, *, user: str | None = "admin", features: Iterable[int] = USUAL_FEATURES) -> None:
        self.engine = engine
        session = engine.new_session("test")
        assert session is not None
        self.session: Session = session
        self.features = tuple(features)
        self._opaque = 0
        self._output: list[Buffer] = []
        if user is not None:
            if self.features:
                self.hello(self.features)
            assert self.call(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0%b\0secret" % user.encode()).status == 0
            assert self.call(Opcode.SELECT_BUCKET, key=b"default").status == 0

    def send(self, data: bytes) -> list[Frame]:
        """Hand bytes to the session; returns the frames it answers."""
        used = self.receive(data)
        assert used == len(data) or self.session.is_closing or self.session.is_waiting
        return self.collect()

    def receive(self, data: bytes) -> int:
        """Hand bytes to the session once; returns how many it used. The answers are for `collect`."""
        step = self.session.receive(data)
        self._output += step.output
        return step.used

    def collect(self) -> list[Frame]:
        """The frames that the session sends now."""
        self.engine.end_turn()
        reader = FrameReader()
        pieces, self._output = self._output, []
        for piece in (*pieces, *self.session.send(1 << 20).output):
            reader.receive_data(piece)
        frames = list(reader.frames())
        for frame in frames:
            assert is_declared(frame), f"{frame} has no layout"
        return frames

    def call(self, opcode: int, **fields: Any) -> Frame:
        """One request, one answer."""
        self._opaque += 1
        frames = self.send(encode_request(opcode, opaque=self._opaque, **fields))
        assert len(frames) == 1, frames
        assert frames[0].opaque == self._opaque
        return frames[0]

    def hello(self, features: Iterable[int]) -> Frame:
        return self.call(Opcode.HELLO, key=b"test", value=b"".join(struct.pack(">H", code) for code in features))

    # documents, with the collection prefix if collections were negotiated

    def key(self, key: str) -> bytes:
        return (b"\0" if self.session.has_collections else b"") + key.encode()

    def set(self, key: str, value: bytes, *, flags: int = 0, expiration: int = 0, opcode: int = Opcode.SET,
            **fields: Any) -> Frame:  # fmt: skip
        extras = struct.pack(">II", flags, expiration)
        return self.call(opcode, key=self.key(key), value=value, extras=extras, **fields)

    def get(self, key: str, **fields: Any) -> Frame:
        return self.call(Opcode.GET, key=self.key(key), **fields)

    def delete(self, key: str, **fields: Any) -> Frame:
        return self.call(Opcode.DELETE, key=self.key(key), **fields)

    def stats(self, group: str) -> dict[str, str]:
        """A whole STAT answer."""
        frames = self.send(encode_request(Opcode.STAT, key=group.encode(), opaque=7))
        while self.session.is_waiting:
            frames += self.collect()
        assert not frames[-1].key
        assert all(frame.status == 0 for frame in frames)
        return {frame.key.decode(): frame.value.decode() for frame in frames[:-1]}


def with_collection(engine: Engine, collection_id: int, *, name: str = "fruit", max_ttl: int = 0) -> None:
    """Give the bucket `default` a further collection in the default scope."""
    bucket = engine.buckets["default"]
    default = {"name": "_default", "uid": "0"}
    fields: dict[str, object] = {"name": name, "uid": f"{collection_id:x}"}
    if max_ttl:
        fields["maxTTL"] = max_ttl
    scope = {"name": "_default", "uid": "0", "collections": [default, fields]}
    manifest = json.dumps({"uid": f"{bucket.manifest.uid + 1:x}", "scopes": [scope]})
    engine.set_manifest(bucket, read_manifest(manifest.encode()))


def pass_time(engine: Engine, seconds: float) -> None:
    """Let the clocks go on."""
    engine.set_time(engine.now + seconds, engine.unix_ns + int(seconds * 1e9))


def flush(client: Talker) -> None:
    """Persist all that was written."""
    store = client.engine.buckets["default"].store
    client.engine.persisted("default", [vbid for vbid, _ in store.commit()])
