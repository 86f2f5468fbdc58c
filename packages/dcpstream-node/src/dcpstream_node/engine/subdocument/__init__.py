"""The sub-document API: lookups and changes of parts of documents and of their extended attributes.

`specs` reads a request and checks it: the result is a `Request` of several `Spec`s. `execution` carries the request out
on a `Document`, a copy of the stored one in pieces, and returns an `Outcome`. For each spec it parses the path
(`paths`), finds the place in the JSON text (`scanner`) and changes the text there (`edits`). `attributes` has the rules
of extended attributes: names, binary values, macros, and virtual attributes, which are made from an `Origin`.

The package knows neither connections nor the store: `handlers/subdoc` fetches documents and stores outcomes.
"""

from __future__ import annotations

from dcpstream_node.engine.subdocument.attributes import (
    SYSTEM_BYTES_MAX,
    Origin,
    has_valid_xattrs,
    system_bytes,
)
from dcpstream_node.engine.subdocument.execution import Document, Outcome, execute, template
from dcpstream_node.engine.subdocument.specs import (
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
    "read_request",
    "system_bytes",
    "template",
]
