"""A bucket of lists for tests of the producer: slow, obvious, and itself the model that results are compared with."""

from dataclasses import dataclass, field

from dcpstream.model import FailoverLog, Manifest, SnapshotRange, VbucketState
from dcpstream.store import index_key
from dcpstream.store.index.rows import collection_of
from dcpstream.wire import Frame, decode_frame, encode_request
from dcpstream.wire.keys import leb128_encode
from dcpstream.wire.stored.block import EMPTY_BLOCK, block_of, encode_stored_deletion, encode_stored_mutation
from dcpstream.wire.system_events import encode_stored_event

UUID = 0xABCDEF012345


@dataclass
class ListVBucket:
    """A vbucket whose history is a list of (seqno, key, frame)."""

    vbid: int = 0
    state: VbucketState = VbucketState.ACTIVE
    failover_log: FailoverLog = field(default_factory=lambda: FailoverLog.of((UUID, 0)))
    memory_start_seqno: int = 1
    purge_seqno: int = 0
    persisted: int | None = None
    receiving: SnapshotRange | None = None
    rows: list = field(default_factory=list)
    gap: int = 1
    reads: int = 0
    is_receiving_initial_snapshot: bool = False
    evicted_seqno: int = 0
    checkpoints: list = field(default_factory=list)
    durability: object = None

    @property
    def high_seqno(self):
        return self.rows[-1][0] if self.rows else 0

    @property
    def persisted_seqno(self):
        return self.high_seqno if self.persisted is None else self.persisted

    @property
    def snapshot(self):
        return self.receiving or SnapshotRange(self.high_seqno, self.high_seqno)

    def high_seqno_of(self, collection_ids):
        wanted = set(collection_ids)
        return max((seqno for seqno, key, _ in self.rows if collection_of(key) in wanted), default=0)

    def set(self, key, value=b"v", *, collection_id=0, datatype=0, **fields):
        full_key, seqno = leb128_encode(collection_id) + key, self.high_seqno + self.gap
        fields = {"cas": seqno << 16, "rev_seqno": 1, "datatype": datatype} | fields
        frame = encode_stored_mutation(vbid=self.vbid, key=full_key, value=value, by_seqno=seqno, **fields)
        self.rows.append((seqno, full_key, frame))
        return seqno

    def delete(self, key, *, collection_id=0, delete_time=77):
        full_key, seqno = leb128_encode(collection_id) + key, self.high_seqno + self.gap
        frame = encode_stored_deletion(
            vbid=self.vbid, key=full_key, by_seqno=seqno, rev_seqno=2, cas=seqno << 16, delete_time=delete_time
        )
        self.rows.append((seqno, full_key, frame))
        return seqno

    def event(self, event):
        seqno = self.high_seqno + self.gap
        if not event.is_of_scope:
            self.new_checkpoint()
        frame = encode_stored_event(event, vbid=self.vbid, by_seqno=seqno)
        self.rows.append((seqno, index_key(frame), frame))
        return seqno

    def new_checkpoint(self):
        self.memory_start_seqno = self.high_seqno + 1
        self.checkpoints.append(self.memory_start_seqno)

    def checkpoint_at(self, seqno):
        return max((start for start in (*self.checkpoints, self.memory_start_seqno) if start <= seqno), default=0)

    def hold(self, seqno):
        return seqno

    def checkpoint_after(self, seqno):
        return min((start for start in self.checkpoints if start > seqno), default=None)

    def newest(self, after, end, snapshot_end):
        """Rows of after < seqno <= end that nothing up to `snapshot_end` supersedes."""
        latest = {key: seqno for seqno, key, _ in self.rows if seqno <= snapshot_end}
        return [row for row in self.rows if after < row[0] <= end and latest[row[1]] == row[0]]

    def read(self, after_seqno, end_seqno, *, snapshot_end, max_bytes):
        self.reads += 1
        out = b""
        for _, _, frame in self.newest(after_seqno, end_seqno, snapshot_end or end_seqno):
            if out and len(out) + len(frame) > max_bytes:
                break
            out += frame
        return block_of(out) if out else EMPTY_BLOCK


class ListSource:
    """A bucket of such vbuckets."""

    def __init__(self, *vbuckets, manifest=Manifest.DEFAULT):
        self.vbuckets = {vbucket.vbid: vbucket for vbucket in vbuckets}
        self.manifest = manifest
        self.vbucket_count = 1024
        self.is_short_of_memory = False
        self.allows_out_of_order = True
        self.keeps_history = False
        self.collections_without_history = frozenset()
        self.compresses_values = False

    def vbucket(self, vbid):
        return self.vbuckets.get(vbid)


def frame_of(opcode, **fields) -> Frame:
    """A request as the shell hands it over."""
    return decode_frame(encode_request(opcode, **fields))


def frames_in(pieces) -> list[Frame]:
    """All frames of what goes out."""
    data, frames, at = b"".join(pieces), [], 0
    while at < len(data):
        frames.append(decode_frame(data, at))
        at += frames[-1].size
    return frames
