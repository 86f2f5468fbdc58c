"""The content of the pages of documents: a search by key, and one document with a form to change it."""

from __future__ import annotations

import json
from typing import NamedTuple

from dcpstream.model import vbucket_of_key
from dcpstream.pages.forms import Order, hidden
from dcpstream.pages.markup import (
    NONE,
    Cell,
    Column,
    Row,
    empty,
    link,
    moment,
    number,
    path,
    section,
    size,
    table,
    text,
    tiles,
)
from dcpstream.wire import Datatype, Frame, Status
from dcpstream_node.engine import Engine
from dcpstream_node.engine.cluster_config import in_url
from dcpstream_node.rest.documents import Listing, Place
from dcpstream_node.store import ItemMeta

SHOWN_BYTES_MAX = 256 * 1024
"""Largest document that is shown whole and can be edited in a browser."""
SHOWN_BINARY_BYTES = 2048
_LINE_BYTES = 16
_BLANKS = ((",", ":"), (", ", ": "))
"""Separators between items, and after names, in JSON on one line: without and with blanks."""
_KEYS = (Column("Key"), Column("vBucket", True), Column("Seqno", True), Column("Revision", True), Column("Expires"))


class Rights(NamedTuple):
    """Whether the page offers to write and to delete."""

    may_write: bool
    may_delete: bool


def documents_path(place: Place, *more: str) -> str:
    """The path of a collection's documents among the pages for people."""
    return path("ui", "buckets", place.bucket.name, "documents", place.scope, place.collection, *more)


def _rest_path(place: Place, key: str) -> str:
    names = ("scopes", place.scope, "collections", place.collection, "docs", key)
    return path("pools", "default", "buckets", place.bucket.name, *names)


def search_content(engine: Engine, place: Place, prefix: str, found: Listing) -> str:
    """A form to search, and the keys that were found."""
    here = documents_path(place)
    search = (
        f'<form method="get" action="{here}" class="row" role="search"><label>Key begins with<input name="prefix" '
        f'type="search" value="{text(prefix)}"></label><button>Search</button></form>'
    )
    go = (
        f'<form method="get" action="{here}" class="row"><label>Key<input name="key" required></label>'
        "<button>Open or make it</button></form>"
    )
    count = place.bucket.vbucket_count
    rows = []
    for raw, meta in found.rows:
        key = raw.decode(errors="replace")
        shown = link(documents_path(place, key), text(key)) if key.encode() == raw else text(key)
        vbid = vbucket_of_key(raw, count)
        expires = moment(meta.expiration) if meta.expiration else "never"
        rows.append(
            Row(raw.hex(), (Cell(shown, key), number(vbid), number(meta.seqno), number(meta.rev_seqno), expires))
        )
    note = f"The first {len(rows):,}; there are more." if found.is_cut else ""
    if len(engine.config.nodes) > 1:
        note += " Keys in the active vbuckets of this node; the other nodes have others."
    nothing = "No key begins so." if prefix else "The collection has no documents here."
    return "\n".join(
        (
            section("search", "Search", f'<div class="row">{search}{go}</div>'),
            table("keys", "Documents", _KEYS, rows, nothing, note=note.strip()),
        )
    )


def document_content(
    engine: Engine, place: Place, key: str, frame: Frame, meta: ItemMeta | None, rights: Rights, host: str
) -> str:
    """A document, or what the node said instead of it.

    Args:
        frame: the answer to GET.
        host: the host that the browser reached the node at.
    """
    vbid = vbucket_of_key(key.encode(), place.bucket.vbucket_count)
    if frame.status == Status.NOT_MY_VBUCKET:
        return empty(_elsewhere(engine, place, key, vbid, host))
    if frame.status not in (Status.SUCCESS, Status.KEY_ENOENT):
        return empty(f"The node cannot read it now (status {frame.status:#04x}).")
    is_there = frame.status == Status.SUCCESS
    parts = [_facts(frame, meta, vbid) if is_there else empty("There is no document with this key.")]
    is_editable = not is_there or _is_text(frame.value)
    if rights.may_write and is_editable:
        parts.append(section("edit", "Edit" if is_there else "Make it", _editor(place, key, frame, is_there=is_there)))
    elif is_there:
        parts.append(section("content", "Content", _shown(frame)))
    if is_there and rights.may_delete:
        sure = f"Delete the document {key}?"
        leads_to = documents_path(place)
        action = f"{_rest_path(place, key)}?cas={frame.cas}"
        form = Order(action, "Delete", done="Deleted.", sure=sure, method="DELETE", leads_to=leads_to).html()
        parts.append(section("delete", "Delete", form))
    return "\n".join(parts)


