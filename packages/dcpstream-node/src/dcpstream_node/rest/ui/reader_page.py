"""The clients that read, and the content of the page of one DCP connection: its streams and its flow control."""

from __future__ import annotations

from dcpstream.dcp.consumer.connection import ConsumerConnection
from dcpstream.dcp.consumer.stream import ConsumerStream
from dcpstream.dcp.producer.connection import ProducerConnection
from dcpstream.dcp.producer.stream import ProducerStream
from dcpstream.model import MAX_SEQNO
from dcpstream.pages.markup import (
    NONE,
    Cell,
    Row,
    counter,
    duration,
    empty,
    heads,
    link,
    meter,
    number,
    path,
    plural,
    section,
    size,
    small,
    state,
    table,
    text,
    tiles,
)
from dcpstream.pages.plots import Series, plots
from dcpstream_node.dcp.stats import remaining_of
from dcpstream_node.engine import Bucket
from dcpstream_node.rest.ui.readers import Reader, ReadingClient, clients

MAX_READERS_SHOWN = 200
"""Largest number of DCP connections in the table, because people cannot read more."""
MAX_STREAMS_SHOWN = 64
"""Largest number of streams in the table: those with the most to send."""
NEARLY_FULL = 0.8
"""Share of the reader's buffer from which its meter warns: it acknowledges at a fifth."""

_STATES = {
    "pending": ("begins", "idle"),
    "backfilling": ("reads history", "warning"),
    "in-memory": ("follows", ""),
    "takeover-send": ("hands over", "warning"),
    "takeover-wait": ("hands over", "warning"),
    "dead": ("ended", "idle"),
}
_NO_READERS = "Nobody streams from this node."
_CLIENTS = heads(
    "Client", "Bucket", "#Streams", "#Reading history", "#Items sent", "#Items/s", "#Bytes sent", "#Behind", "#Buffer"
)
_STREAMS = heads("vBucket", "State", "#Sent up to", "#Newest", "#Behind", "#Items sent", "#From", "#To", "Collections")
_COPIES = heads("vBucket", "State", "#Received up to")


# -------------------------------------------------------------------------------------------------------- many readers


def clients_table(readers: list[Reader], *, has_bucket: bool) -> str:
    """The clients, each with its connections below it.

    Args:
        has_bucket: whether the column of the bucket is shown.
    """
    found = clients(readers)
    if not found:
        return section("readers", "Readers", empty(_NO_READERS))
    shown, rows = 0, []
    for client in found:
        if shown >= MAX_READERS_SHOWN:
            break
        rows.append(_client_row(client, has_bucket=has_bucket))
        shown += len(client.readers)
    columns = [column for column in _CLIENTS if has_bucket or column.name != "Bucket"]
    note = f"The first {shown:,} of {plural(len(readers), 'connection')}." if shown < len(readers) else ""
    return table("readers", "Readers", columns, rows, _NO_READERS, note=note)


def _client_row(client: ReadingClient, *, has_bucket: bool) -> Row:
    seen = [reader.seen for reader in client.readers]
    links = " ".join(
        f"<li>{link(path('ui', 'buckets', client.bucket, 'readers', reader.seen.name), text(reader.title))}</li>"
        for reader in client.readers[:MAX_READERS_SHOWN]
    )
    who = f"{text(client.user)} at {text(client.host)}" if client.user else text(client.host)
    name = f'{text(client.program)}{small(who)}<ul class="links" aria-label="Connections">{links}</ul>'
    sent = sum(each.documents_sent for each in seen)
    sends = any(each.kind == "producer" for each in seen)
    cells: list[Cell | str] = [
        Cell(name, f"{client.program} {client.host}"),
        link(path("ui", "buckets", client.bucket), text(client.bucket)),
        number(sum(each.streams for each in seen)),
        number(sum(each.backfilling for each in seen)) if sends else NONE,
        number(sent) if sends else NONE,
        counter(f"client-{client.key}", sent) if sends else NONE,
        size(sum(each.bytes_sent for each in seen)) if sends else NONE,
        number(sum(each.items_remaining for each in seen)) if sends else NONE,
        _buffer(sum(each.unacked_bytes for each in seen), sum(each.buffer_bytes for each in seen)),
    ]
    if not has_bucket:
        del cells[1]
    return Row(client.key, cells)


def _buffer(unacked_bytes: int, buffer_bytes: int) -> Cell | str:
    """The full share of the readers' buffers."""
    if not buffer_bytes:
        return NONE
    share = unacked_bytes / buffer_bytes
    bar = meter(share, f"{share:.0%} of the buffer", is_critical=share >= NEARLY_FULL)
    return Cell(f"{share:.0%}{small(f'of {size(buffer_bytes).html}')}{bar}", share)


# ---------------------------------------------------------------------------------------------------------- one reader


def reader_content(bucket: Bucket, reader: Reader, now: float) -> str:
    """The content of a connection's page."""
    machine = bucket.dcp_sessions[reader.seen.name].dcp
    if isinstance(machine, ProducerConnection):
        return _producer(bucket, reader, machine, now)
    assert isinstance(machine, ConsumerConnection), "a summary is of one of the two"
    return _consumer(reader, machine, now)


