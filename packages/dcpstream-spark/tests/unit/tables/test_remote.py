"""A pipeline over Spark Connect without Spark: the mailbox, and the function of each batch as it is sent.

The whole is played by `tests/spark/session_stories.py`.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dcpstream.errors import LeaseRefused
from dcpstream.runtime import SystemClock
from dcpstream_spark import Pipeline
from dcpstream_spark.tables.engine import FoldReport
from dcpstream_spark.tables.lease import Lease, Terms
from dcpstream_spark.tables.progress import BatchReport, RollbackReport
from dcpstream_spark.tables.remote import REPORTS_KEPT, Mailbox, RemoteBatches
from dcpstream_spark.tables.small_files import LocalFiles


class Conf:
    """The configuration of a session, which client and server have in common."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def get(self, name: str, default: str | None) -> str | None:
        return self._values.get(name, default)

    def set(self, name: str, value: str) -> None:
        self._values[name] = value

    def unset(self, name: str) -> None:
        self._values.pop(name, None)


class World:
    """A client's mailbox and the function of each batch, with a pipeline that reports what a test wants."""

    def __init__(self) -> None:
        self.session: Any = SimpleNamespace(conf=Conf())
        self.reports: list[BatchReport | FoldReport] = []
        self.mailbox = Mailbox(cast("Any", self.session), "/data", self.reports.append)
        self.batches = pickle.loads(pickle.dumps(RemoteBatches(Pipeline, "/data", {"options": {}}, Terms(1, "me"))))
        self.rows = 0
        self.batches._pipeline = SimpleNamespace(apply=self._apply, totals=lambda: {"rows": self.rows})
        self.fails = False

    def _apply(self, _frame: Any, batch_id: int) -> None:
        assert self.mailbox.is_cut, "a batch that is being written is not known"
        if self.fails:
            raise LeaseRefused("lost")
        self.rows += 10
        rollbacks = (RollbackReport(1, 2, 3, 4, 2**64 - 1),)
        self.batches._report("batch", BatchReport(batch_id=batch_id, rows=10, rollbacks=rollbacks))
        self.batches._report("fold", FoldReport(batch_id, 1, 2, 3, 4))

    def write(self, batch_id: int) -> None:
        self.batches(SimpleNamespace(sparkSession=self.session), batch_id)


def test_each_report_arrives_once_and_whole() -> None:
    world = World()
    world.write(7)
    for _ in range(2):
        world.mailbox.look()
    rollbacks = (RollbackReport(1, 2, 3, 4, 2**64 - 1),)
    assert world.reports == [BatchReport(batch_id=7, rows=10, rollbacks=rollbacks), FoldReport(7, 1, 2, 3, 4)]
    world.write(8)
    world.mailbox.look()
    assert [getattr(one, "batch_id", None) for one in world.reports] == [7, None, 8, None]
    assert world.mailbox.totals() == {"rows": 20}


def test_the_mailbox_is_bounded() -> None:
    world = World()
    for batch_id in range(REPORTS_KEPT):
        world.write(batch_id)
    world.mailbox.look()
    assert len(world.reports) == REPORTS_KEPT
    assert world.mailbox.totals() == {"rows": 10 * REPORTS_KEPT}


def test_a_batch_that_did_not_end_is_known() -> None:
    world = World()
    world.write(0)
    assert not world.mailbox.is_cut
    world.fails = True
    with pytest.raises(LeaseRefused):
        world.write(1)
    assert world.mailbox.is_cut
    world.mailbox.empty()
    assert not world.mailbox.is_cut
    assert world.mailbox.totals() == {}


def test_the_server_writes_only_with_the_lease_of_its_client(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    one, other = (Lease(lambda: files, "/data", SystemClock(), wait=lambda _: None) for _ in range(2))
    one.acquire(lambda: True)
    verify = one.terms.verifier(lambda: files, "/data")
    verify()
    one.renew()
    verify()
    one.release()
    with pytest.raises(LeaseRefused, match="kept by nobody, and no longer by the client"):
        verify()
    other.acquire(lambda: True)
    with pytest.raises(LeaseRefused, match="kept by process"):
        verify()
    other.release()
