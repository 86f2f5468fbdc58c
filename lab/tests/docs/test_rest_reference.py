"""The pages about the management port and the metrics name everything that is there, and nothing else."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any, cast

from dcpstream_node.prometheus import METRICS
from dcpstream_node.rest import Management
from dcpstream_node.rest.bucket_form import read_form, settings_json
from dcpstream_node.rest.site import ANYBODY
from tests.kit.engine import engine_of

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
ROW = re.compile(r"^\| ([A-Z]+) \| `([^`]+)` \| ([^|]+) \|", re.MULTILINE)


def test_every_page_of_the_management_port_is_described() -> None:
    async def make() -> Management:
        return Management(engine_of(), cast("Any", None), lambda: None)

    management = asyncio.run(make())
    there = {(route.method, route.path, route.needs or "nobody asks") for route in management.routes}
    assert len(there) == len(management.routes), "each once"
    described = ROW.findall((REFERENCE / "rest.md").read_text(encoding="utf-8"))
    assert set(described) == there
    assert len(described) == len(there)
    assert {route.path for route in management.routes if route.needs == ANYBODY} == {"/health", "/versions"}


def test_every_field_that_is_shown_can_be_given_and_is_described() -> None:
    text = (REFERENCE / "rest.md").read_text(encoding="utf-8")
    settings = read_form({"ramQuotaMB": "1024", "storageBackend": "magma"}).settings
    for field in {*settings_json(settings)} - {"quota", "replicaIndex"}:
        assert f"`{field}`" in text, field


def test_every_metric_is_described() -> None:
    text = (REFERENCE / "metrics.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(kv_\w+)` \| (\w+) \|", text, re.MULTILINE))
    shown = {f"{name}_total" if info.kind == "counter" else name: info.kind for name, info in METRICS.items()}
    assert rows == shown
    for info in METRICS.values():
        assert info.help in text
