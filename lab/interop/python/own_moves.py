"""Our own client while the nodes of its cluster come, are killed and are replaced: writes, reads and changes."""

from __future__ import annotations

import argparse
import threading
import time

from common import Part, begin
from moving import KEYS, PATIENCE_S, PAUSE_S, Load

import dcpstream
from dcpstream.client import Change, KvClient, RollbackEvent, StreamOptions
from dcpstream.client.kv.writes import DocumentWriter, Durability, Write, WriteOp
from dcpstream.client.settings.options import access
from dcpstream.errors import ConnectionLost, NotMyVbucket, StatusError, TemporaryFailure
from dcpstream.wire import Status

COLLECTION = "shop.orders"
DURABLE_RETRY_S = 0.05
"""Short, because a durable write is impossible until a failed node is replaced."""


class Impossible(Exception):
    """A durable write was repeated until the limit."""


class Follower:
    """Keeps every version; what a rollback takes back it forgets. The client resumes streams by itself."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._client = dcpstream.Client(
            options.connect,
            username=options.user,
            password=options.password,
            bucket=options.bucket,
        )
        self._versions: dict[bytes, list[Change]] = {}
        self._last: dict[int, int] = {}
        self._lock = threading.Lock()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for change in self._client.changes(StreamOptions(collections=[COLLECTION], on_rollback=self._take_back)):
                with self._lock:
                    last = self._last.get(change.vbid, 0)
                    assert change.seqno > last, f"vbucket {change.vbid}: seqno {change.seqno} after {last}"
                    self._last[change.vbid] = change.seqno
                    if change.op in ("mutation", "deletion", "expiration"):
                        self._versions.setdefault(change.key, []).append(change)
        except BaseException as error:
            self.error = error

    def _take_back(self, event: RollbackEvent) -> None:
        with self._lock:
            for key, versions in self._versions.items():
                kept = [each for each in versions if each.vbid != event.vbid or each.seqno <= event.to_seqno]
                self._versions[key] = kept
            self._last[event.vbid] = min(self._last.get(event.vbid, 0), event.to_seqno)

    def documents(self) -> dict[str, int]:
        """The documents that the reader holds."""
        if self.error is not None:
            raise self.error
        with self._lock:
            newest = {key: versions[-1] for key, versions in self._versions.items() if versions}
        return {key.decode(): int(each.value) for key, each in newest.items() if each.op == "mutation"}


def parts(options: argparse.Namespace) -> list[Part]:
    """Writes through a rebalance, a failover, and a rebalance; then the comparison of what was followed."""
    kv = KvClient(options.connect, options.user, options.password, options.bucket, collection=COLLECTION)
    given = access(options.connect, options.user, options.password, options.bucket)
    writer = DocumentWriter(given, durability=Durability.MAJORITY, retry_timeout_s=DURABLE_RETRY_S)
    follower = Follower(options)

    def put(key: str, number: int, is_durable: bool) -> None:
        if not is_durable:
            kv.set(key, str(number))
            return
        try:
            outcomes = writer.write([Write(WriteOp.UPSERT, key.encode(), b"%d" % number, COLLECTION)])
        except StatusError as error:
            if error.status == Status.DURABILITY_IMPOSSIBLE:
                raise Impossible(key) from error
            raise
        assert outcomes == [None], f"{key}: {outcomes}"

    def get(key: str) -> int | None:
        found = kv.get(key)
        return None if found is None else int(found.value)

    def compare() -> None:
        keys = [f"{kind}:{number}" for kind in ("durable", "plain") for number in range(KEYS)]
        expected = {key: number for key in keys if (number := get(key)) is not None}
        end = time.monotonic() + PATIENCE_S
        while (found := follower.documents()) != expected:
            assert time.monotonic() < end, f"followed {found}, the bucket has {expected}"
            time.sleep(PAUSE_S)

    load = Load(put, get, (ConnectionLost, NotMyVbucket, TemporaryFailure), Impossible)
    return [*load.parts(), ("streams are resumed, and every change comes once", compare)]


if __name__ == "__main__":
    begin(parts)
