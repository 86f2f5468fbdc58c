"""The tutorial about tables, run as written: its programs in their order, against the node that it starts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.waiting import wait_until
from tools.patience import patient

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorials" / "bucket-to-table.md"
BLOCK = re.compile(r"^```(?P<kind>python|text)\n(?P<body>.*?)^```\n", re.DOTALL | re.MULTILINE)
TIMEOUT_S = patient(150)

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[str]:
    """The connection string of the tutorial's node, on free ports."""
    ready = tmp_path / "ready.json"
    command = [sys.executable, "-m", "dcpstream.cli", "node", "--data", "shop", "--port", "0", "--mgmt-port", "0"]
    process = subprocess.Popen([*command, "--ready-file", str(ready)], cwd=tmp_path, env=environment())
    try:
        wait_until(ready.exists, f"the node writes {ready.name}")
        yield f"couchbase://127.0.0.1:{json.loads(ready.read_text())['kv']}"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(TIMEOUT_S)


def test_the_programs_print_what_is_written(node: str, tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert re.search(r"^dcpstream node --data shop$", text, re.MULTILINE)
    programs: dict[str, str] = {}
    latest = ""
    outputs = 0
    for match in BLOCK.finditer(text):
        before = text[: match.start()]
        if match["kind"] == "python":
            latest = re.findall(r"Save this as `([a-z]+\.py)`", before)[-1]
            programs[latest] = match["body"].replace("couchbase://127.0.0.1", node)
            continue
        again = re.findall(r"run `([a-z]+\.py)` again", before[before.rfind("```") :])
        name = again[-1] if again else latest
        (tmp_path / name).write_text(programs[name], encoding="utf-8")
        done = subprocess.run(
            [sys.executable, name],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == match["body"].strip()
        outputs += 1
    assert outputs == 5