def _facts(reader: Reader, opened_at: float, now: float) -> str:
    who = f"user {text(reader.seen.user)} at {text(reader.seen.peer)}" if reader.seen.user else text(reader.seen.peer)
    agent = f" · agent <code>{text(reader.seen.agent)}</code>" if reader.seen.agent else ""
    name = f"<code>{text(reader.seen.name)}</code>"
    return f'<p class="facts">{name} · {who} · open for {duration(now - opened_at)}{agent}</p>'


def _producer(bucket: Bucket, reader: Reader, machine: ProducerConnection, now: float) -> str:
    seen, settings = reader.seen, machine.settings
    window = machine.window
    streams = sorted(machine.streams(), key=lambda stream: (-remaining_of(stream), stream.vbid))
    waits = state("its buffer is full", "warning") if window.is_full else state("takes messages")
    buffer = _buffer(seen.unacked_bytes, seen.buffer_bytes)
    noop = f"every {settings.noop_interval_s:g} s" if settings.noop_enabled else "off"
    note = ""
    if len(streams) > MAX_STREAMS_SHOWN:
        note = f"The {MAX_STREAMS_SHOWN} with the most to send, of {len(streams):,}."
    return "\n".join(
        (
            _facts(reader, machine.opened_at, now),
            tiles(
                (
                    ("Streams", f"{seen.streams:,}", f"{seen.backfilling:,} read history"),
                    ("Items sent", f"{seen.documents_sent:,}", size(seen.bytes_sent).html),
                    ("Behind", f"{seen.items_remaining:,}", "seqnos not sent yet"),
                    (
                        "Flow control",
                        buffer.html if isinstance(buffer, Cell) else "off",
                        waits if window.is_enabled else "the reader asked for none",
                    ),
                    ("Last sent", duration(now - machine.last_sent_at), "ago"),
                    ("Last heard of", duration(now - machine.last_received_at), f"ago · NOOP {noop}"),
                )
            ),
            plots(
                Series("Items sent per second", "sent", seen.documents_sent),
                Series("Bytes sent per second", "bytes", seen.bytes_sent, is_bytes=True),
            ),
            table(
                "streams",
                "Streams",
                _STREAMS,
                [_stream(bucket, stream) for stream in streams[:MAX_STREAMS_SHOWN]],
                "It has no stream open.",
                note=note,
            ),
        )
    )


def _stream(bucket: Bucket, stream: ProducerStream) -> Row:
    terms, at = stream.terms, stream.at
    name, kind = _STATES[at.phase.shown]
    behind = remaining_of(stream)
    ends = terms.accepted.end_seqno
    stream_id = "" if stream.stream_id is None else small(f"stream id {stream.stream_id}")
    here = f"{path('ui', 'buckets', bucket.name)}?vbucket={stream.vbid}#vbucket"
    return Row(
        f"{stream.vbid}-{stream.stream_id}",
        (
            Cell(link(here, str(stream.vbid)) + stream_id, stream.vbid),
            state(name, kind),
            number(at.sent_seqno),
            number(terms.view.high_seqno),
            Cell(f'<span class="{"behind" if behind else ""}">{behind:,}</span>', behind),
            number(at.messages_sent - at.events_sent),
            number(terms.accepted.start_seqno),
            Cell("no end", float(MAX_SEQNO)) if ends >= MAX_SEQNO else number(ends),
            _wanted(bucket, stream),
        ),
    )


def _wanted(bucket: Bucket, stream: ProducerStream) -> str:
    wanted = stream.terms.wanted
    if wanted.scope_id is not None:
        names = [scope.name for scope in bucket.manifest.scopes if scope.scope_id == wanted.scope_id]
        return f"scope {text(names[0] if names else hex(wanted.scope_id))}"
    if wanted.collection_ids is None:
        return "all" if stream.terms.form.collections else "_default"
    known = bucket.manifest.collection_names()
    return ", ".join(
        text(".".join(known[number])) if number in known else f"{number:#x}" for number in sorted(wanted.collection_ids)
    )


def _consumer(reader: Reader, machine: ConsumerConnection, now: float) -> str:
    seen = reader.seen
    buffer = _buffer(seen.unacked_bytes, seen.buffer_bytes)
    streams = sorted(machine.streams.values(), key=lambda stream: stream.vbid)
    note = f"The first {MAX_STREAMS_SHOWN} of {len(streams):,}." if len(streams) > MAX_STREAMS_SHOWN else ""
    return "\n".join(
        (
            _facts(reader, machine.opened_at, now),
            tiles(
                (
                    ("Streams", f"{seen.streams:,}", "into this node"),
                    ("Buffer", buffer.html if isinstance(buffer, Cell) else "off", "received, not acknowledged"),
                )
            ),
            table("streams", "Streams", _COPIES, [_copy(s) for s in streams[:MAX_STREAMS_SHOWN]],
                  "It has no stream open.", note=note),
        )
    )  # fmt: skip


def _copy(stream: ConsumerStream) -> Row:
    name = stream.state.value
    kind = "idle" if name == "dead" else ""
    return Row(str(stream.vbid), (number(stream.vbid), state(name, kind), number(stream.last_seqno)))