def _elsewhere(engine: Engine, place: Place, key: str, vbid: int, host: str) -> str:
    chain = place.bucket.chains()[vbid]
    if not chain or chain[0] < 0:
        return f"It belongs to vBucket {vbid}, which is active nowhere now."
    node = engine.nodes_of(place.bucket)[chain[0]]
    url = f"http://{in_url(node.host or host)}:{node.mgmt_port}"
    return f"It belongs to vBucket {vbid}: {link(text(url) + documents_path(place, key), 'the node that has it')}."


def _facts(frame: Frame, meta: ItemMeta | None, vbid: int) -> str:
    kind = "JSON" if frame.datatype & Datatype.JSON else "text" if _is_text(frame.value) else "binary"
    seqno, revision, expires = NONE, "", NONE
    if meta is not None:
        seqno, revision = f"{meta.seqno:,}", f"revision {meta.rev_seqno:,}"
        expires = moment(meta.expiration) if meta.expiration else "never"
    return tiles(
        (
            ("Size", size(len(frame.value)).html, kind),
            ("Seqno", seqno, f"of vBucket {vbid}"),
            ("Expires", expires, revision),
            ("CAS", f"<code>{frame.cas:x}</code>", f"flags {int.from_bytes(frame.extras[:4], 'big'):#x}"),
        )
    )


def _editor(place: Place, key: str, frame: Frame, *, is_there: bool) -> str:
    value = _pretty(frame) if is_there else "{}"
    flags = int.from_bytes(frame.extras[:4], "big") if is_there else 0
    fields = (
        f'<label>Content<textarea name="value" spellcheck="false">\n{text(value)}</textarea></label>'
        + hidden("cas", str(frame.cas if is_there else 0))
        + hidden("flags", str(flags))
    )
    here = documents_path(place, key)
    return Order(
        _rest_path(place, key), "Save", fields, done="Saved.", kind="main", leads_to=here, layout="wide"
    ).html()


def _pretty(frame: Frame) -> str:
    """A document's text; JSON with indents, if that changes nothing but blanks."""
    content = frame.value.decode()
    if not frame.datatype & Datatype.JSON:
        return content
    try:
        parsed = json.loads(content)
        blank_forms = (json.dumps(parsed, ensure_ascii=False, separators=between) for between in _BLANKS)
        return json.dumps(parsed, indent=2, ensure_ascii=False) if content in blank_forms else content
    except (ValueError, RecursionError):
        return content


def _shown(frame: Frame) -> str:
    if _is_text(frame.value):
        return f'<pre tabindex="0" role="region" aria-label="Content">{text(_pretty(frame))}</pre>'
    first = frame.value[:SHOWN_BINARY_BYTES]
    lines = [f"{at:06x}  {first[at : at + _LINE_BYTES].hex(' ')}" for at in range(0, len(first), _LINE_BYTES)]
    more = f"\n… and {len(frame.value) - len(first):,} bytes more" if len(frame.value) > len(first) else ""
    return f'<pre tabindex="0" role="region" aria-label="Content">{text(chr(10).join(lines) + more)}</pre>'


def _is_text(value: bytes) -> bool:
    """Whether a browser can show and edit it without a change."""
    if len(value) > SHOWN_BYTES_MAX or b"\0" in value or b"\r" in value:
        return False
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
