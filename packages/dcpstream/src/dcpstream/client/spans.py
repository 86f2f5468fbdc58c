"""The client's spans: their names and attributes, by OpenTelemetry's semantic conventions.

Requests to documents are database calls (`db.*`), a stream is a messaging consumer (`messaging.*`). Seqnos and vbuckets
have no names there, so theirs begin with `dcpstream`. Documents and keys are never in a span.

Source: opentelemetry.io/docs/specs/semconv, database and messaging spans.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractContextManager, aclosing, closing
from typing import Any, assert_never

from dcpstream.client.machine.nodes.nodes import Nodes
from dcpstream.client.machine.nodes.releases import Releases
from dcpstream.client.machine.values import CollectionEvents, R, ReaderOutput, RollbackEvent, RowsRead
from dcpstream.client.settings.options import ConnectOptions
from dcpstream.model import NodeAddress
from dcpstream.runtime import Clock
from dcpstream.runtime.tracing import Flow, Span, Value, is_tracing, span

_SYSTEM = "couchbase"

RELEASE = "dcpstream.server.release"
"""The attribute with the releases of the nodes that were reached; the conventions have none."""


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


def describe_call(one: Span, count: int, releases: Releases) -> None:
    """Say how many documents a call was for, if several, and the servers' releases."""
    if not is_tracing():
        return
    one.set_attribute(RELEASE, str(releases))
    if count > 1:
        one.set_attribute("db.operation.batch.size", count)


def traced(
    outputs: Generator[ReaderOutput[R], None, None], nodes: Nodes, clock: Clock
) -> Generator[ReaderOutput[R], None, None]:
    """The same outputs of a reader, with a span for the stream, and one for each output in it."""
    if not is_tracing():
        return outputs
    return _traced(outputs, nodes, clock)


def _traced(
    outputs: Generator[ReaderOutput[R], None, None], nodes: Nodes, clock: Clock
) -> Generator[ReaderOutput[R], None, None]:
    bucket, attributes = _stream(nodes.options)
    flow = Flow(f"stream {bucket}", attributes)
    with flow.lasting(), closing(outputs):
        asked_ns = clock.time_ns()
        for output in outputs:
            flow.set_attribute(RELEASE, str(nodes.releases))
            _report(flow, output, bucket, attributes, asked_ns)
            yield output
            asked_ns = clock.time_ns()


def traced_async(
    outputs: AsyncGenerator[ReaderOutput[R], None], nodes: Nodes, clock: Clock
) -> AsyncGenerator[ReaderOutput[R], None]:
    """As `traced`, for asyncio."""
    if not is_tracing():
        return outputs
    return _traced_async(outputs, nodes, clock)


async def _traced_async(
    outputs: AsyncGenerator[ReaderOutput[R], None], nodes: Nodes, clock: Clock
) -> AsyncGenerator[ReaderOutput[R], None]:
    bucket, attributes = _stream(nodes.options)
    flow = Flow(f"stream {bucket}", attributes)
    with flow.lasting():
        async with aclosing(outputs):
            asked_ns = clock.time_ns()
            async for output in outputs:
                flow.set_attribute(RELEASE, str(nodes.releases))
                _report(flow, output, bucket, attributes, asked_ns)
                yield output
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


def _report(flow: Flow, output: ReaderOutput[Any], bucket: str, attributes: dict[str, Value], asked_ns: int) -> None:
    match output:
        case RowsRead(rows):
            count = getattr(rows, "num_rows", None)
            _report_received(flow, bucket, attributes, asked_ns, len(rows) if count is None else int(count))
        case CollectionEvents(events):
            _report_received(flow, bucket, attributes, asked_ns, len(events))
        case RollbackEvent():
            more: dict[str, Value] = {
                "messaging.operation.name": "rollback",
                "dcpstream.vbucket": output.vbid,
                "dcpstream.rollback.from_seqno": str(output.from_seqno),
                "dcpstream.rollback.to_seqno": str(output.to_seqno),
            }
            flow.step(f"rollback {bucket}", attributes | more, asked_ns)
        case _:
            assert_never(output)


def _report_received(flow: Flow, bucket: str, attributes: dict[str, Value], asked_ns: int, count: int) -> None:
    named: dict[str, Value] = {"messaging.operation.name": "receive", "messaging.batch.message_count": count}
    flow.step(f"receive {bucket}", attributes | named, asked_ns)


def _address(seeds: tuple[NodeAddress, ...]) -> dict[str, Value]:
    """The first node of the connection string: a stream has several."""
    return {"server.address": seeds[0].host, "server.port": seeds[0].kv_port} if seeds else {}
