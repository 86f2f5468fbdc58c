"""Forms of the management port: settings or a list of faults, never an error.

Input: which form, and its body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import parse_qsl

from dcpstream.model import AutoFailover, BucketSettings
from dcpstream_node.rest import bucket_form, pool_form
from dcpstream_node.rest.bucket_form import name_fault, settings_json
from dcpstream_node.rest.collections import _name_faults, _uid, _wanted
from dcpstream_node.rest.topology import _auto_failover, _names, _place
from dcpstream_node.rest.users import _roles_of

MAX_BYTES = 600

Form = dict[str, str]


def seeds() -> Iterator[bytes]:
    yield b"\x00name=b&bucketType=membase&ramQuota=256&replicaNumber=1&flushEnabled=1&compressionMode=off&maxTTL=5"
    yield (
        b"\x00storageBackend=magma&ramQuotaMB=1024&historyRetentionSeconds=5&historyRetentionBytes=2147483648"
        b"&historyRetentionCollectionDefault=true&durabilityMinLevel=majority&numVBuckets=64"
    )
    yield b"\x01bucketType=ephemeral&evictionPolicy=nruEviction&conflictResolutionType=lww&durabilityMinLevel=none"
    yield b"\x02clusterName=c&memoryQuota=512&indexMemoryQuota=256&queryMemoryQuota=0"
    yield b"\x03enabled=true&timeout=5&maxCount=2&failoverOnDataDiskIssues[enabled]=true&canAbortRebalance=false"
    yield b"\x04hostname=https://[::1]:18091/&knownNodes=n_0@a,n_1@b"
    yield b"\x05name=fruit&maxTTL=-1&history=true"
    yield b"\x06roles=admin,bucket_admin[*],data_reader[b:s:c]"
    yield b"\x07uid=1f"


def check(data: bytes) -> None:
    if not data:
        return
    try:
        fields = parse_qsl(data[1:].decode(), keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError:
        return
    _CHECKS[data[0] % len(_CHECKS)](dict(fields))


def bucket(form: Form) -> None:
    read = bucket_form.read_form(form)
    if not read.errors:
        settings_json(read.settings)
        assert BucketSettings.from_json(read.settings.to_json()) == read.settings
    name_fault(form.get("name"), {"taken": None})


def changed_bucket(form: Form) -> None:
    present = BucketSettings(is_ephemeral="e" in form)
    bucket_form.read_form(form, present, 64)


def pool(form: Form) -> None:
    pool_form.read_form(form, used_mib=256, machine_mib=8192, node="n")


def auto_failover(form: Form) -> None:
    settings, error = _auto_failover(form, AutoFailover())
    assert error is None or settings == AutoFailover()


def place(form: Form) -> None:
    _, port, errors = _place(form.get("hostname", ""))
    assert errors or 0 <= port < 1 << 16
    _names(form.get("knownNodes", ""))


def collection(form: Form) -> None:
    _wanted(form)
    _name_faults(form)


def roles(form: Form) -> None:
    _roles_of(form)


def uid(form: Form) -> None:
    found = _uid(form.get("uid", ""))
    assert found is None or 0 <= found < 1 << 64


_CHECKS: tuple[Callable[[Form], None], ...] = (
    bucket, changed_bucket, pool, auto_failover, place, collection, roles, uid,
)  # fmt: skip
