"""The wheel and the sdist, built and installed as users do."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lab.layout import PACKAGES, ROOT
from lab.tools.packages import CHECKS, TIMEOUT_S, requirements, size_mb
from lab.tools.patience import patient


def test_every_extra_has_a_program_that_uses_it() -> None:
    wanted = set(PACKAGES)
    for project in PACKAGES:
        text = (ROOT / "packages" / project / "pyproject.toml").read_text(encoding="utf-8")
        extras = tomllib.loads(text)["project"]["optional-dependencies"]
        wanted |= {f"{project}[{extra}]" for extra in extras}
    assert set(CHECKS) == wanted


def test_pip_gets_the_wheels_of_what_is_installed() -> None:
    wheels = {name: Path(f"/wheels/{name}.whl") for name in PACKAGES}
    assert requirements("pytest", wheels) == ["pytest"]
    assert requirements("dcpstream[arrow]", wheels) == ["dcpstream[arrow] @ file:///wheels/dcpstream.whl"]
    assert requirements("dcpstream-node[tls]", wheels) == [
        "dcpstream-node[tls] @ file:///wheels/dcpstream-node.whl",
        "dcpstream @ file:///wheels/dcpstream.whl",
    ]


def test_the_size_leaves_out_what_an_empty_environment_has(tmp_path: Path) -> None:
    for name in ("pip/a.py", "pip-24.dist-info/b", "numpy/c.so", "numpy/__pycache__/d.pyc"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(1_000_000))
    assert size_mb(tmp_path) == 1.0


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_the_core_is_installed_and_used() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lab.tools.packages", "dcpstream"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=patient(400),
        check=False,
    )
    if "No matching distribution" in done.stderr:
        pytest.skip("no package registry can be reached")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("packages: ok\n")
