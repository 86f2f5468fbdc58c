"""Tables and checkpoint in an object store, by Hadoop's s3a: a pipeline, a failover and a purge beside moto's server.

It needs the program `moto_server` (`pip install 'moto[server]'`, in an environment of its own), and fetches the jars of
Hadoop's s3a once, 690 MB.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcpstream_spark import jars
from dcpstream_spark.jars import Jar
from lab.interop.running import free_ports
from lab.tools.patience import patient
from tests.kit.waiting import wait_until
from tests.spark.test_sessions import SERIES, play, require_delta

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1500)]

S3A = {
    "4.2": [
        Jar(
            "org.apache.hadoop",
            "hadoop-aws",
            "3.5.0",
            "66bd9eefb938b1a1657487324b63c13df2d8b17164a1dd24e0ef37b905bc5baa",
        ),
        Jar(
            "software.amazon.awssdk",
            "bundle",
            "2.35.4",
            "db4b55f24ad1b4e70f17eb1717a4de76a8dadc5a27d764be7c44ff67b2c1c677",
        ),
        Jar(
            "software.amazon.s3.analyticsaccelerator",
            "analyticsaccelerator-s3",
            "1.3.1",
            "4959a9747cbb479c73c3ffbcd479bee5b014f8b2880994585a8693fb9d24675e",
        ),
    ]
}
"""Series of Spark → the jars that its Hadoop needs for s3a."""


@contextlib.contextmanager
def object_store() -> Iterator[str]:
    """The URL of a server with the bucket `lake`."""
    program = shutil.which("moto_server")
    if program is None:
        pytest.skip("no moto_server: pip install 'moto[server]' in an environment of its own, whose bin is on the PATH")
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(
        [program, "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: made_bucket(f"{url}/lake"), "the object store does not answer")
        yield url
    finally:
        server.kill()
        server.wait()


def made_bucket(url: str) -> bool:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=patient(5)) as answer:
            return answer.status == 200
    except OSError:
        return False


def test_a_pipeline_in_an_object_store(tmp_path: Path) -> None:
    if SERIES not in S3A:
        pytest.skip(f"the jars of s3a are not listed for Spark {SERIES}")
    with object_store() as url:
        files = [require_delta(), *map(str, jars.resolve(S3A[SERIES]))]
        play("s3", tmp_path, f"{','.join(files)}@{url}", "pipeline", "purged")
