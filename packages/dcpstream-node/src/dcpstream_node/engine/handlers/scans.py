"""The range scan commands: RANGE_SCAN_CREATE, RANGE_SCAN_CONTINUE and RANGE_SCAN_CANCEL.

Source: kv_engine docs/range_scans/*, daemon/protocol/mcbp/range_scan_create_executor.cc.
"""

from __future__ import annotations

import base64
import binascii
import json
from array import array
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple

from dcpstream.wire import Datatype, Frame, Opcode, Status
from dcpstream.wire.keys import MAX_KEY_BYTES, leb128_encode
from dcpstream.wire.messages import kv
from dcpstream_node.engine.bucket.range_scans import RangeScan, walk_sample
from dcpstream_node.engine.commands import CommandTable
from dcpstream_node.engine.handlers.reads import body_of, without_system
from dcpstream_node.engine.handlers.resolve import active_vbucket, may_in

if TYPE_CHECKING:
    from dcpstream_node.engine.bucket.bucket import Bucket
    from dcpstream_node.engine.bucket.vbucket import VBucket
    from dcpstream_node.engine.session.session import Session
    from dcpstream_node.store import StoredItem

BATCH_BYTES = 8192
"""Size from which a response of a continued scan is sent: the server's range_scan_read_buffer_send_size."""
MAX_NAME_BYTES = 50
MAX_WAIT_MS = 0xFFFFFFFF

SCAN_ID_BYTES = 16
_KEYS, _DOCUMENTS = 0, 1


class _WrongError(ValueError):
    """The description of a scan is malformed; the text says why."""


class _Requirements(NamedTuple):
    """The requirements on the snapshot of a scan."""

    vbuuid: int
    seqno: int
    has_to_exist: bool
    timeout_ms: int


class _Wish(NamedTuple):
    """The description of a scan; `first` and `last` have a collection prefix."""

    collection_id: int
    first: bytes
    last: bytes
    excludes_first: bool
    excludes_last: bool
    samples: int | None
    seed: int
    is_keys_only: bool
    has_xattrs: bool
    requirements: _Requirements | None


# ------------------------------------------------------------------------------------------------------- description


def _field(data: dict[str, Any], name: str, kind: type, default: Any = None, *, is_required: bool = False) -> Any:
    value = data.get(name)
    if value is None:
        if is_required:
            raise _WrongError(f"cannot find {name}")
        return default
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if not (is_number if kind is int else isinstance(value, kind)):
        raise _WrongError(f"wrong type for {name}")
    return value


def _bound(data: dict[str, Any], name: str) -> tuple[bytes, bool]:
    """(key, whether it is excluded) of one end of the range."""
    included, excluded = _field(data, name, str), _field(data, f"excl_{name}", str)
    if (included is None) == (excluded is None):
        both = "included both" if included is not None else "did not include"
        raise _WrongError(f"range {both} {name} and excl_{name}")
    text = excluded if included is None else included
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _WrongError(f"{name} is not base64") from None
    if len(key) > MAX_KEY_BYTES:
        raise _WrongError(f"invalid key size in range {name}:{len(key)}")
    return key, included is None


def _requirements(data: dict[str, Any] | None) -> _Requirements | None:
    if data is None:
        return None
    vbuuid = _field(data, "vb_uuid", str, is_required=True)
    if not vbuuid.isdecimal() or not vbuuid.isascii() or int(vbuuid) >> 64:
        raise _WrongError("vb_uuid is not a number in decimal text")
    return _Requirements(
        int(vbuuid),
        _field(data, "seqno", int, is_required=True),
        _field(data, "seqno_exists", bool, False),
        min(_field(data, "timeout_ms", int, 0), MAX_WAIT_MS),
    )


def _read(value: bytes) -> _Wish:
    try:
        data = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise _WrongError(f"not JSON: {error}") from None
    if not isinstance(data, dict):
        raise _WrongError("not a JSON object")
    try:
        collection_id = int(_field(data, "collection", str, "0"), 16)
    except ValueError as error:
        raise _WrongError(f"Invalid formatting of the collection field: {error}") from None
    if not 0 <= collection_id <= 0xFFFFFFFF:
        raise _WrongError("Invalid formatting of the collection field")
    bounds, sampling = _field(data, "range", dict), _field(data, "sampling", dict)
    if bounds is not None and sampling is not None:
        raise _WrongError("both range and sampling")
    first, last, excludes_first, excludes_last = b"", b"\xff" * (MAX_KEY_BYTES + 1), False, False
    if bounds is not None:
        first, excludes_first = _bound(bounds, "start")
        last, excludes_last = _bound(bounds, "end")
    if len(_field(data, "name", str, "").encode()) > MAX_NAME_BYTES:
        raise _WrongError(f"name exceeds {MAX_NAME_BYTES} bytes")
    is_keys_only, has_xattrs = _field(data, "key_only", bool, False), _field(data, "include_xattrs", bool, False)
    if is_keys_only and has_xattrs:
        raise _WrongError("cannot set key_only:true and include_xattrs:true")
    prefix = leb128_encode(collection_id)
    return _Wish(
        collection_id,
        prefix + first,
        prefix + last,
        excludes_first,
        excludes_last,
        None if sampling is None else _field(sampling, "samples", int, is_required=True),
        0 if sampling is None else _field(sampling, "seed", int, 0) & 0xFFFFFFFF,
        is_keys_only,
        has_xattrs,
        _requirements(_field(data, "snapshot_requirements", dict)),
    )


