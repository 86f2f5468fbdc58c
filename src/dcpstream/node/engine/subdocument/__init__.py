"""The sub-document API: lookups and changes of parts of documents and of their extended attributes.

`paths` reads paths, `scanner` finds places in JSON texts, `edits` changes texts there, `attributes` knows about
extended attributes, `specs` reads and checks requests, `execution` carries one out on one document. None of them knows
connections or the store.
"""

from __future__ import annotations

from dcpstream.node.engine.subdocument.attributes import (
    SYSTEM_BYTES_MAX,
    Origin,
    has_valid_xattrs,
    is_system,
    system_bytes,
)
from dcpstream.node.engine.subdocument.execution import Document, Outcome, execute, template
from dcpstream.node.engine.subdocument.specs import (
    COMMANDS,
    KINDS,
    SPECS_MAX,
    DocFlag,
    RefusedError,
    Request,
    read_request,
)

__all__ = [
    "COMMANDS",
    "KINDS",
    "SPECS_MAX",
    "SYSTEM_BYTES_MAX",
    "DocFlag",
    "Document",
    "Origin",
    "Outcome",
    "RefusedError",
    "Request",
    "execute",
    "has_valid_xattrs",
    "is_system",
    "read_request",
    "system_bytes",
    "template",
]
