"""What users see of the end of a Python worker. The processes here look like Spark's: `python -m pyspark.…`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from dcpstream.errors import DcpstreamError
from dcpstream.spark.worker import given_to_spark, leave_if_spark_is_gone, plain_errors
from tools.patience import patient

PREPARED = """
import os, signal, sys
from dcpstream.errors import DcpstreamError
from dcpstream.spark.worker import given_to_spark, leave_if_spark_is_gone, plain_errors

def numbers():
    for n in range(10**6):
        yield n
"""


def worker(tmp_path: Path, code: str, *, package: str = "pyspark") -> subprocess.CompletedProcess[str]:
    """Run code as the main module of a package, as Spark runs its workers."""
    module = tmp_path / package / "a_worker.py"
    module.parent.mkdir()
    module.write_text(PREPARED + code)
    (module.parent / "__init__.py").touch()
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-m", f"{package}.a_worker"]
    environ = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run(command, capture_output=True, text=True, timeout=patient(60), check=False, env=environ)


RAISES = """
try:
    with plain_errors():
        raise {error}("the sentence")
except Exception as error:
    print(type(error).__name__, os.environ.get("SPARK_HIDE_TRACEBACK"))
"""


def test_an_error_of_ours_leaves_a_worker_without_its_traceback(tmp_path: Path) -> None:
    assert worker(tmp_path, RAISES.format(error="DcpstreamError")).stdout.split() == ["DcpstreamError", "1"]


def test_a_fault_keeps_its_traceback(tmp_path: Path) -> None:
    assert worker(tmp_path, RAISES.format(error="KeyError")).stdout.split() == ["KeyError", "None"]


def test_a_program_of_the_user_is_left_alone(tmp_path: Path) -> None:
    done = worker(tmp_path, RAISES.format(error="DcpstreamError"), package="of_a_user")
    assert done.stdout.split() == ["DcpstreamError", "None"]


PIPE = """
read, write = os.pipe()
os.close(read)
"""
WRITES = PIPE + "for n in given_to_spark(numbers()):\n    os.write(write, b'x')\n"


def test_a_read_that_spark_ends_early_ends_the_worker_without_a_word(tmp_path: Path) -> None:
    done = worker(tmp_path, WRITES)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")


def test_in_a_program_of_the_user_a_closed_pipe_is_an_error(tmp_path: Path) -> None:
    assert "BrokenPipeError" in worker(tmp_path, WRITES, package="of_a_user").stderr


def test_a_closed_connection_of_the_source_is_an_error_as_usual(tmp_path: Path) -> None:
    code = PIPE + (
        "def rows():\n"
        "    for n in range(3):\n"
        "        try:\n"
        "            os.write(write, b'x')\n"
        "        except BrokenPipeError:\n"
        "            yield n\n"
        "print(list(given_to_spark(rows())), signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN)\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
    )
    assert worker(tmp_path, code).stdout.split("\n") == ["[0, 1, 2] True", "set()", ""]


def test_a_stream_reader_leaves_when_spark_has_closed_its_socket(tmp_path: Path) -> None:
    code = "try:\n    raise {}\nfinally:\n    leave_if_spark_is_gone()\n"
    assert worker(tmp_path, code.format("EOFError")).stderr == ""
    (tmp_path / "again").mkdir()
    assert "KeyError" in worker(tmp_path / "again", code.format("KeyError")).stderr


def test_the_rows_are_closed_when_nobody_wants_more() -> None:
    closed = []

    def rows() -> Generator[int, None, None]:
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    given = given_to_spark(rows())
    assert next(given) == 1
    given.close()
    assert closed


def test_outside_of_spark_an_error_is_unchanged() -> None:
    error = DcpstreamError("x")
    with pytest.raises(DcpstreamError) as raised, plain_errors():
        raise error from KeyError()
    assert raised.value is error
    assert isinstance(error.__cause__, KeyError)
    leave_if_spark_is_gone()
