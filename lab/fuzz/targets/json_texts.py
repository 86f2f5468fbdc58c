"""JSON that nodes and clients send each other: read, or refused with the error of its reader.

Input: which reader, and the text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from dcpstream.client.machine.connection.handshake import reason_in
from dcpstream.client.machine.nodes.cluster_map import manifest_of, parse_config
from dcpstream.errors import ConfigError, RemoteProtocolError, TlsError
from dcpstream.model import Manifest, NodeAddress
from dcpstream.wire import Opcode, decode_frame
from dcpstream_node.engine.bucket.manifest import (
    CannotApplyError,
    ManifestError,
    check_step,
    events_between,
    read_manifest,
)
from dcpstream_node.rest.collections import _read_scopes
from lab.fuzz import seeds as shared

MAX_BYTES = 2000
ORIGIN = NodeAddress("127.0.0.1", 11210)

MAP = {
    "rev": 3,
    "revEpoch": 1,
    "uuid": "u",
    "clusterUUID": "c",
    "name": "default",
    "nodeLocator": "vbucket",
    "nodes": [{}, {"hostname": "$HOST:8091"}],
    "nodesExt": [
        {
            "hostname": "a",
            "services": {"kv": 1, "kvSSL": 2, "mgmt": 3},
            "alternateAddresses": {"external": {"hostname": "b", "ports": {"kv": 5, "kvSSL": 6}}},
        },
        {"services": {"kv": 11210}, "thisNode": True},
    ],
    "vBucketServerMap": {"serverList": ["a:1", "b:2"], "vBucketMap": [[0, 1], [1, -1], [0]]},
}
MANIFEST = {
    "uid": "5",
    "scopes": [
        {"name": "_default", "uid": "0", "collections": [{"name": "_default", "uid": "0"}]},
        {"name": "s", "uid": "8", "collections": [{"name": "c", "uid": "9", "maxTTL": 5, "history": True}]},
    ],
}


def seeds() -> Iterator[bytes]:
    for number in range(3):
        yield bytes((number,)) + json.dumps(MAP).encode()
    for number in (3, 4, 5):
        yield bytes((number,)) + json.dumps(MANIFEST).encode()
    yield b'\x06{"error":{"context":"no","ref":"1"}}'
    for _, data in shared.recorded_frames():
        frame = decode_frame(data)
        if frame.opcode == Opcode.GET_CLUSTER_CONFIG and len(frame.value) < MAX_BYTES and frame.value:
            yield b"\x00" + frame.value
        if frame.opcode == Opcode.GET_COLLECTIONS_MANIFEST and frame.value:
            yield b"\x03" + frame.value
            yield b"\x04" + frame.value


def check(data: bytes) -> None:
    if not data:
        return
    try:
        _CHECKS[data[0] % len(_CHECKS)](data[1:])
    except (RemoteProtocolError, ManifestError):
        return


def map_of(network: str, *, is_secure: bool) -> Callable[[bytes], None]:
    def read(text: bytes) -> None:
        try:
            found = parse_config(text, ORIGIN, network, is_secure=is_secure)
        except (ConfigError, TlsError):
            return
        for vbid in range(found.vbucket_count):
            found.copies(vbid)
        found.vbuckets_by_node()
        assert found.version >= (0, 0) or found.version < (0, 0)

    return read


def clients_manifest(text: bytes) -> None:
    found = manifest_of(text)
    assert Manifest.from_json(found.to_json()) == found


def nodes_manifest(text: bytes) -> None:
    found = read_manifest(text)
    assert read_manifest(json.dumps(found.to_json()).encode()) == found
    assert Manifest.from_json(found.to_json()) == found
    try:
        check_step(Manifest.DEFAULT, found)
    except CannotApplyError:
        return
    events_between(Manifest.DEFAULT, found)


def posted_manifest(text: bytes) -> None:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return
    _read_scopes(content)


def reason(text: bytes) -> None:
    assert isinstance(reason_in(text), str)


_CHECKS: tuple[Callable[[bytes], None], ...] = (
    map_of("auto", is_secure=False),
    map_of("auto", is_secure=True),
    map_of("external", is_secure=False),
    clients_manifest,
    nodes_manifest,
    posted_manifest,
    reason,
)
