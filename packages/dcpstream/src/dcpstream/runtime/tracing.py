"""Spans of OpenTelemetry, in programs that use it.

A program that wants spans imports OpenTelemetry and gives it a tracer provider. This module never imports it: where the
program has not, there are no spans, and asking for one costs a look into a dictionary.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, Protocol

_API = "opentelemetry.trace"
_TRACER = "dcpstream"

Kind = Literal["client", "consumer"]
Value = str | int | bool


class Span(Protocol):
    """A span under way, which takes attributes that are known only while the work is done."""

    def set_attribute(self, name: str, value: Value) -> None:
        """Add an attribute."""
        ...


class _NoSpan:
    def set_attribute(self, name: str, value: Value) -> None:
        """Nothing to do."""


_NOTHING: AbstractContextManager[Span] = nullcontext(_NoSpan())


def is_tracing() -> bool:
    """Whether the program has loaded OpenTelemetry."""
    return _API in sys.modules


def span(name: str, attributes: Mapping[str, Value], *, kind: Kind = "client") -> AbstractContextManager[Span]:
    """A span around work; an exception is recorded in it. It is the parent of spans that begin inside.

    Args:
        name: for people, with few different values.
        attributes: by the names of OpenTelemetry's semantic conventions where there are some.
        kind: client of a request, or consumer of messages.
    """
    api = sys.modules.get(_API)
    if api is None:
        return _NOTHING
    found: AbstractContextManager[Span] = api.get_tracer(_TRACER).start_as_current_span(
        name, kind=_kind(api, kind), attributes=dict(attributes)
    )
    return found


class Flow:
    """A span of work that other code interrupts, such as a stream, with spans in it. It never becomes the current one.

    Args:
        name, attributes: as for `span`.

    Raises: AssertionError: the program has not loaded OpenTelemetry; see `is_tracing`.
    """

    def __init__(self, name: str, attributes: Mapping[str, Value]) -> None:
        self._api: Any = sys.modules.get(_API)
        assert self._api is not None, "the caller asks is_tracing"
        self._tracer = self._api.get_tracer(_TRACER)
        self._span = self._tracer.start_span(name, kind=_kind(self._api, "client"), attributes=dict(attributes))
        self._context = self._api.set_span_in_context(self._span)

    def set_attribute(self, name: str, value: Value) -> None:
        """Add an attribute."""
        self._span.set_attribute(name, value)

    def step(self, name: str, attributes: Mapping[str, Value], start_ns: int) -> None:
        """A span in the flow that began at a time, in nanoseconds since 1970, and ends now."""
        self._tracer.start_span(
            name,
            context=self._context,
            kind=_kind(self._api, "consumer"),
            attributes=dict(attributes),
            start_time=start_ns,
        ).end()

    @contextmanager
    def lasting(self) -> Iterator[None]:
        """End the span with the block; an exception is recorded in it."""
        try:
            yield
        except GeneratorExit:  # the user has enough
            raise
        except BaseException as error:
            self._span.record_exception(error)
            self._span.set_status(self._api.Status(self._api.StatusCode.ERROR, str(error)))
            raise
        finally:
            self._span.end()


def _kind(api: Any, kind: Kind) -> Any:
    return api.SpanKind.CLIENT if kind == "client" else api.SpanKind.CONSUMER