# ------------------------------------------------------------------------------------------------------------ create


def create(session: Session, frame: Frame) -> None:
    """RANGE_SCAN_CREATE: begin a scan of a range or a sample of the keys of one collection of a vbucket."""
    bucket = session.selected
    if frame.datatype != Datatype.JSON:
        session.refuse(frame, Status.EINVAL, "Datatype must be JSON")
        return
    try:
        wish = _read(frame.value)
    except _WrongError as error:
        session.refuse(frame, Status.EINVAL, str(error))
        return
    if wish.collection_id not in bucket.collections:
        session.refuse_unknown(frame, Status.UNKNOWN_COLLECTION)
        return
    if not may_in(session, frame, "RangeScan", wish.collection_id):
        return
    if wish.has_xattrs and not session.datatypes & Datatype.XATTR:
        session.refuse(frame, Status.NOT_SUPPORTED, "Client does not support XATTRs")
        return
    vbucket = active_vbucket(session, frame)
    if vbucket is not None and _meets(session, frame, bucket, vbucket, wish.requirements):
        session.stream(frame, _make(session, frame, bucket, vbucket, wish))


def _meets(
    session: Session, frame: Frame, bucket: Bucket, vbucket: VBucket, requirements: _Requirements | None
) -> bool:
    """Whether the vbucket meets the requirements; if not, the request was refused or waits for persistence."""
    if requirements is None:
        return True
    seqno = requirements.seqno
    if requirements.vbuuid != vbucket.vbuuid:
        session.refuse(frame, Status.VBUUID_NOT_EQUAL)
    elif seqno > vbucket.persisted_seqno:
        deadline = session.engine.now + requirements.timeout_ms / 1000
        if requirements.timeout_ms and bucket.wait_for_persistence(session, vbucket.vbid, seqno, deadline):
            session.wait(frame, lambda status: _persisted(session, frame, status))
        else:
            session.refuse(frame, Status.TMPFAIL, "The sequence number is not persisted")
    elif requirements.has_to_exist and (
        not seqno or not vbucket.log.read(seqno - 1, seqno, snapshot_end=vbucket.high_seqno, max_bytes=1).count
    ):
        session.refuse(frame, Status.NOT_STORED, "The sequence number is not stored")
    else:
        return True
    return False


def _persisted(session: Session, frame: Frame, status: int) -> None:
    """Continue the creation of a scan that waited for persistence."""
    if status:
        session.refuse(frame, status)
    else:
        session.try_again(frame)


def _make(session: Session, frame: Frame, bucket: Bucket, vbucket: VBucket, wish: _Wish) -> Generator[None, None, None]:
    """Collect the present keys in steps, then answer the scan's id."""
    scans, vbuuid, view_end = bucket.range_scans, vbucket.vbuuid, vbucket.high_seqno
    view = None if wish.is_keys_only else vbucket.log.hold(view_end)
    keys: list[bytes] = []
    seqnos = array("Q")
    if scans.has_room():
        keys, seqnos = yield from vbucket.log.walk_keys(wish.first, wish.last)
    if bucket.active(frame.vbid) is not vbucket or vbucket.vbuuid != vbuuid:  # another one since
        session.refuse_vbucket(frame)
        return
    if wish.collection_id not in bucket.collections:
        session.refuse_unknown(frame, Status.UNKNOWN_COLLECTION)
        return
    if not scans.has_room(len(keys)):
        session.refuse(frame, Status.BUSY, "Too many range scans")
        return
    if wish.excludes_first and keys and keys[0] == wish.first:
        del keys[0], seqnos[0]
    if wish.excludes_last and keys and keys[-1] == wish.last:
        del keys[-1], seqnos[-1]
    if not keys:
        session.respond(frame, Status.KEY_ENOENT)
        return
    if wish.samples is not None:
        places = yield from walk_sample(len(keys), wish.samples, wish.seed)
        keys, seqnos = [keys[place] for place in places], array("Q", [seqnos[place] for place in places])
    scan = RangeScan(
        vbucket,
        wish.collection_id,
        keys,
        seqnos,
        view_end,
        wish.is_keys_only,
        wish.has_xattrs,
        session.engine.now + bucket.parameters.scan_life_s,
        view,
    )
    scan_id = session.engine.random.getrandbits(8 * SCAN_ID_BYTES).to_bytes(SCAN_ID_BYTES, "big")
    scans.add(scan_id, scan)
    session.reply(frame, kv.RangeScanCreateResponse, scan_id)


# ---------------------------------------------------------------------------------------------------------- continue


class _Limits(NamedTuple):
    """The limits of one RANGE_SCAN_CONTINUE; `end` in seconds of the engine's stopwatch, None for no limit."""

    items: float
    end: float | None
    size: float


