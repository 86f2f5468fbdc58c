"""A program that stands for Python, and forks one of Spark's processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.chaos.preload import MODULE, python_command
from lab.layout import python_path

pytest.importorskip("pyspark")


@pytest.fixture(scope="module")
def program() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="preload-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", python_path())
        with python_command(Path(folder)) as path:
            yield str(path)


def test_it_is_python(program: str) -> None:
    done = subprocess.run(
        [program, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == sys.executable


@pytest.mark.timeout(120)
def test_it_forks_a_process_of_spark(program: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as jvm:
        environment = {
            **os.environ,
            "PYTHON_WORKER_FACTORY_PORT": str(jvm.getsockname()[1]),
            "PYTHON_WORKER_FACTORY_SECRET": "secret",
        }
        asking = subprocess.Popen([program, "-m", MODULE], env=environment)
        connection, _ = jvm.accept()
        assert connection.recv(100).endswith(b"secret")
        asking.kill()
        asking.wait()
        assert connection.recv(100) == b"", "the fork ends with the process that it stands for"
        connection.close()


@pytest.mark.timeout(120)
def test_it_passes_the_end_on(program: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON_WORKER")}
    done = subprocess.run([program, "-m", MODULE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "python_streaming_source_runner" in done.stderr
