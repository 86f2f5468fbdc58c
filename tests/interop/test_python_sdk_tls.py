"""The official Python SDK over TLS: trust, passwords, certificates of users, and certificates that are no good."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcpstream_node import Node
from dcpstream_node.shell.certificates import Authority
from dcpstream_node.shell.tls import TlsSettings
from lab.tools.patience import patient
from tests.kit.sdk import needs_sdk, run_program

CHILD = Path(__file__).with_name("sdk_tls_child.py")
USERS = {"ann": {"password": None, "roles": ["bucket_full_access[default]"]}}

pytestmark = needs_sdk


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node(vbuckets=64, password="secret-word", users=USERS, tls=TlsSettings(client_auth="optional")) as running:
        yield running


def sdk(node: Node, trusted: Path, expected: str, *who: str) -> str:
    """The outcome that the SDK reports."""
    done = run_program(CHILD, f"{node.tls_connection_string}?tls_verify=peer", str(trusted), expected, *who)
    assert done.stdout, done.stderr
    return done.stdout.splitlines()[-1]


def written(directory: Path, name: str, content: str) -> Path:
    file = directory / name
    file.write_text(content)
    return file


def test_with_a_password(node: Node, tmp_path: Path) -> None:
    trusted = written(tmp_path, "ca.pem", node.ca_certificate)
    assert sdk(node, trusted, "served", "Administrator", "secret-word") == "served"


@pytest.mark.slow
def test_with_a_certificate(node: Node, tmp_path: Path) -> None:
    trusted = written(tmp_path, "ca.pem", node.ca_certificate)
    certificate, key = node.client_certificate("ann")
    files = written(tmp_path, "ann.pem", certificate), written(tmp_path, "ann.key", key)
    assert sdk(node, trusted, "served", "certificate", *map(str, files)) == "served"


@pytest.mark.slow
def test_a_node_that_is_not_trusted_gets_no_password(node: Node, tmp_path: Path) -> None:
    trusted = written(tmp_path, "ca.pem", Authority().certificate)
    assert sdk(node, trusted, "refused", "Administrator", "secret-word") == "refused"


def openssl(directory: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True, timeout=patient(60))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not installed")
def test_a_certificate_that_somebody_made_for_themselves_is_refused(node: Node, tmp_path: Path) -> None:
    trusted = written(tmp_path, "ca.pem", node.ca_certificate)
    names = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=ann")
    openssl(tmp_path, "req", "-x509", *names, "-keyout", "own.key", "-out", "own.pem", "-days", "10")
    files = tmp_path / "own.pem", tmp_path / "own.key"
    assert sdk(node, trusted, "refused", "certificate", *map(str, files)) == "refused"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not installed")
def test_openssl_verifies_the_nodes_certificate(node: Node, tmp_path: Path) -> None:
    trusted = written(tmp_path, "ca.pem", node.ca_certificate)
    for name in ("-verify_hostname localhost", "-verify_ip 127.0.0.1"):
        options = [*name.split(), "-verify_return_error", "-brief"]
        command = ["openssl", "s_client", "-connect", f"127.0.0.1:{node.tls_port}", "-CAfile", str(trusted), *options]
        done = subprocess.run(
            command,
            input="",
            capture_output=True,
            text=True,
            timeout=patient(60),
            check=False,
        )
        assert "Verification: OK" in done.stderr, done.stderr
