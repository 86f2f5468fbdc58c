"""The native path of GET and SET: what it takes, what it leaves, and what it writes down beside the documents.

packages/dcpstream-node/tests/property/test_set_paths.py compares its answers and documents with those of the command
table.
"""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dcpstream.errors import FieldError
from dcpstream.model.json_text import is_json
from dcpstream.runtime import kernel
from dcpstream.wire import Feature, Opcode, Status, encode_request
from dcpstream.wire.values import snappy_compress, snappy_uncompress
from dcpstream_node.engine.handlers.native import answer_plain
from dcpstream_node.engine.session.responses import pack_duration
from dcpstream_node.store import BucketStore, DiskBucketStore, MemoryBucketStore
from dcpstream_node.store.log.frame_log import CHUNK_BYTES
from tests.kit.cases import each_case
from tests.kit.engine import Talker, engine_of

pytestmark = pytest.mark.skipif(kernel.native is None, reason="no native kernel here")

HEADER = 24


def plain_set(key: bytes, value: bytes = b"v") -> bytes:
    return encode_request(Opcode.SET, key=b"\0" + key, extras=bytes(8), value=value)


def plain_get(key: bytes) -> bytes:
    return encode_request(Opcode.GET, key=b"\0" + key)


def taken(client: Talker, data: bytes) -> int:
    """The number of bytes of some requests that the native path answers."""
    assert answer_plain is not None
    return answer_plain(client.session, data, 0)


