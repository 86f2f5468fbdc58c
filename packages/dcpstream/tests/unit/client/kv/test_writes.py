"""Writes in bulk and their outcomes, over connections that refuse and are cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

import dcpstream_node
from dcpstream.client.kv.client import KvClient
from dcpstream.client.kv.writes import DocumentWriter, Durability, Outcome, Write, WriteOp
from dcpstream.client.settings.options import access
from dcpstream.errors import TemporaryFailure
from dcpstream.wire import Opcode, Status
from tests.kit.access import LOGIN
from tests.kit.faulty_bucket import FaultyBucket

UPSERT, INSERT, REPLACE, DELETE = WriteOp.UPSERT, WriteOp.INSERT, WriteOp.REPLACE, WriteOp.DELETE
Made = Callable[..., DocumentWriter]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """A writer over a faulty bucket."""

    def make(bucket: FaultyBucket, **options: Any) -> DocumentWriter:
        monkeypatch.setattr("dcpstream.client.kv.windows.FIRST_PAUSE_S", 0.0)
        monkeypatch.setattr("dcpstream.client.kv.writes.KvPool", lambda *_, **__: cast("Any", bucket))
        return DocumentWriter(cast("Any", None), window_ops=7, **options)

    return make


@pytest.fixture
def node() -> Iterator[dcpstream_node.Node]:
    with dcpstream_node.Node(vbuckets=4) as running:
        running.set_collections("default", {"shop": ["orders"]})
        yield running


def writer_of(node: dcpstream_node.Node, **options: Any) -> DocumentWriter:
    given = access(node.connection_string, "Administrator", "password", "default")
    return DocumentWriter(given, **options)


def kinds(outcomes: list[Outcome | None]) -> list[str]:
    return ["written" if outcome is None else outcome.kind.value for outcome in outcomes]


def sequential(writes: list[Write]) -> dict[bytes, bytes]:
    """The documents after the writes, one after the other."""
    state: dict[bytes, bytes] = {}
    for write in writes:
        if write.op == DELETE:
            state.pop(write.key, None)
        elif (write.op == INSERT) <= (write.key not in state) and (write.op == REPLACE) <= (write.key in state):
            state[write.key] = write.value
    return state


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("ops", [(UPSERT, DELETE), (UPSERT, INSERT, REPLACE, DELETE)])
def test_refusals_in_any_order_bring_about_the_same_documents(made: Made, seed: int, ops: tuple[WriteOp, ...]) -> None:
    bucket = FaultyBucket(seed, is_unordered=bool(seed % 2))
    bucket.refusals = {Status.TMPFAIL: 0.1, Status.NOT_MY_VBUCKET: 0.05}
    chosen = bucket.random
    writes = [Write(chosen.choice(ops), b"key %d" % chosen.randrange(9), b"%d" % n) for n in range(150)]
    made(bucket).write(writes)
    assert {key[1:]: value for key, (value, _, _) in bucket.documents.items()} == sequential(writes)


def test_an_insert_is_compared_by_value_and_flags(made: Made) -> None:
    bucket = FaultyBucket()
    writer = made(bucket)
    first = [Write(INSERT, b"a", b"1", flags=7), Write(INSERT, b"b", b"2", flags=7)]
    assert kinds(writer.write(first)) == ["written", "written"]
    assert kinds(writer.write(first)) == ["repeated", "repeated"]
    assert kinds(writer.write([Write(INSERT, b"a", b"1", flags=8), Write(INSERT, b"b", b"other", flags=7)])) == [
        "refused",
        "refused",
    ]
    assert bucket.documents[b"\0b"][0] == b"2", "a refused insert changes nothing"


def test_a_write_over_a_version_that_it_wrote_itself_counts_as_carried_out(made: Made) -> None:
    bucket = FaultyBucket()
    writer = made(bucket)
    writer.write([Write(UPSERT, b"a", b"1")])
    cas = bucket.documents[b"\0a"][2]
    assert kinds(writer.write([Write(REPLACE, b"a", b"2", cas=cas)])) == ["written"]
    assert kinds(writer.write([Write(REPLACE, b"a", b"2", cas=cas)])) == ["repeated"]
    assert kinds(writer.write([Write(REPLACE, b"a", b"3", cas=cas)])) == ["refused"]


def test_a_refusal_that_does_not_pass_names_the_key_between_redaction_marks(made: Made) -> None:
    bucket = FaultyBucket()
    bucket.refusals = {Status.TMPFAIL: 1.0}
    with pytest.raises(TemporaryFailure, match=r"<ud>b'\\x00a'</ud>.*retryTimeout"):
        made(bucket, retry_timeout_s=0.001).write([Write(UPSERT, b"a", b"1")])


def test_a_real_node_refuses_single_rows(node: dcpstream_node.Node) -> None:
    writer = writer_of(node)
    big = b"x" * (20 * 1024 * 1024 + 1)
    outcomes = writer.write(
        [
            Write(UPSERT, b"k" * 250, b"1"),
            Write(UPSERT, b"k" * 251, b"1"),
            Write(UPSERT, b"k" * 247, b"1", "shop.orders"),
            Write(UPSERT, b"", b"1"),
            Write(UPSERT, b"big", big),
            Write(UPSERT, b"largest", big[:-1]),
            Write(REPLACE, b"missing", b"1"),
            Write(UPSERT, b"nowhere", b"1", "shop.none"),
            Write(UPSERT, b"here", b"1", "shop.orders", flags=5),
        ]
    )
    writer.close()
    names = ["" if outcome is None else Status(outcome.status).name for outcome in outcomes]
    assert names == ["", "EINVAL", "EINVAL", "EINVAL", "E2BIG", "", "KEY_ENOENT", "UNKNOWN_COLLECTION", ""]
    with KvClient(node.connection_string, **LOGIN, collection="shop.orders") as kv:
        found = kv.get("here")
    assert found is not None
    assert (found.value, found.flags) == (b"1", 5)


def test_a_collection_that_comes_and_comes_again(node: dcpstream_node.Node) -> None:
    writer = writer_of(node)
    write = [Write(UPSERT, b"a", b"1", "shop.late")]
    assert kinds(writer.write(write)) == ["refused"]
    node.set_collections("default", {"shop": ["orders", "late"]})
    assert kinds(writer.write(write)) == ["written"]
    node.set_collections("default", {"shop": ["orders"]})
    assert kinds(writer.write(write)) == ["refused"]
    node.set_collections("default", {"shop": ["orders", "late"]})
    assert kinds(writer.write(write)) == ["written"], "under its new id"
    writer.close()


def test_durable_writes_ask_for_their_level(node: dcpstream_node.Node) -> None:
    writer = writer_of(node, durability=Durability.PERSIST_TO_MAJORITY, durability_timeout_ms=30_000)
    assert kinds(writer.write([Write(UPSERT, b"%d" % n, b"{}") for n in range(50)])) == ["written"] * 50
    assert kinds(writer.write([Write(DELETE, b"%d" % n) for n in range(50)])) == ["written"] * 50
    writer.close()


def test_a_durable_request_has_its_level_in_the_frame(made: Made) -> None:
    seen = []

    class Watched(FaultyBucket):
        def carry_out(self, frame: Any) -> Any:
            seen.append((frame.framing, frame.opcode))
            return super().carry_out(frame)

    made(Watched(), durability=Durability.MAJORITY, durability_timeout_ms=2000).write([Write(UPSERT, b"a", b"1")])
    assert seen == [(bytes((0x13, 1, 0x07, 0xD0)), Opcode.SET)]
