"""The dashboard, the alerts and the Kubernetes example refer only to what exists."""

from __future__ import annotations

import json
import re
from pathlib import Path

from dcpstream_node.prometheus import METRICS
from dcpstream_spark.tables.monitor import _COUNTERS, _GAUGES

EXAMPLES = Path(__file__).parents[4] / "examples"
NAME = re.compile(r"\b(?:kv|dcpstream)_\w+")


def exported() -> dict[str, set[str]]:
    """The names that a node and a pipeline's monitor export, with their labels."""
    names = {f"{name}_total" if info.kind == "counter" else name: set(info.labels) for name, info in METRICS.items()}
    names |= {f"dcpstream_pipeline_{name}_total": {"pipeline"} for name, *_ in _COUNTERS}
    names |= {f"dcpstream_pipeline_{name}": {"pipeline"} for name, *_ in _GAUGES}
    return names | {"dcpstream_pipeline_state": {"pipeline", "state"}}


def expressions() -> list[tuple[str, str]]:
    """Each expression of the dashboard, with its legend."""
    dashboard = json.loads((EXAMPLES / "monitoring" / "grafana-dashboard.json").read_text(encoding="utf-8"))
    return [(target["expr"], target["legendFormat"]) for panel in dashboard["panels"] for target in panel["targets"]]


def test_a_panel_shows_what_is_exported() -> None:
    names = exported()
    for expression, legend in expressions():
        used = NAME.findall(expression)
        assert used, expression
        assert [name for name in used if name not in names] == []
        for label in re.findall(r"{{(\w+)}}", legend):
            assert all(label in names[name] for name in used), (label, expression)
        for name in used:
            is_rated = bool(re.search(r"(rate|increase)\(" + name, expression))
            assert name.endswith("_total") == is_rated, f"counters are rated: {expression}"


def test_an_alert_asks_for_what_is_exported() -> None:
    rules = (EXAMPLES / "monitoring" / "alerts.yaml").read_text(encoding="utf-8")
    asked = re.findall(r"^ +expr: (.+)$", rules, re.MULTILINE)
    assert len(asked) == rules.count("- alert:") == 5
    assert {name for expression in asked for name in NAME.findall(expression)} <= set(exported())


def test_names_follow_the_convention() -> None:
    for name in exported():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
        assert not re.search(r"_(ms|kb|mb|minutes)(_|$)", name), f"seconds and bytes: {name}"


def test_the_pod_sets_what_its_program_reads() -> None:
    pod = (EXAMPLES / "kubernetes" / "pipeline.yaml").read_text(encoding="utf-8")
    program = (EXAMPLES / "kubernetes" / "job.py").read_text(encoding="utf-8")
    given = set(re.findall(r"name: ([A-Z_]+)\b", pod))
    assert set(re.findall(r'environ\["([A-Z_]+)"\]', program)) <= given
    assert given <= set(re.findall(r'environ(?:\[|\.get\()"([A-Z_]+)"', program))
    assert f"containerPort: {re.findall(r'MONITOR_PORT., .([0-9]+)', program)[0]}" in pod
