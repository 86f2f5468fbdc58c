"""Saved positions in the form of other readers: Kafka Connect's Couchbase connector, and go-dcp. Pure functions.

Kafka Connect: the JSON of its REST calls `GET` and `PATCH /connectors/NAME/offsets`. The connector keeps a position for
each vbucket under {bucket, partition, connector}; only `bySeqno` is sure to be there, the rest is newer.
Numbers are Java longs, so a vbuuid above 2^63 is negative. Source: kafka-connect-couchbase SourceOffset.java,
CouchbaseSourceTask.java; Kafka KIP-875. Tried with release 4.3.1 of the connector.
A connector has its name in the key only with couchbase.connector.name.in.offsets. These calls fail for such a key:
Kafka Connect compares keys as bytes, and orders three members otherwise than the connector. GET shows null then.

go-dcp: the file of its metadata of type `file`, or the documents of type `couchbase` put together: an object with a
checkpoint for each vbucket. Source: go-dcp models/type.go, metadata/file_metadata.go.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from dcpstream.errors import OffsetError
from dcpstream.model import MAX_SEQNO, StreamOffset

if TYPE_CHECKING:
    from dcpstream.client import BranchState, SavedOffset

Format = Literal["kafka-connect", "go-dcp"]

_JAVA_MAX = (1 << 63) - 1
_U64 = 1 << 64


def read(data: str | bytes, form: Format, bucket: str) -> dict[int, StreamOffset]:
    """The positions in a text of another reader.

    A position without the bounds of its snapshot gets bounds that hold for every history, with an open end. Complete
    it from the bucket (`resolved`): sent as it is, it costs a rollback.

    Args:
        data: JSON.
        form: whose.
        bucket: positions of others are left out; only Kafka Connect names it.

    Raises: OffsetError: it is not in that form; says what.
    """
    try:
        content = json.loads(data)
        found = dict(_READERS[form](content, bucket))
        is_unreadable = form == "kafka-connect" and not found and any(_is_lost(row) for row in content["offsets"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        what = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        raise OffsetError(f"this is no checkpoint of {form}: {what}") from error
    if is_unreadable:
        raise OffsetError(
            "Kafka Connect does not show the positions of a connector with couchbase.connector.name.in.offsets: each "
            "is null. Read from the beginning, or from now on (--from latest)"
        )
    return found


def write(saved: Mapping[int, SavedOffset], form: Format, bucket: str, *, bucket_uuid: str = "") -> str:
    """The positions as a text for another reader.

    Args:
        saved: the records of an offset store.
        form: whose.
        bucket: its name, for Kafka Connect.
        bucket_uuid: for go-dcp, which begins again from 0 if the bucket has another one.

    Raises: OffsetError: a rollback of a vbucket is not finished, which other readers cannot note down. Or a position
        has no end of its snapshot: any end that is surely right makes the bucket roll the other reader back to 0.
    """
    unfinished = sorted(vbid for vbid, record in saved.items() if record.is_rolling_back)
    if unfinished:
        raise OffsetError(
            f"the rollback of vbuckets {', '.join(map(str, unfinished))} is not finished. Read on with these positions "
            "first (dcpstream stream --on-rollback rewind), and export them then"
        )
    offsets = {vbid: saved[vbid].offset for vbid in sorted(saved)}
    open_ended = [vbid for vbid, offset in offsets.items() if offset.is_planned and offset.seqno]
    if open_ended:
        raise OffsetError(
            f"the positions of vbuckets {', '.join(map(str, open_ended))} lack the end of their snapshot, and another "
            "reader would begin again from 0 there. Read on with these positions first (dcpstream stream), then "
            "export them"
        )
    if form == "kafka-connect":
        rows = [
            {"partition": {"bucket": bucket, "partition": str(vbid)}, "offset": _to_kafka(offset)}
            for vbid, offset in offsets.items()
        ]
        return json.dumps({"offsets": rows}, indent=2)
    documents = {str(vbid): _to_go_dcp(offset, bucket_uuid) for vbid, offset in offsets.items()}
    return json.dumps(documents, indent=2)


def resolved(offset: StreamOffset, state: BranchState) -> StreamOffset:
    """A position that `read` returned, with what it lacks filled in from the bucket.

    A position without a branch is taken to be on the branch that the bucket writes now, if that reaches so far. Nobody
    can know better: the Kafka connector itself goes on like that with what its release 3.4.5 saved.
    """
    from dcpstream.client.machine.resume import complete

    if has_no_branch(offset) and offset.seqno <= state.high_seqno:
        offset = StreamOffset(state.vbuuid, offset.seqno, 0, None, offset.manifest_uid)
    return complete(offset, state)


def has_no_branch(offset: StreamOffset) -> bool:
    """Whether a position says how far its reader was, and not on which branch of the vbucket's history."""
    return offset.vbuuid == 0 and offset.seqno > 0


def _of_kafka(data: Any, bucket: str) -> Iterator[tuple[int, StreamOffset]]:
    for row in data["offsets"]:
        place, offset = row["partition"], row["offset"]
        if place["bucket"] != bucket or offset is None:
            continue
        seqno = int(offset["bySeqno"])
        start, end = offset.get("snapshotStartSeqno"), offset.get("snapshotEndSeqno")
        yield (
            int(place["partition"]),
            StreamOffset(
                int(offset.get("vbuuid", 0)) % _U64,
                seqno,
                0 if start is None else int(start),
                _known(end),
                int(offset.get("collectionsManifestUid", 0)) % _U64,
            ),
        )


def _is_lost(row: Any) -> bool:
    """Whether Kafka Connect knows a position and cannot find it: its key has the connector's name."""
    return row["offset"] is None and "connector" in row["partition"]


def _to_kafka(offset: StreamOffset) -> dict[str, int]:
    return {
        "bySeqno": offset.seqno,
        "vbuuid": _signed(offset.vbuuid),
        "snapshotStartSeqno": offset.snapshot_start,
        "snapshotEndSeqno": _signed(offset.snapshot_end or 0),
        "collectionsManifestUid": _signed(offset.manifest_uid),
    }


def _known(end: Any) -> int | None:
    """The end of a snapshot, of a Java long or a u64; None if it is not there, or is the mark of an unknown one."""
    number = MAX_SEQNO if end is None else int(end) % _U64
    return None if number == MAX_SEQNO else number


def _signed(number: int) -> int:
    """A u64 as a Java long."""
    return number - _U64 if number > _JAVA_MAX else number


def _of_go_dcp(data: Any, _bucket: str) -> Iterator[tuple[int, StreamOffset]]:
    for vbid, document in data.items():
        checkpoint = document["checkpoint"]
        snapshot = checkpoint.get("snapshot") or {}
        end = snapshot.get("endSeqno")
        yield (
            int(vbid),
            StreamOffset(
                int(checkpoint["vbuuid"]),
                int(checkpoint["seqno"]),
                int(snapshot.get("startSeqno", 0)),
                _known(end),
            ),
        )


def _to_go_dcp(offset: StreamOffset, bucket_uuid: str) -> dict[str, Any]:
    return {
        "checkpoint": {
            "snapshot": {"startSeqno": offset.snapshot_start, "endSeqno": offset.snapshot_end or 0},
            "vbuuid": offset.vbuuid,
            "seqno": offset.seqno,
        },
        "bucketUuid": bucket_uuid,
    }


_READERS: Mapping[Format, Callable[[Any, str], Iterator[tuple[int, StreamOffset]]]] = {
    "kafka-connect": _of_kafka,
    "go-dcp": _of_go_dcp,
}
