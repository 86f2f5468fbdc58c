"""The client's spans: their names and attributes, by OpenTelemetry's semantic conventions.

Requests to documents are database calls (`db.*`), a stream is a messaging consumer (`messaging.*`). Seqnos and vbuckets
have no names there, so theirs begin with `dcpstream`. Documents and keys are never in a span.

Source: opentelemetry.io/docs/specs/semconv, database and messaging spans.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractContextManager, aclosing, closing
from typing import Any, Protocol, TypeVar

from dcpstream.client.machine.values import RollbackEvent
from dcpstream.client.settings.options import ConnectOptions
from dcpstream.model import NodeAddress
from dcpstream.runtime import Clock
from dcpstream.runtime.tracing import Flow, Span, Value, is_tracing, span

_SYSTEM = "couchbase"


class Delivered(Protocol):
    """What a stream delivers."""

    @property
    def item(self) -> Any:
        """Rows, changes or events; None for a rollback."""
        ...

    @property
    def rollback(self) -> RollbackEvent | None:
        """Set for a rollback."""
        ...


D = TypeVar("D", bound=Delivered)


def connect_span(options: ConnectOptions) -> AbstractContextManager[Span]:
    """The first question to a cluster, with the connections and logins that it needs."""
    if not is_tracing():
        return span("connect", {})
    bucket = options.login.bucket
    attributes = {"db.system.name": _SYSTEM, "db.namespace": bucket, "db.operation.name": "connect"}
    return span(f"connect {bucket}", attributes | _address(options.seeds))


def documents_span(
    operation: str, bucket: str, collection: str | None, seeds: tuple[NodeAddress, ...]
) -> AbstractContextManager[Span]:
    """One call of a `KvClient`: get, set, delete, or mutate for several kinds of writes."""
    if not is_tracing():
        return span(operation, {})
    place = collection or "_default._default"
    attributes = {"db.system.name": _SYSTEM, "db.namespace": bucket, "db.operation.name": operation}
    return span(f"{operation} {place}", attributes | {"db.collection.name": place} | _address(seeds))


def set_batch_size(one: Span, count: int) -> None:
    """Say how many documents a call was for; the conventions name it only for two and more."""
    if count > 1:
        one.set_attribute("db.operation.batch.size", count)


def traced(deliveries: Generator[D, None, None], options: ConnectOptions, clock: Clock) -> Generator[D, None, None]:
    """The same deliveries, with a span for the stream, and one for each delivery and rollback in it."""
    if not is_tracing():
        return deliveries
    return _traced(deliveries, options, clock)


def _traced(deliveries: Generator[D, None, None], options: ConnectOptions, clock: Clock) -> Generator[D, None, None]:
    bucket, attributes = _stream(options)
    flow = Flow(f"stream {bucket}", attributes)
    with flow.lasting(), closing(deliveries):
        asked_ns = clock.time_ns()
        for delivery in deliveries:
            _tell(flow, delivery, bucket, attributes, asked_ns)
            yield delivery
            asked_ns = clock.time_ns()


def traced_async(deliveries: AsyncGenerator[D, None], options: ConnectOptions, clock: Clock) -> AsyncGenerator[D, None]:
    """As `traced`, for asyncio."""
    if not is_tracing():
        return deliveries
    return _traced_async(deliveries, options, clock)


async def _traced_async(
    deliveries: AsyncGenerator[D, None], options: ConnectOptions, clock: Clock
) -> AsyncGenerator[D, None]:
    bucket, attributes = _stream(options)
    flow = Flow(f"stream {bucket}", attributes)
    with flow.lasting():
        async with aclosing(deliveries):
            asked_ns = clock.time_ns()
            async for delivery in deliveries:
                _tell(flow, delivery, bucket, attributes, asked_ns)
                yield delivery
                asked_ns = clock.time_ns()


def _stream(options: ConnectOptions) -> tuple[str, dict[str, Value]]:
    bucket = options.login.bucket
    attributes: dict[str, Value] = {
        "messaging.system": _SYSTEM,
        "messaging.destination.name": bucket,
        "messaging.operation.name": "stream",
        "messaging.operation.type": "receive",
    }
    return bucket, attributes | _address(options.seeds)


def _tell(flow: Flow, delivery: Delivered, bucket: str, attributes: dict[str, Value], asked_ns: int) -> None:
    rollback = delivery.rollback
    if rollback is not None:
        more: dict[str, Value] = {
            "messaging.operation.name": "rollback",
            "dcpstream.vbucket": rollback.vbid,
            "dcpstream.rollback.from_seqno": str(rollback.from_seqno),
            "dcpstream.rollback.to_seqno": str(rollback.to_seqno),
        }
        flow.step(f"rollback {bucket}", attributes | more, asked_ns)
        return
    item = delivery.item
    count = getattr(item, "num_rows", None)
    if count is None:
        count = len(getattr(item, "events", item))
    named: dict[str, Value] = {
        "messaging.operation.name": "receive",
        "messaging.batch.message_count": int(count),
    }
    flow.step(f"receive {bucket}", attributes | named, asked_ns)


def _address(seeds: tuple[NodeAddress, ...]) -> dict[str, Value]:
    """The first node of the connection string: a stream has several."""
    return {"server.address": seeds[0].host, "server.port": seeds[0].kv_port} if seeds else {}