class TestWhatItTakes:
    def test_gets_and_sets_one_after_the_other(self) -> None:
        client = Talker(engine_of())
        data = plain_get(b"a") + plain_set(b"a", b"first") + plain_get(b"a") + plain_set(b"a", b"2") + plain_get(b"a")
        assert taken(client, data) == len(data)
        answers = client.collect()
        assert [answer.opcode for answer in answers] == [Opcode.GET, Opcode.SET, Opcode.GET, Opcode.SET, Opcode.GET]
        assert [answer.value for answer in answers] == [b"", b"", b"first", b"", b"2"]
        assert answers[0].status == Status.KEY_ENOENT
        assert client.session.selected.ops[Opcode.GET] == 3
        assert client.session.selected.ops[Opcode.SET] == 2

    def test_it_ends_before_a_request_that_is_not_whole(self) -> None:
        client = Talker(engine_of())
        data = plain_set(b"a") + plain_set(b"b")
        for cut in range(len(data)):
            assert taken(client, data[:cut]) == (len(data) // 2 if cut >= len(data) // 2 else 0)

    @each_case(
        "request_",
        [encode_request(Opcode.DELETE, key=b"\0a"), encode_request(Opcode.SET, key=b"\x09a", extras=bytes(8))],
    )
    def test_it_ends_before_a_request_for_others(self, request_: bytes) -> None:
        client = Talker(engine_of())
        assert taken(client, plain_set(b"a") + request_ + plain_set(b"b")) == len(plain_set(b"a"))

    def test_it_ends_when_many_answers_wait(self) -> None:
        client = Talker(engine_of())
        client.engine.output_limit = 100
        sets = b"".join(plain_set(b"%d" % number) for number in range(9))
        assert taken(client, sets) == 3 * len(plain_set(b"0")), "each answer has 40 bytes"

    def test_a_traced_session_gets_the_duration_of_each_request(self) -> None:
        client = Talker(engine_of(), features=(Feature.TRACING, Feature.COLLECTIONS))
        client.engine.stopwatch = iter((1.0, 1.0 + 50e-6, 2.0, 2.0 + 100e-6)).__next__
        data = plain_set(b"a", b"traced") + plain_get(b"a")
        assert taken(client, data) == len(data)
        answers = client.collect()
        assert [answer.framing for answer in answers] == [pack_duration(50e-6), pack_duration(100e-6)]
        assert answers[1].value == b"traced"

    def test_a_full_store_takes_no_sets(self) -> None:
        client = Talker(engine_of())
        client.session.selected.store.set_over_quota(True)
        assert taken(client, plain_get(b"a") + plain_set(b"a")) == len(plain_get(b"a"))


class TestPlacesOfDocuments:
    def test_documents_in_sealed_buffers(self) -> None:
        client = Talker(engine_of(MemoryBucketStore(1)))
        value = random.Random(1).randbytes(CHUNK_BYTES // 4)
        keys = [b"%d" % number for number in range(11)]
        for key in keys:
            client.send(plain_set(key, key + value))
        log = client.session.selected.vbucket(0).log.log
        assert len(log.sealed) == 3
        for key in keys:
            assert taken(client, plain_get(key)) == len(plain_get(key))
            assert client.collect()[0].value == key + value

    def test_documents_in_files_are_left_alone(self, tmp_path: Path) -> None:
        client = Talker(engine_of(DiskBucketStore(tmp_path, 1)))
        client.send(plain_set(b"a", b"on disk"))
        store = client.session.selected.store
        store.commit()
        assert taken(client, plain_get(b"a")) == 0
        assert client.send(plain_get(b"a"))[0].value == b"on disk"
        store.close()

    def test_a_set_waits_for_the_next_commit(self, tmp_path: Path) -> None:
        store: BucketStore = DiskBucketStore(tmp_path, 1)
        client = Talker(engine_of(store))
        store.commit()
        assert not store.pending_bytes
        assert taken(client, plain_set(b"a"))
        assert list(store.dirty) == [0]
        assert store.pending_bytes == store.vbuckets[0].unflushed_bytes > 0
        store.commit()
        assert store.vbuckets[0].persisted_seqno == store.vbuckets[0].high_seqno
        store.close()

    def test_a_set_while_a_compaction_runs_is_noted_for_it(self) -> None:
        client = Talker(engine_of(MemoryBucketStore(1)))
        client.send(plain_set(b"a"))
        rows = client.session.selected.store.vbuckets[0].rows
        rows.journal = []
        seqno = rows.keys[b"\0a"]
        assert taken(client, plain_set(b"a"))
        assert rows.journal == [seqno]


def packed_set(value: bytes) -> bytes:
    return encode_request(Opcode.SET, key=b"\0a", extras=bytes(8), value=value, datatype=2)


class TestCompressedValues:
    @each_case(("mode", "is_kept"), [("off", False), ("passive", True), ("active", True)])
    def test_a_value_is_stored_as_the_bucket_wants_it(self, mode: str, is_kept: bool) -> None:
        client = Talker(engine_of(MemoryBucketStore(1)))
        bucket = client.session.selected
        bucket.change_settings(replace(bucket.settings, compression=mode))
        text = b'{"text":"' + b"v" * 300 + b'"}'
        requests = packed_set(snappy_compress(text)) + plain_get(b"a") + packed_set(snappy_compress(b"abc")) * 2
        assert taken(client, requests) == len(requests)
        answer = client.collect()[1]
        assert answer.value == (snappy_compress(text) if is_kept else text)
        assert answer.datatype == (3 if is_kept else 1)
        item = bucket.store.vbuckets[0].get(b"\0a")
        assert item is not None
        assert (item.value, item.datatype) == (b"abc", 0), "it saved nothing"

    def test_a_client_without_snappy_gets_it_from_the_command_table(self) -> None:
        client = Talker(engine_of(MemoryBucketStore(1)))
        bucket = client.session.selected
        bucket.change_settings(replace(bucket.settings, compression="passive"))
        client.send(packed_set(snappy_compress(b"v" * 300)))
        plain = Talker(client.engine, features=(Feature.COLLECTIONS,))
        assert taken(plain, plain_get(b"a")) == 0
        assert plain.send(plain_get(b"a"))[0].value == b"v" * 300
        assert taken(plain, packed_set(snappy_compress(b"v" * 300))) == 0

    def test_blocks_that_are_changed_and_cut(self) -> None:
        """Whatever the kernel takes, the other decoder takes, too, and makes the same of it."""
        chance, found = random.Random(11), 0
        client = Talker(engine_of(MemoryBucketStore(1)))
        client.send(plain_set(b"a"))
        store = client.session.selected.store
        for number in range(3_000):
            content = bytes(chance.choices(b"abc", k=chance.choice((0, 1, 7, 70, 700)))) + chance.randbytes(number % 90)
            block = bytearray(snappy_compress(content * chance.choice((1, 1, 3, 90))))
            for _ in range(number % 3):
                block[chance.randrange(len(block))] = chance.randrange(256)
            del block[len(block) - chance.choice((0, 0, 0, 1, 5)) :]
            before = store.vbuckets[0].high_seqno
            is_taken = taken(client, packed_set(bytes(block))) > 0
            assert store.vbuckets[0].high_seqno == before + is_taken
            try:
                expected = snappy_uncompress(bytes(block))
            except FieldError:
                assert not is_taken
                continue
            item = store.vbuckets[0].get(b"\0a")
            assert item is not None
            assert not is_taken or item.value == expected
            found += is_taken
            if len(store.vbuckets[0].log.tail) > CHUNK_BYTES // 2:
                store.vbuckets[0].log.seal()
        assert found > 1000

    @each_case(
        "block",
        [
            b"", b"\x80", b"\x80\0", b"\xff" * 5, b"\x03", b"\x03\x08ab", b"\x03\x0cabcd", b"\x02\x08abc",
            b"\0", b"\x04\0a\x01\0", b"\x05\0a\x01\x02", b"\x05\0a\x0e\x02\0", b"\x02\xf0\x01ab",
            b"\x05\0a\x0f\x01\0\0", b"\x01\xf0", b"\x01\xfc\0\0\0", b"\0\0",
            snappy_compress(bytes(CHUNK_BYTES + 1)),
        ],
    )  # fmt: skip
    def test_blocks_that_are_not_sound_or_empty_are_left(self, block: bytes) -> None:
        client = Talker(engine_of())
        client.send(plain_set(b"a"))
        assert taken(client, packed_set(block)) == 0

    @each_case(
        ("block", "content"),
        [
            (b"\x05\0a\x01\x01", b"aaaaa"), (b"\x04\x04ab\x06\x02\0", b"abab"),
            (b"\x04\x04ab\x07\x02\0\0\0", b"abab"), (b"\x03\xf0\x02abc", b"abc"), (b"\x02\xfc\x01\0\0\0ab", b"ab"),
        ],
    )  # fmt: skip
    def test_every_kind_of_element(self, block: bytes, content: bytes) -> None:
        assert snappy_uncompress(block) == content
        client = Talker(engine_of())
        assert taken(client, packed_set(block)) == len(packed_set(block))
        assert taken(client, plain_get(b"a"))
        assert client.collect()[-1].value == content


JSON_TEXTS = (
    b'{"a":[1,-2.5e+3,true,false,null,"x\\u00e9\\n"],"b":{}}', b"[]", b" [ ] ", b"{ }", b'"text"', b"0", b"-0.1E-9",
    b"01", b"1.", b".5", b"-", b"1e", b"nul", b"NaN", b"-Infinity", b"[1,]", b'{"a":1,}', b'{"a"}', b'{1:2}', b"[1 2]",
    b'"\x01"', b'"\\x"', b'"\\ud800"', b'"\\ud800\\u12"', b'"\\u12g4"', b'"', b'"\\', b'"\\u1', b"", b" ",
    b"\xef\xbb\xbf1", '"é€😀"'.encode(), b'"\xff"', b'"\xc3"', b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b'"\xc0\x80"',
    b'"\xe2\x82', b"\0",
    b"[[[[[[1]]]]]]", b'{"a":{"b":{"c":[{}]}}}', b"1 2", b"[1]x", b"tru", b"true ", b"{]", b"[}", b'{"a" : [ 1 , 2 ] }',
)  # fmt: skip


class TestJson:
    @each_case("text", JSON_TEXTS)
    def test_a_text(self, text: bytes) -> None:
        assert kernel.native is not None
        assert kernel.native.is_json(text) == is_json(text)

    def test_changed_texts(self) -> None:
        assert kernel.native is not None
        chance, found = random.Random(5), 0
        for _ in range(20_000):
            text = bytearray(chance.choice(JSON_TEXTS) or b"1")
            for _ in range(chance.randrange(1, 4)):
                at = chance.randrange(len(text) + 1)
                text[at : at + chance.randrange(2)] = chance.choice(
                    (b"", b'"', b"[", b"]", b"{}", b",", b":", b"1", b"\\")
                )
            expected = is_json(bytes(text))
            found += expected
            assert kernel.native.is_json(bytes(text)) == expected, bytes(text)
        assert 1000 < found < 15_000

    def test_deep_texts_are_left_to_python(self) -> None:
        assert kernel.native is not None
        assert kernel.native.is_json(b"[" * 64 + b"]" * 64) is True
        assert kernel.native.is_json(b"[" * 65 + b"]" * 65) is None
        client = Talker(engine_of())
        deep = plain_set(b"deep", b"[" * 65 + b"]" * 65)
        assert taken(client, deep) == 0
        client.send(deep)
        assert client.send(plain_get(b"deep"))[0].datatype == 1


def copy(object_: Any, **changes: object) -> Any:
    """An object with the same attributes in slots, of a class of its own."""
    values = {name: getattr(object_, name) for name in object_.__slots__ if not name.startswith("_")} | changes
    made = type("Copy", (), {"__slots__": tuple(values)})()
    for name, value in values.items():
        setattr(made, name, value)
    return made


class TestWrongArguments:
    """The kernel reads nothing as memory that is of another kind."""

    def call(self, vbucket: object, **changes: Any) -> object:
        assert kernel.native is not None
        given = {"data": plain_set(b"a"), "at": 0, "vbuckets": [vbucket], "dirty": set(), "pending": None, **changes}
        return kernel.native.answer(*given.values(), None, True, True, True, True, 1, -1.0, 1 << 60, 1 << 20)

    @each_case("change", [{"at": -1}, {"at": 99}, {"vbuckets": ()}, {"dirty": []}, {"pending": []}])
    def test_arguments(self, change: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="a wrong collection"):
            self.call(None, **change)

    def test_a_vbucket_that_is_none(self) -> None:
        assert self.call(None) == (0, b"", 0, 0, 0)

    @each_case(
        ("place", "wrong"),
        [
            ("locks", []), ("log.rows.keys", []), ("log.log.tail", b""), ("log.rows.collection_high", None),
            ("log.rows.seqnos", [1]), ("log.rows.times", bytearray(3)), ("log.rows.end", -1), ("max_cas", "1"),
        ],
    )  # fmt: skip
    def test_a_vbucket_with_a_wrong_attribute(self, place: str, wrong: object) -> None:
        client = Talker(engine_of(MemoryBucketStore(1)))
        client.send(plain_set(b"a"))
        vbucket = client.session.selected.vbucket(0)
        assert vbucket is not None
        log, rows, frames = vbucket.log, vbucket.log.rows, vbucket.log.log
        copies = {"log.rows": copy(rows), "log.log": copy(frames)}
        copies["log"] = copy(log, rows=copies["log.rows"], log=copies["log.log"])
        copies[""] = copy(vbucket, log=copies["log"])
        owner, _, name = place.rpartition(".")
        setattr(copies[owner], name, wrong)
        with pytest.raises((TypeError, OverflowError, BufferError)):
            self.call(copies[""])

    @each_case("place", ["log", "log.rows", "log.log"])
    def test_an_object_of_another_class(self, place: str) -> None:
        client = Talker(engine_of(MemoryBucketStore(1)))
        client.send(plain_set(b"a"))
        vbucket = client.session.selected.vbucket(0)
        assert vbucket is not None
        other = SimpleNamespace(log=SimpleNamespace(), rows=SimpleNamespace(), high_seqno=1, keys={}, tail=bytearray())
        log = other if place == "log" else copy(vbucket.log, **{place.rpartition(".")[2]: other})
        with pytest.raises(AttributeError, match="no slot has"):
            self.call(copy(vbucket, log=log))

    def test_an_attribute_that_is_not_set(self) -> None:
        client = Talker(engine_of(MemoryBucketStore(1)))
        client.send(plain_set(b"a"))
        vbucket = client.session.selected.vbucket(0)
        del vbucket.max_cas
        with pytest.raises(AttributeError, match="no slot has max_cas"):
            taken(client, plain_set(b"a") + plain_set(b"b"))

    def test_a_frame_that_is_cut_is_left_alone(self) -> None:
        client = Talker(engine_of(MemoryBucketStore(1)))
        client.send(plain_set(b"a", b"value"))
        frames = client.session.selected.store.vbuckets[0].log
        whole = bytes(frames.tail)
        for size in range(len(whole)):
            frames.tail = bytearray(whole[:size])
            assert taken(client, plain_get(b"a")) == 0
        frames.tail = bytearray(whole)
        assert taken(client, plain_get(b"a")) == len(plain_get(b"a"))

    def test_the_answers_of_a_failed_call_are_not_sent(self) -> None:
        client = Talker(engine_of(MemoryBucketStore(1)))
        client.session.selected.vbucket(0).locks = []
        with pytest.raises(TypeError, match="locks is of the wrong kind"):
            taken(client, plain_set(b"a"))
        assert not client.session.output.pieces


def test_an_expiration_is_made_absolute() -> None:
    client = Talker(engine_of(MemoryBucketStore(1)))
    data = encode_request(Opcode.SET, key=b"\0a", extras=struct.pack(">II", 7, 60), value=b"v")
    assert taken(client, data) == len(data)
    assert list(client.session.selected.store.vbuckets[0].rows.times)[-1] == client.engine.unix_ns // 10**9 + 60
    assert taken(client, plain_get(b"a")) == 0, "it may have expired"
