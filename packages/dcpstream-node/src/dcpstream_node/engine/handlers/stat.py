"""STAT: groups of names and values about a bucket and its vbuckets.

The package `stats` makes the groups; those about DCP connections come from outside of the engine.

Source: kv_engine docs/BinaryProtocol.md, engines/ep/src/ep_engine.cc (getStats), daemon/protocol/mcbp/stats_context.cc.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from dcpstream.model import Manifest, VbucketState
from dcpstream.wire import Datatype, Frame, Opcode, Status
from dcpstream.wire.keys import leb128_encode
from dcpstream.wire.release import Rule
from dcpstream.wire.shape import Fault
from dcpstream_node.engine.access.permission import LOOKUP, Refusal, without_system
from dcpstream_node.engine.bucket import documents
from dcpstream_node.engine.bucket.places import collection_at, id_in
from dcpstream_node.engine.commands import CommandTable
from dcpstream_node.engine.handlers.number_text import read_number
from dcpstream_node.engine.stats import bucket as bucket_stats
from dcpstream_node.engine.stats.dcp_options import apply_options, read_options
from dcpstream_node.engine.stats.vbucket import PER_VBUCKET, PER_VBUCKET_80, cursor, state_name

if TYPE_CHECKING:
    from dcpstream_node.engine.bucket.bucket import Bucket
    from dcpstream_node.engine.bucket.vbucket import VBucket
    from dcpstream_node.engine.session.session import Session

Items = Iterable[tuple[str, object] | None]
"""Names and values; None ends a step of a long search."""

_DCP_GROUPS = ("dcp", "dcpagg", "dcp-vbtakeover")
"""Groups about DCP connections, which the engine's owner answers."""

_PRIVILEGED = frozenset(
    (
        *("reset", "worker_thread_info", "audit", "bucket_details", "client_connection_details", "tracing", "tenants"),
        *("allocator", "threads", "_checkpoint-dump", "_hash-dump", "_durability-dump", "_vbucket-dump"),
    )
)
"""Groups of the server that need the privilege Stats."""
_OPEN = frozenset(("clocks", "connections"))
"""Groups of the server that need no privilege."""
_KNOWN = frozenset(
    (
        *("", "aggregate", "json_validate", "snappy_decompress", "subdoc_execute", "responses", "scopes"),
        *("scopes-byid", "scopes-details", "collections", "collections-byid", "collections-details", "uuid", "dcpagg"),
        *("dcp", "eviction", "hash", "vbucket", "prev-vbucket", "vbucket-durability-state", "vbucket-details"),
        *("vbucket-seqno", "checkpoint", "durability-monitor", "timings", "dispatcher", "tasks", "scheduler"),
        *("runtimes", "memory", "key", "key-byid", "vkey", "vkey-byid", "kvtimings", "kvstore", "warmup", "info"),
        *("config", "dcp-vbtakeover", "workload", "failovers", "diskinfo", "disk-failures", "slabs", "items", "sizes"),
        *("scrub", "stat-timings"),
    )
)
"""Groups of the server that need the privilege SimpleStats."""

_WITHOUT_NUMBER = frozenset(("vbucket",))
"""Groups about vbuckets that are about all of them."""

VBUCKET_LIMIT = 1 << 16
"""Numbers of vbuckets have 16 bits."""

WORDS_MAX, ID_CHARACTERS_MIN = 3, 3
"""The number of words after `key`, and the shortest id of a collection there, as at a server."""

_LEADING_NUMBER = re.compile(r"[+-]?[0-9]{1,9}", re.ASCII)

ITEMS_A_STEP = 200
"""Responses per step: a group may have ten thousand, and the client must read them."""