def _find(session: Session, frame: Frame, scan_id: bytes) -> RangeScan | None:
    bucket = session.selected
    if bucket.active(frame.vbid) is None:
        session.refuse_vbucket(frame)
        return None
    scan = bucket.range_scans.find(scan_id, frame.vbid)
    if scan is None:
        session.respond(frame, Status.KEY_ENOENT)
    elif may_in(session, frame, "RangeScan", scan.collection_id):
        return scan
    return None


def continue_(session: Session, frame: Frame) -> None:
    """RANGE_SCAN_CONTINUE: responses with keys or documents, up to the limits or the end of the scan."""
    scan_id, items, time_ms, size = kv.RangeScanContinue.unpack(frame)
    scan = _find(session, frame, scan_id)
    if scan is None:
        return
    if scan.is_continuing:
        session.refuse(frame, Status.BUSY, "The scan is being continued already")
        return
    never = float("inf")
    limits = _Limits(items or never, session.engine.stopwatch() + time_ms / 1000 if time_ms else None, size or never)
    scan.is_continuing = True
    session.stream(frame, _answers(session, frame, scan_id, scan, limits))


def _answers(
    session: Session, frame: Frame, scan_id: bytes, scan: RangeScan, limits: _Limits
) -> Generator[None, None, None]:
    bucket = session.selected
    items = size = 0
    status: int = Status.SUCCESS
    content = _KEYS if scan.is_keys_only else _DOCUMENTS
    shows_system = not session.refusal_in("SystemXattrRead", scan.collection_id)
    try:
        while not status:
            if refused := _refusal(bucket, scan):
                break
            batch: list[bytes] = []
            packet_bytes = 0
            while not status and packet_bytes < BATCH_BYTES:
                piece = _piece(session, scan, shows_system=shows_system)
                if piece:
                    batch.append(piece)
                    packet_bytes += len(piece)
                    items += 1
                    size += len(piece)
                if scan.is_complete:
                    status = Status.RANGE_SCAN_COMPLETE
                elif (
                    items >= limits.items
                    or size >= limits.size
                    or (limits.end is not None and session.engine.stopwatch() >= limits.end)
                ):
                    status = Status.RANGE_SCAN_MORE
            session.reply(frame, kv.RangeScanContinueResponse, content, status=status, value=b"".join(batch))
            if not status:
                yield
        else:
            scan.is_continuing = False
            if status == Status.RANGE_SCAN_COMPLETE:
                bucket.range_scans.remove(scan_id)
            return
        if refused == Status.NOT_MY_VBUCKET:
            session.refuse_vbucket(frame)
        elif refused == Status.UNKNOWN_COLLECTION:
            session.refuse_unknown(frame, refused)
        else:
            session.refuse(frame, refused)
    finally:
        # The answer was interrupted: the scan cannot continue, as what the client received is not known.
        if scan.is_continuing:
            bucket.range_scans.remove(scan_id)


def _refusal(bucket: Bucket, scan: RangeScan) -> int:
    """The status that ends a scan, or 0."""
    if bucket.active(scan.vbucket.vbid) is not scan.vbucket:
        return Status.NOT_MY_VBUCKET
    if scan.collection_id not in bucket.collections:
        return Status.UNKNOWN_COLLECTION
    return Status.RANGE_SCAN_CANCELLED if scan.is_cancelled else Status.SUCCESS


def _piece(session: Session, scan: RangeScan, *, shows_system: bool) -> bytes:
    """The next key or document, encoded; empty if the document's version is not stored any more."""
    place = scan.next
    scan.next += 1
    key = scan.keys[place][scan.prefix_length :]
    if scan.is_keys_only:
        return leb128_encode(len(key)) + key
    item = scan.document(place)
    if item is None:
        return b""
    value, datatype = _value(session, scan, item, shows_system=shows_system)
    metadata = kv.ScannedDocument(item.flags, item.expiration, item.seqno, item.cas, datatype & session.datatypes)
    return b"".join((metadata.pack(), leb128_encode(len(key)), key, leb128_encode(len(value)), value))


def _value(session: Session, scan: RangeScan, item: StoredItem, *, shows_system: bool) -> tuple[bytes, int]:
    if not scan.has_xattrs or shows_system or not item.datatype & Datatype.XATTR:
        return body_of(item, session.datatypes, keeps_xattrs=scan.has_xattrs)
    return without_system(item)


def cancel(session: Session, frame: Frame) -> None:
    """RANGE_SCAN_CANCEL: end a scan."""
    (scan_id,) = kv.RangeScanCancel.unpack(frame)
    if _find(session, frame, scan_id) is not None:
        session.selected.range_scans.remove(scan_id)
        session.respond(frame)


def register(table: CommandTable) -> None:
    """Add the commands of this module."""
    table.add(Opcode.RANGE_SCAN_CREATE, create)
    table.add(Opcode.RANGE_SCAN_CONTINUE, continue_)
    table.add(Opcode.RANGE_SCAN_CANCEL, cancel)
