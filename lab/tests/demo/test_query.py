from __future__ import annotations

import json

import pytest

from dcpstream_demo import query
from dcpstream_spark.tables import BatchReport, FoldReport, RollbackReport

WRAPPED = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/x/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/x/reading.py", line 99, in _control_row
dcpstream.errors.ConnectTimeout: no node could be reached
\tat org.apache.spark.Something(Something.scala:1)
"""


def test_root_cause_is_ours_if_there_is_one() -> None:
    assert query.root_cause(RuntimeError(WRAPPED)) == "ConnectTimeout: no node could be reached"


def test_root_cause_of_others_is_the_last_line_of_python() -> None:
    text = WRAPPED.replace("dcpstream.errors.ConnectTimeout: no node could be reached", "OverflowError: too large")
    assert query.root_cause(RuntimeError(text)) == "OverflowError: too large"
    assert query.root_cause(RuntimeError("[CANNOT] do that\nmore")) == "[CANNOT] do that"
    assert query.root_cause(RuntimeError()) == "RuntimeError"


def test_batches_are_reported_as_json_with_64_bit_numbers_as_texts(capsys: pytest.CaptureFixture[str]) -> None:
    rollback = RollbackReport(vbucket=3, from_seqno=9, to_seqno=4, old_vbuuid=2**63, new_vbuuid=7)
    query.report_batch(BatchReport(batch_id=5, rows=10, rollbacks=(rollback,)))
    event = json.loads(capsys.readouterr().out)
    assert event["event"] == "batch"
    assert event["rollbacks"][0]["old_vbuuid"] == str(2**63)


def test_folds_are_reported_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    query.report_fold(FoldReport(5, documents=8, removed=1, restored=0, current_rows=9, fold_s=0.25))
    event = json.loads(capsys.readouterr().out)
    assert event == {"event": "fold", "upto": 5, "documents": 8, "removed": 1, "seconds": 0.25}
