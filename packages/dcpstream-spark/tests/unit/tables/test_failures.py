"""Failures of a query that come again, and others."""

from __future__ import annotations

import pytest

from dcpstream.errors import (
    BucketReset,
    ConfigError,
    ConnectionLost,
    FoldFailed,
    HistoryPurged,
    OffsetError,
    RollbackRequired,
    StoreError,
)
from dcpstream_spark.tables.failures import disk_full, failure_of, full_disk_explained
from tests.kit.cases import each_case

STREAM_FAILED = """\
[STREAM_FAILED] Query dcpstream /lake [id = 1, runId = 2] terminated with exception: \
[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform latestOffset: {} \
SQLSTATE: 38000 SQLSTATE: XXKST"""

CALLBACK = """\
[STREAM_FAILED] Query terminated with exception: An exception was raised by the Python Proxy. Return Message: \
Traceback (most recent call last):
  File "clientserver.py", line 644, in _call_proxy
dcpstream.errors.ConnectionLost: the node is away

During handling of the above exception, another exception occurred:

dcpstream.errors.OffsetError: the table changes holds batch 7

\tat py4j.Protocol.getReturnValue(Protocol.java:476)"""


class StreamingQueryException(Exception):
    """As Spark's: only its text is ours."""


@each_case(
    ("error", "is_final"),
    [
        (ConfigError("engine", "x", "y"), True),
        (OffsetError("damaged"), True),
        (BucketReset("flushed"), True),
        (HistoryPurged("purged"), True),
        (ConnectionLost("away"), False),
        (RollbackRequired(1, 2), False),
        (ValueError("a fault of ours"), False),
    ],
)
def test_an_error_counts_the_same_when_spark_wraps_it(error: Exception, is_final: bool) -> None:
    assert failure_of(error, {}).is_final is is_final
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    wrapped = StreamingQueryException(STREAM_FAILED.format(f"{name}: {error}"))
    assert failure_of(wrapped, {}).is_final is is_final


def test_the_sentence_is_ours() -> None:
    found = failure_of(StreamingQueryException(CALLBACK), {})
    assert (found.message, found.is_final) == ("the table changes holds batch 7", True), "the last error counts"
    text = "Python worker exited unexpectedly (crashed)"
    for described in (text, f"{text}\n=== Streaming Query ===\nIdentifier: dcpstream /lake"):
        assert failure_of(StreamingQueryException(described), {}).message == text


def test_a_rollback_is_final_if_it_must_not_happen() -> None:
    wrapped = StreamingQueryException(STREAM_FAILED.format("dcpstream.errors.RollbackRequired: vbucket 3: …"))
    assert failure_of(wrapped, {"ONROLLBACK": "Fail"}).is_final
    assert not failure_of(wrapped, {"onRollback": "rewindAndMark"}).is_final


def test_a_class_that_does_not_exist_is_no_reason_to_end() -> None:
    assert not failure_of(StreamingQueryException("dcpstream.errors.Unheard: x"), {}).is_final


class JavaError(Exception):
    """As Spark's: the causes are in the text of the stack."""

    _stackTrace = "at Delta.write\nCaused by: java.io.IOException: No space left on device\n\tat java.io"  # noqa: N815


@each_case(
    "error",
    [
        OSError(28, "No space left on device", "/tables/dcp-lease/1"),
        JavaError("Job aborted"),
        StreamingQueryException(f"Query terminated: {JavaError._stackTrace}"),
        OSError("Generic LocalFileSystem error: x: No space left on device (os error 28)"),
        OSError(122, "Disk quota exceeded"),
    ],
)
def test_a_full_disk_is_named_with_what_to_do(error: Exception) -> None:
    sentence = r"a disk is full.*(No space|quota).*Make room.*no row is lost"
    with pytest.raises(StoreError, match=sentence) as caught, full_disk_explained():
        raise error
    assert caught.value.__cause__ is error
    assert "\n" not in str(caught.value)
    found = failure_of(error, {})
    assert (found.message, found.is_final) == (str(caught.value), False)
    name = f"{StoreError.__module__}.StoreError"
    wrapped = StreamingQueryException(STREAM_FAILED.format(f"{name}: {caught.value}\n"))
    assert str(disk_full(wrapped)) == str(caught.value), "the sentence is not put into another one"


def test_an_error_of_ours_about_a_full_disk_stays() -> None:
    error = FoldFailed("the fold failed")
    error.__cause__ = OSError(28, "No space left on device")
    assert disk_full(error) is None
    assert disk_full(ValueError("x")) is None
