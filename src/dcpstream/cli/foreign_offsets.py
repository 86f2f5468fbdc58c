"""Saved positions in the form of other readers: Kafka Connect's Couchbase connector, and go-dcp. Pure functions.

Kafka Connect: the JSON of its REST calls `GET` and `PATCH /connectors/NAME/offsets`. The connector keeps a position for
each vbucket under {bucket, partition, connector}; only `bySeqno` is sure to be there, the rest is newer.
Numbers are Java longs, so a vbuuid above 2^63 is negative. Source: kafka-connect-couchbase SourceOffset.java,
CouchbaseSourceTask.java; Kafka KIP-875.

go-dcp: the file of its metadata of type `file`, or the documents of type `couchbase` put together: an object with a
checkpoint for each vbucket. Source: go-dcp models/type.go, metadata/file_metadata.go.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from dcpstream.client import SavedOffset
from dcpstream.errors import OffsetError
from dcpstream.model import MAX_SEQNO, StreamOffset

Format = Literal["kafka-connect", "go-dcp"]

_JAVA_MAX = (1 << 63) - 1
_U64 = 1 << 64


def read(text: str, form: Format, bucket: str) -> dict[int, StreamOffset]:
    """The positions in a text of another reader.

    A position without the bounds of its snapshot gets bounds that hold for every history, with an open end. Complete
    them from the bucket (`complete`): sent as they are, they cost a rollback.

    Args:
        text: JSON.
        form: whose.
        bucket: positions of others are left out; only Kafka Connect names it.

    Raises: OffsetError: it is not in that form; says what.
    """
    try:
        return dict(_READERS[form](json.loads(text), bucket))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        what = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        raise OffsetError(f"this is no checkpoint of {form}: {what}") from error


def write(
    saved: Mapping[int, SavedOffset], form: Format, bucket: str, *, connector: str | None = None, bucket_uuid: str = ""
) -> str:
    """The positions as a text for another reader.

    Args:
        saved: the records of an offset store.
        form: whose.
        bucket: its name, for Kafka Connect.
        connector: the connector's name; needed if it has couchbase.connector.name.in.offsets.
        bucket_uuid: for go-dcp, which begins anew if the bucket has another one.

    Raises: OffsetError: a rollback of a vbucket is not finished, which other readers cannot note down.
    """
    unfinished = sorted(vbid for vbid, record in saved.items() if record.is_rolling_back)
    if unfinished:
        raise OffsetError(
            f"the rollback of vbuckets {', '.join(map(str, unfinished))} is not finished. Read on with these positions "
            "first (dcpstream stream --on-rollback rewind), and export them then"
        )
    offsets = {vbid: saved[vbid].offset for vbid in sorted(saved)}
    if form == "kafka-connect":
        name = {} if connector is None else {"connector": connector}
        rows = [
            {"partition": {"bucket": bucket, "partition": str(vbid), **name}, "offset": _to_kafka(offset)}
            for vbid, offset in offsets.items()
        ]
        return json.dumps({"offsets": rows}, indent=2)
    documents = {str(vbid): _to_go_dcp(offset, bucket_uuid) for vbid, offset in offsets.items()}
    return json.dumps(documents, indent=2)


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
                None if end is None else int(end) % _U64,
                int(offset.get("collectionsManifestUid", 0)) % _U64,
            ),
        )


def _to_kafka(offset: StreamOffset) -> dict[str, int]:
    end = MAX_SEQNO if offset.snapshot_end is None else offset.snapshot_end
    return {
        "bySeqno": offset.seqno,
        "vbuuid": _signed(offset.vbuuid),
        "snapshotStartSeqno": offset.snapshot_start,
        "snapshotEndSeqno": _signed(end),
        "collectionsManifestUid": _signed(offset.manifest_uid),
    }


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
                None if end is None else int(end),
            ),
        )


def _to_go_dcp(offset: StreamOffset, bucket_uuid: str) -> dict[str, Any]:
    end = MAX_SEQNO if offset.snapshot_end is None else offset.snapshot_end
    return {
        "checkpoint": {
            "snapshot": {"startSeqno": offset.snapshot_start, "endSeqno": end},
            "vbuuid": offset.vbuuid,
            "seqno": offset.seqno,
        },
        "bucketUuid": bucket_uuid,
    }


_READERS: Mapping[Format, Callable[[Any, str], Iterator[tuple[int, StreamOffset]]]] = {
    "kafka-connect": _of_kafka,
    "go-dcp": _of_go_dcp,
}
