"""Recorded positions: files, rows and Spark's offsets are read and written back alike, or refused with an OffsetError.

Input: which reader, and the text.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

from dcpstream.client.offsets import FORMAT, VERSION, FileOffsetStore, SavedOffset
from dcpstream.errors import ConfigError, OffsetError
from dcpstream.model import CollectionName, StreamOffset
from dcpstream.model.position_text import CollectionSets, chain, chain_text, sets_of
from dcpstream_spark.options import SourceOptions
from dcpstream_spark.source.offsets import (
    SourceOffset,
    VbucketOffset,
    explained,
    positions_of,
    user_position,
    user_seqno,
)

MAX_BYTES = 1500
_folder = tempfile.TemporaryDirectory(prefix="dcpstream-fuzz-")
_FILE = Path(_folder.name) / "offsets"


def seeds() -> Iterator[bytes]:
    names = (CollectionName(0, "_default", "_default"), CollectionName(9, "s", "c"))
    at = StreamOffset(5, 1000, 400, None, 3, names)
    old = StreamOffset(5, 400, 0, 403, 2)
    sets = CollectionSets()
    entry = SavedOffset(at, (old,), True).entry(sets)
    yield b"\x00" + json.dumps({**sets.to_json(), "vbuckets": f"- {entry} ."}).encode()
    body = b"{}\n"
    header = {"format": FORMAT, "version": VERSION, "vbuckets": 1, "crc32": f"{crc32(body):08x}"}
    yield b"\x01" + json.dumps(header).encode() + b"\n" + body
    offset = SourceOffset(
        "b", None, {0: VbucketOffset(at, (old,), refilled=old), 3: VbucketOffset(old)}, bucket_uuid="u"
    )
    yield b"\x02" + json.dumps(offset.to_json()).encode()
    yield b"\x02" + json.dumps(offset.based_on(offset).to_json()).encode()
    yield b"\x03" + chain_text((at, old), lambda _: 0).encode()
    yield b'\x04{"vbuuid":"5","seqno":"7"}'
    yield b'\x04"1ekg@rs?go+3;"'
    yield b'\x05{"0":"7","1":{"seqno":8}}'


def check(data: bytes) -> None:
    if not data:
        return
    try:
        _CHECKS[data[0] % len(_CHECKS)](data[1:])
    except OffsetError:
        return


def body_of_file(body: bytes) -> None:
    header = {"format": FORMAT, "version": VERSION, "vbuckets": 1, "crc32": f"{crc32(body):08x}"}
    whole_file(json.dumps(header).encode() + b"\n" + body)


def whole_file(content: bytes) -> None:
    _FILE.write_bytes(content)
    found = FileOffsetStore(_FILE).load()
    for record in found.values():
        sets = CollectionSets()
        entry = record.entry(sets)
        assert SavedOffset.of_entry(entry, sets_of(sets.to_json())) == record


def logged(text: bytes) -> None:
    data = value_of(text)
    explained(data)
    found = SourceOffset.from_json(data, bucket=data["bucket"])
    assert {vbid: entry.at for vbid, entry in found.vbuckets.items()} == positions_of(data)
    written = json.loads(json.dumps(found.to_json()))
    again = SourceOffset.from_json(written, bucket=data["bucket"])
    assert again.vbuckets == found.vbuckets
    assert again.to_json() == found.to_json()


def position(text: bytes) -> None:
    try:
        found = chain(text.decode("utf-8", "replace"))
    except ValueError:
        return
    assert chain(chain_text(found, lambda _: 0)) == found


def users(text: bytes) -> None:
    data = value_of(text)
    for read in (lambda: user_position(data, vbuuid_of_branch=5), lambda: user_seqno(data)):
        try:
            read()
        except ValueError:
            continue


def option(text: bytes) -> None:
    try:
        SourceOptions.parse(
            {"connectionString": "couchbase://h", "bucket": "b", "startingOffsets": text.decode("utf-8", "replace")}
        )
    except ConfigError:
        return


def value_of(text: bytes) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OffsetError("no JSON") from error


_CHECKS: tuple[Callable[[bytes], None], ...] = (body_of_file, whole_file, logged, position, users, option)
