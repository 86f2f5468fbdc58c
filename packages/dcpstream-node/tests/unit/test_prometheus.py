"""Metrics: complete, true, and readable by Prometheus' own parser."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from dcpstream_node.prometheus import METRICS, Metrics
from tests.kit.engine import Talker, engine_of


def values_of(engine) -> dict[tuple[str, ...], float]:
    """(name, *labels) → value."""
    found = {}
    for family in text_string_to_metric_families(Metrics(engine).text().decode()):
        assert family.documentation
        for sample in family.samples:
            found[(sample.name, *sample.labels.values())] = sample.value
    return found


def test_every_metric_is_there_and_no_other():
    engine = engine_of()
    Talker(engine).set("k", b"v")
    families = {family.name for family in text_string_to_metric_families(Metrics(engine).text().decode())}
    assert families == set(METRICS)
    shown = {name[0].removesuffix("_total") if METRICS.get(name[0]) is None else name[0] for name in values_of(engine)}
    assert shown == set(METRICS)
