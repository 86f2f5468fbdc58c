"""The spans of a test, by the SDK of OpenTelemetry; afterwards it is not loaded any more, and nothing is traced."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest


class Spans:
    """The spans that have ended."""

    def __init__(self, exporter: Any) -> None:
        self._exporter = exporter

    def take(self) -> list[Any]:
        """Those since the last call, in the order of their ends."""
        found = list(self._exporter.get_finished_spans())
        self._exporter.clear()
        return found


_API = "opentelemetry.trace"
_loaded: dict[str, ModuleType] = {}
"""The interface of OpenTelemetry, which is out of sight between the tests."""


@contextmanager
def captured_spans() -> Iterator[Spans]:
    """Load the SDK, and keep spans in memory."""
    sys.modules.update(_loaded)
    provided = pytest.importorskip("opentelemetry.sdk.trace", reason="opentelemetry-sdk is not installed (make setup)")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    exporter = memory.InMemorySpanExporter()
    provider = provided.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    api: Any = sys.modules[_API]
    get_tracer, api.get_tracer = api.get_tracer, provider.get_tracer
    try:
        yield Spans(exporter)
    finally:
        api.get_tracer = get_tracer
        _loaded[_API] = sys.modules.pop(_API)