def _items(session: Session, bucket: Bucket, frame: Frame) -> Items | int:
    text = frame.key.decode(errors="replace")
    group, _, argument = text.partition(" ")
    if group == "diskinfo" and argument == "detail":
        group, argument = "diskinfo-detail", ""
    if group in PER_VBUCKET:
        return _of_vbuckets(session, bucket, group, argument)
    if group in _DCP_GROUPS:
        if (group == "dcp") == bool(argument):
            return Status.KEY_ENOENT  # the others need an argument
        found = session.engine.dcp_stats(bucket, group, argument)
        if group == "dcp" and frame.value and not isinstance(found, int):
            return apply_options(bucket, found, read_options(frame.value))
        return found
    if group in ("collections", "collections-byid"):
        return bucket_stats.collections(bucket, _shown(session), argument, is_by_id=group == "collections-byid")
    if group in ("scopes", "scopes-byid"):
        return bucket_stats.scopes(bucket, _shown(session), argument, is_by_id=group == "scopes-byid")
    if group in ("key", "key-byid") and " " in text:
        return _document(session, bucket, text, is_by_id=group == "key-byid")
    whole: dict[str, Callable[[Bucket], Items]] = {
        "memory": bucket_stats.memory,
        "diskinfo": bucket_stats.disk,
        "config": bucket_stats.config,
        "warmup": bucket_stats.warmup,
        "uuid": lambda bucket: iter((("uuid", bucket.uuid),)),
        "": partial(bucket_stats.totals, session.engine),
    }
    if group == "diskinfo" and argument:
        return Status.EINVAL
    return whole[group](bucket) if group in whole and not argument else Status.KEY_ENOENT


def _shown(session: Session) -> Manifest:
    """The manifest without the system collections of which the user gets no statistics."""
    bucket, identity = session.selected, session.identity
    if not bucket.system_collections:
        return bucket.manifest
    return without_system(bucket.manifest, lambda *place: LOOKUP in identity.rights_at(bucket.name, *place))


def _of_vbuckets(session: Session, bucket: Bucket, group: str, argument: str) -> Items | int:
    if argument and group in _WITHOUT_NUMBER:
        return Status.KEY_ENOENT
    if not argument:
        chosen = [vbucket for vbucket in bucket.vbuckets if vbucket is not None]
    else:
        vbid = read_number(argument.encode(), bucket.release, limit=VBUCKET_LIMIT)
        if vbid is None and group != "failovers":
            return Status.EINVAL
        one = bucket.vbucket(vbid or 0)  # `failovers` takes any other text for the vbucket 0
        if one is None or (one.state is VbucketState.DEAD and group == "vbucket-seqno"):
            return Status.NOT_MY_VBUCKET
        chosen = [one]
    if not bucket.store.is_durable:
        for vbucket in chosen:
            vbucket.fresh_deletions.clear()  # the answer reports everything as persisted
    hidden: tuple[str, ...] = ()
    if group in ("collections-details", "scopes-details") and bucket.system_collections:
        shown = bucket_stats.numbers(_shown(session), group)
        hidden = tuple(f"{number:#x}:" for number in bucket_stats.numbers(bucket.manifest, group) - shown)
    groups = PER_VBUCKET_80 if bucket.release.has(Rule.STATS_OF_80) else PER_VBUCKET
    return (
        None if item is None else (f"vb_{vbucket.vbid}:{item[0]}" if item[0] else f"vb_{vbucket.vbid}", item[1])
        for vbucket in chosen
        for item in chain(groups[group](vbucket), _cursors(bucket, vbucket) if group == "checkpoint" else ())
        if item is None or not item[0].startswith(hidden)
    )


def _cursors(bucket: Bucket, vbucket: VBucket) -> Items:
    """The cursors of DCP streams in a vbucket's open checkpoint."""
    for session in bucket.dcp_sessions.values():
        for name, seqno in session.dcp.cursors(vbucket.vbid) if session.dcp is not None else ():
            yield from cursor(name, vbucket.checkpoint_number, seqno, vbucket.memory_start_seqno)
            yield f"{name}:num_items_for_cursor", max(0, vbucket.high_seqno - seqno)


