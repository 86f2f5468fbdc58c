"""The end of a Python worker, as users see it. The processes here look like Spark's: `python -m pyspark.…`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from dcpstream.errors import DcpstreamError
from dcpstream_spark.worker import called_by_spark, given_to_spark, leave_if_spark_is_gone
from lab.tools.patience import patient

PREPARED = """
import os, signal, sys
from dcpstream.errors import DcpstreamError
from dcpstream_spark.worker import given_to_spark, leave_if_spark_is_gone, called_by_spark

def numbers():
    for n in range(10**6):
        yield n
"""


def worker(
    tmp_path: Path, code: str, *, package: str = "pyspark", module: str = "a_worker"
) -> subprocess.CompletedProcess[str]:
    """Run code as the main module of a package, as Spark runs its workers."""
    directory = tmp_path / package
    directory.mkdir()
    (directory / f"{module}.py").write_text(PREPARED + code)
    (directory / "__init__.py").touch()
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-m", f"{package}.{module}"]
    environ = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run(command, capture_output=True, text=True, timeout=patient(60), check=False, env=environ)


RAISES = """
try:
    with called_by_spark():
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


FREEZES = """
import gc
before = gc.get_freeze_count()
{call}
print(gc.get_freeze_count() > before + 1_000)
"""
CALL = "with called_by_spark(): pass"


@pytest.mark.parametrize("call", [CALL, "next(given_to_spark(numbers()))"])
def test_the_first_call_in_a_worker_excludes_its_modules_from_collection(tmp_path: Path, call: str) -> None:
    assert worker(tmp_path, FREEZES.format(call=call)).stdout == "True\n"


def test_making_the_source_is_such_a_call(tmp_path: Path) -> None:
    # The package that stands for Spark's would hide Spark's own, which the source needs.
    code = (
        "import importlib.machinery\n"
        "from dcpstream_spark.data_source import DcpDataSource\n"
        "__spec__ = importlib.machinery.ModuleSpec('pyspark.a_worker', None)\n"
    )
    done = worker(tmp_path, code + FREEZES.format(call="DcpDataSource({})"), package="of_a_user")
    assert done.stdout == "True\n"


def test_a_further_call_excludes_nothing_more(tmp_path: Path) -> None:
    call = "before = gc.get_freeze_count()\nkept = [[] for _ in range(5_000)]\n"
    assert worker(tmp_path, CALL + FREEZES.format(call=call + CALL)).stdout == "False\n"


def test_a_program_of_the_user_keeps_its_garbage_collection(tmp_path: Path) -> None:
    assert worker(tmp_path, FREEZES.format(call=CALL), package="of_a_user").stdout == "False\n"


# The end of a worker as in Spark's daemon: what is left is flushed, and a failure is reported.
DAEMON = """
read, write = os.pipe()
os.close(read)
out = os.fdopen(write, "wb")
rows = given_to_spark(numbers())

def worker():
    try:
        for n in rows:
            out.write(b"x")
            out.flush()
    finally:
        try:
            out.flush()
        except Exception:
            if os.environ.get("NOT_SET"):
                raise
            print("the report", file=sys.stderr)
            os._exit(3)
"""


def test_a_read_that_spark_ends_early_ends_the_worker_without_a_word(tmp_path: Path) -> None:
    done = worker(tmp_path, DAEMON + "worker()\n", module="daemon")
    assert (done.returncode, done.stderr) == (1, "")


# What Spark's own daemon does with a worker that has done its work, when the session stops.
STOPPED = """
import socket, sys
import pyspark.daemon
__spec__.name = "pyspark.daemon"
{work}
sys.argv = ["daemon", "pyspark.sql.worker.lookup_data_sources"]
ours, sparks = socket.socketpair()
sparks.close()
pyspark.daemon.worker(ours, True)
"""


@pytest.mark.parametrize("work", ["import pyspark_dcpstream", "with called_by_spark(): pass", None])
def test_a_worker_without_work_ends_without_a_word_when_the_session_stops(tmp_path: Path, work: str | None) -> None:
    """Spark looks for formats, makes the source and plans in such workers, and keeps them for the next time."""
    done = worker(tmp_path, STOPPED.format(work=work), package="spark_itself")
    if work is None:
        assert "BrokenPipeError" in done.stderr, "without ours, Spark's worker prints a traceback"
    else:
        assert (done.returncode, done.stderr) == (1, "")


def test_in_a_program_of_the_user_the_broken_pipe_is_reported(tmp_path: Path) -> None:
    done = worker(tmp_path, DAEMON + "worker()\n", package="of_a_user", module="daemon")
    assert (done.returncode, done.stderr) == (3, "the report\n")


def test_every_other_broken_pipe_is_an_error_as_usual(tmp_path: Path) -> None:
    code = DAEMON + (
        "def elsewhere():\n"
        "    try:\n"
        "        os.write(write, b'x')\n"
        "    except BrokenPipeError:\n"
        "        os.environ.get('NOT_SET')\n"
        "        return 'an error'\n"
        "next(rows)\n"
        "print(elsewhere(), flush=True)\n"
        "os._exit(0)\n"
    )
    assert worker(tmp_path, code, module="daemon").stdout == "an error\n"


@pytest.mark.parametrize("error", ["EOFError", "BrokenPipeError", "ConnectionResetError"])
def test_a_stream_reader_leaves_when_spark_has_closed_its_socket(tmp_path: Path, error: str) -> None:
    assert worker(tmp_path, f"try:\n    raise {error}\nfinally:\n    leave_if_spark_is_gone()\n").stderr == ""


def test_a_stream_reader_that_fails_otherwise_reports_it(tmp_path: Path) -> None:
    assert "KeyError" in worker(tmp_path, "try:\n    raise KeyError\nfinally:\n    leave_if_spark_is_gone()\n").stderr


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
    with pytest.raises(DcpstreamError) as raised, called_by_spark():
        raise error from KeyError()
    assert raised.value is error
    assert isinstance(error.__cause__, KeyError)
    leave_if_spark_is_gone()
