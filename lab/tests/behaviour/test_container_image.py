"""The image of a node: what its build takes from the repository, and a container of it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcpstream.client.kv.client import KvClient
from dcpstream_node.commands.node import node_command
from lab.tools.patience import patient
from tests.kit.sdk import check_program
from tests.kit.waiting import wait_until

ROOT = Path(__file__).parents[3]
FILE = ROOT / "examples/container/Containerfile"
LINES = FILE.read_text().splitlines()
BUILD_S, CALL_S = patient(600.0), patient(60.0)
PASSWORD = "secret-2013"
KV_PORT, MGMT_PORT = 11210, 8091


def test_the_build_gets_all_that_the_wheels_are_made_of_and_nothing_else() -> None:
    first, *rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert first == "*"
    given = [rule[1:] for rule in rules if rule.startswith("!")]
    assert all((ROOT / path).exists() for path in given)
    # The packages that the image installs, and the kernel's sources, which lie outside of theirs.
    assert given == ["native", "packages/dcpstream", "packages/dcpstream-node"]
    assert "packages/*/tests" in rules


def test_the_command_of_the_image_is_one_that_the_program_knows() -> None:
    (entry,) = [json.loads(line.removeprefix("ENTRYPOINT ")) for line in LINES if line.startswith("ENTRYPOINT ")]
    assert entry[:2] == ["dcpstream", "node"]
    given = node_command.make_context("node", [*entry[2:], "--data", "/data"]).params
    assert (given["host"], given["port"], given["mgmt_port"]) == ("0.0.0.0", KV_PORT, MGMT_PORT)


class Containers:
    """The image in a container engine.

    Attributes:
        engine: the command, `docker` or `podman`.
        image, volume: their names.
        kv, mgmt: published ports.
    """

    def __init__(self, engine: str) -> None:
        name = f"dcpstream-test-{uuid.uuid4().hex[:8]}"
        self.engine, self.image, self.volume = engine, name, name
        self.kv, self.mgmt = _free_ports(2)

    def call(self, *arguments: str, timeout_s: float = CALL_S) -> subprocess.CompletedProcess[str]:
        # Images of the other format have no health check.
        environment = os.environ | {"BUILDAH_FORMAT": "docker"}
        return subprocess.run(
            [self.engine, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False, env=environment
        )

    def must(self, *arguments: str, timeout_s: float = CALL_S) -> str:
        done = self.call(*arguments, timeout_s=timeout_s)
        assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout.strip()

    @contextlib.contextmanager
    def running(self) -> Iterator[str]:
        """A container that serves, with its data in the volume; gives its name."""
        name = f"{self.image}-{uuid.uuid4().hex[:8]}"
        ports = ["-p", f"127.0.0.1:{self.kv}:{KV_PORT}", "-p", f"127.0.0.1:{self.mgmt}:{MGMT_PORT}"]
        outer = f"external=127.0.0.1,kv={self.kv},mgmt={self.mgmt}"
        environment = ["-e", f"DCPSTREAM_PASSWORD={PASSWORD}"]
        try:
            self.must(
                *("run", "--detach", "--name", name, *ports, "-v", f"{self.volume}:/data", *environment, self.image),
                *("--data", "/data", "--alternate-address", outer),
            )
            wait_until(self._is_healthy, f"{name} did not become healthy")
            yield name
        finally:
            self.call("rm", "--force", name)

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.mgmt}/health", timeout=CALL_S) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError):
            return False

    def address(self) -> str:
        return f"couchbase://127.0.0.1:{self.kv}?network=external"


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


@pytest.fixture(scope="module")
def containers() -> Iterator[Containers]:
    engines = [name for name in ("docker", "podman") if shutil.which(name)]
    working = [
        name for name in engines if subprocess.run([name, "info"], capture_output=True, check=False).returncode == 0
    ]
    if not working:
        pytest.skip(f"no container engine works here (found: {', '.join(engines) or 'none'})")
    images = Containers(working[0])
    (base,) = {line.split()[1] for line in LINES if line.startswith("FROM ")}
    if images.call("image", "inspect", base).returncode and images.call("pull", base, timeout_s=BUILD_S).returncode:
        pytest.skip(f"the image {base} is not here and cannot be pulled")
    images.must("build", "--tag", images.image, "--file", str(FILE), str(ROOT), timeout_s=BUILD_S)
    yield images
    images.call("volume", "rm", images.volume)
    images.call("image", "rm", images.image)


@pytest.mark.slow
@pytest.mark.timeout(BUILD_S)
def test_a_container_serves_ends_cleanly_and_leaves_its_data_in_the_volume(containers: Containers) -> None:
    with containers.running() as name:
        with KvClient(containers.address(), "Administrator", PASSWORD, "default") as kv:
            kv.set("k", b'"kept"')
        assert containers.must("exec", name, "id", "-u") == "1000"
        containers.must("exec", name, "python", "-c", "import dcpstream._kernel, cryptography")
        containers.must("stop", "--time", "60", name)
        assert containers.must("inspect", "--format", "{{.State.ExitCode}}", name) == "0"
    with containers.running(), KvClient(containers.address(), "Administrator", PASSWORD, "default") as kv:
        assert kv.get("k").value == b'"kept"'


@pytest.mark.slow
@pytest.mark.timeout(BUILD_S)
def test_the_health_check_distinguishes_a_node_that_serves_from_none(containers: Containers) -> None:
    text = containers.must("image", "inspect", "--format", "{{json .Config.Healthcheck.Test}}", containers.image)
    kind, *command = json.loads(text)
    assert kind == "CMD"
    with containers.running() as name:
        containers.must("exec", name, *command)
    without = containers.call("run", "--rm", "--entrypoint", command[0], containers.image, *command[1:])
    assert without.returncode == 1
    assert "refused" in without.stderr


@pytest.mark.slow
@pytest.mark.timeout(BUILD_S)
def test_without_a_password_the_container_ends_and_says_what_to_do(containers: Containers) -> None:
    done = containers.call("run", "--rm", containers.image)
    assert done.returncode == 2
    assert "DCPSTREAM_PASSWORD" in done.stderr


SDK_PROGRAM = """
import sys
from datetime import timedelta
from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.options import ClusterOptions

address, password = sys.argv[1:]
cluster = Cluster.connect(address, ClusterOptions(PasswordAuthenticator("Administrator", password)))
cluster.wait_until_ready(timedelta(seconds=60))
collection = cluster.bucket("default").default_collection()
collection.upsert("sdk", {"n": 1})
assert collection.get("sdk").content_as[dict] == {"n": 1}
cluster.close()
print("OK")
"""


@pytest.mark.slow
@pytest.mark.timeout(BUILD_S)
@pytest.mark.interop
@pytest.mark.skipif(importlib.util.find_spec("couchbase") is None, reason="the couchbase SDK is not installed")
def test_the_official_sdk_writes_and_reads_through_published_ports(containers: Containers) -> None:
    with containers.running():
        check_program(SDK_PROGRAM, containers.address(), PASSWORD)