def _document(session: Session, bucket: Bucket, text: str, *, is_by_id: bool) -> Items | int:
    """The group `key KEY VBUCKET [SCOPE.COLLECTION]`, or `key-byid KEY VBUCKET [0xCOLLECTION]`."""
    _, *words = re.split(r"\s", text.strip())
    if not 2 <= len(words) <= WORDS_MAX:
        return Status.EINVAL
    found = _LEADING_NUMBER.match(words[1])
    vbid = -1 if found is None else int(found[0])
    if not 0 <= vbid < VBUCKET_LIMIT:
        return Status.EINVAL
    collection_id = _collection_of(bucket, words[2], is_by_id=is_by_id) if len(words) == WORDS_MAX else 0
    if isinstance(collection_id, Status):
        return collection_id
    vbucket = bucket.vbucket(vbid)
    if vbucket is None:
        return Status.NOT_MY_VBUCKET
    if refusal := session.refusal_in("Read", collection_id):
        return refusal.status
    if collection_id not in bucket.collections:
        return Status.UNKNOWN_COLLECTION
    key = leb128_encode(collection_id) + words[0].encode()
    if documents.is_recommitted(vbucket, key):
        return Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS
    if vbucket.is_active:
        documents.live_meta(vbucket, key, session.engine.unix_ns)
    meta = vbucket.log.meta(key)  # as stored, with its own CAS even if the document is locked
    if meta is None or meta.is_deleted:
        return Status.KEY_ENOENT
    has_datatype = session.engine.release.has(Rule.KEY_STATS_NAME_DATATYPE)
    return (
        ("key_is_dirty", str(meta.seqno > vbucket.persisted_seqno).lower()),
        ("key_exptime", meta.expiration),
        *((("key_datatype", _datatype_name(meta.datatype)),) if has_datatype else ()),
        ("key_flags", meta.flags),
        ("key_cas", meta.cas),
        ("key_vb_state", state_name(vbucket)),
        ("key_is_resident", "true"),
    )


def _collection_of(bucket: Bucket, word: str, *, is_by_id: bool) -> int:
    """The id of a collection by its path or its id, or the status that refuses it: EINVAL or one for an unknown one.

    Like the server, the node takes no id of one or two characters.
    """
    if is_by_id:
        number = id_in(word) if len(word) >= ID_CHARACTERS_MIN else None
        return Status.EINVAL if number is None else number
    found = collection_at(bucket.manifest, word)
    return found if isinstance(found, int) else found.collection_id


def _datatype_name(datatype: int) -> str:
    """The datatype as text, in the server's spelling."""
    names = (
        name
        for bit, name in ((Datatype.JSON, "json"), (Datatype.SNAPPY, "snappy"), (Datatype.XATTR, "xattr"))
        if datatype & bit
    )
    return ",".join(names) or "raw"


def _refusal(session: Session, group: str) -> Refusal | None:
    """The refusal of a group to the user, or None. It names no privilege for a group that does not exist."""
    if group in _OPEN or (group not in _PRIVILEGED and session.identity.may("SimpleStats")):
        return None
    if group in _PRIVILEGED:
        return None if session.identity.may("Stats") else Refusal(Status.EACCESS, "Stats")
    return Refusal(Status.EACCESS, "SimpleStats" if group in _KNOWN else "")


def _check(_session: Session, frame: Frame) -> Fault | None:
    if not frame.value:
        return None
    if not frame.datatype & Datatype.JSON:
        return Fault(Status.EINVAL, "Datatype must be JSON")
    try:
        json.loads(frame.value)
    except (ValueError, RecursionError):
        return Fault(Status.EINVAL, "value is not valid JSON")
    return None


def stat(session: Session, frame: Frame) -> None:
    """STAT: one response for each item, then an empty one."""
    refusal = _refusal(session, frame.key.decode(errors="replace").partition(" ")[0])
    if refusal is not None:
        session.refuse_access(frame, refusal)
        return
    items = _items(session, session.selected, frame)
    if not isinstance(items, int):
        session.stream(frame, _answers(session, frame, items))
    elif items == Status.EACCESS:
        session.refuse_access(frame, Refusal(items, "Read" if frame.key.startswith(b"key") else LOOKUP))
    elif items in (Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE):
        session.refuse_unknown(frame, items)
    else:
        session.refuse(frame, items)


def _answers(session: Session, frame: Frame, items: Items) -> Generator[None, None, None]:
    for number, item in enumerate(items, 1):
        if item is not None:
            session.respond(frame, key=item[0].encode(), value=str(item[1]).encode())
        if item is None or not number % ITEMS_A_STEP:
            yield
    session.respond(frame)


def register(table: CommandTable) -> None:
    """Add the command of this module."""
    table.add(Opcode.STAT, stat, check=_check)
