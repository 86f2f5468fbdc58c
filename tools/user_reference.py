"""Write docs/reference/spark.md and cli.md from the code; `--check` only compares."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import click  # noqa: E402

from dcpstream.cli.app import cli  # noqa: E402
from dcpstream.columnar import CHANGE_SCHEMA  # noqa: E402
from dcpstream.model import Op  # noqa: E402
from dcpstream.spark.options import option_table  # noqa: E402
from tools.pages import publish  # noqa: E402

DOCS = ROOT / "docs" / "reference"
WIDTH = 100
SPARK_INTRODUCTION = """# Spark source

The format `dcp`, for `spark.read` and `spark.readStream`. It needs no registration: Spark finds it once dcpstream is
installed with the extra `spark`. This page is generated from the code.

<!-- not run -->
```python
changes = (
    spark.readStream.format("dcp")
    .option("connectionString", "couchbase://127.0.0.1")
    .option("username", "Administrator")
    .option("password", "password")
    .option("bucket", "default")
    .load()
)
```

## Options

Names may be written in any case. An option that is unknown, or has a value that it may not have, is refused before
anything is opened.

| option | means | default |
| --- | --- | --- |
"""
COLUMNS_INTRODUCTION = """
## Columns

All columns are nullable; `columns` chooses some of them, in the order given.

| column | type | holds |
| --- | --- | --- |
"""
COLUMNS = {
    "key": "the document's key",
    "value": "the body, inflated and without xattrs; null for a deletion without a body",
    "_change_type": "`insert`, `update_postimage` or `delete`; null for a control row",
    "_commit_version": "the seqno",
    "_commit_timestamp": "when it was changed, from the CAS",
    "op": "`mutation`, `deletion`, `expiration`, or what a control row says",
    "scope": "name of the scope",
    "collection": "name of the collection",
    "vbucket": "the shard",
    "vbuuid": "the branch of the vbucket's history, as text, since it is an unsigned 64-bit number",
    "seqno": "the change's number within the vbucket",
    "rev": "how many times the document was changed, as the node counts",
    "cas": "the document's version (the 64 bits of an unsigned number)",
    "flags": "as the writer set them",
    "datatype": "bits: 1 JSON, 2 snappy, 4 xattrs, as stored",
    "expiry": "when it will expire; of a deletion, when it was deleted; null for never",
    "xattrs": "extended attributes, name to JSON text",
}
CONTROL_ROWS = """
## Control rows

A row that is no change of a document has neither `key` nor `_change_type`; `value` is JSON. It stands between the rows
of its vbucket where the history has it.

| `op` | says | what a table of documents does |
| --- | --- | --- |
"""
OPS = {
    Op.ROLLBACK: ("the vbucket's history went back: see below", "removes the vbucket's rows above `to_seqno`"),
    Op.COLLECTION_CREATED: (
        "the collection begins; earlier rows of that name are of another one",
        "removes the collection's rows of that vbucket at or below `seqno`",
    ),
    Op.COLLECTION_DROPPED: (
        "the collection is gone with its documents",
        "removes the collection's rows of that vbucket at or below `seqno`",
    ),
    Op.COLLECTION_FLUSHED: (
        "the collection was emptied",
        "removes the collection's rows of that vbucket at or below `seqno`",
    ),
    Op.COLLECTION_MODIFIED: ("a setting of the collection changed", "nothing"),
    Op.SCOPE_CREATED: ("the scope begins", "nothing"),
    Op.SCOPE_DROPPED: ("the scope is gone; each of its collections is told, too", "nothing"),
}
COLLECTIONS = """
### Scopes and collections

`scope` and `collection` name what the row is about (`collection` is null for a scope). `value` holds
`{"scope_id": 8, "collection_id": 9, "max_ttl": 0, "manifest_uid": "5"}`, as far as that applies. A change of the
bucket's collections is an event in each vbucket, so **each vbucket tells it once, for itself**.

The node cannot be asked for the events of a collection that is gone. If one of the option `collections` was dropped
since the last batch, the source tells that by the bucket's manifest: then `seqno` lies above all rows of the collection
and below those of a later one of that name. A query goes on with the collections that are left, and follows one that is
made again under the same name, from its beginning.

A collection whose name is not known, because it was dropped before the query began, is named by its id (`0x9`).

The option `collections` takes `scope.collection`; `scope.*` or the bare name of a scope for all collections of a scope,
with those that are made later; and a bare name for a collection of the scope `_default`. A bare name that is both is
refused, but `_default` alone is the default collection.
"""
ROLLBACK = """
### Rollbacks

With `onRollback` set to `rewindAndMark`, a row with `op` = `rollback` precedes the rows of a new branch. Its `vbucket`
is the one concerned, `vbuuid` the new branch and `seqno` the one gone back to; `value` holds
`{"from_seqno": "…", "to_seqno": "…", "old_vbuuid": "…", "new_vbuuid": "…"}`. All rows of that vbucket with a higher
seqno that were delivered before are void, also those of an attempt of the same batch that failed. The valid ones
follow.

`from_seqno` equals `to_seqno` if the batch's start is still valid, but another branch is read than the batch was
planned on: Spark may have run the batch before, and a sink that is not transactional may have rows of that attempt. How
far those go is not known, so `from_seqno` is no bound of what is void. A sink that writes each batch in one transaction
has none of them. With `onRollback` set to `fail` it is an error, like any rollback.

With `rewindTo` set to `zero`, `to_seqno` is always 0: for tables with one version of each document. A sink that is not
transactional and carried out a rollback in an attempt that failed must begin such a vbucket anew: use `zero`.
"""
CLI_INTRODUCTION = """# Command line

Generated from the commands' own help.
"""


def spark_page() -> str:
    """The page on the Spark source."""
    options = [
        f"| `{option.name}` | {option.meaning} | {'required' if option.is_required else option.default} |"
        for option in option_table()
    ]
    columns = [f"| `{field.name}` | {field.type} | {COLUMNS[field.name]} |" for field in CHANGE_SCHEMA]
    text = SPARK_INTRODUCTION + "\n".join(options) + "\n" + COLUMNS_INTRODUCTION + "\n".join(columns) + "\n"
    return text + "\nWith `valueFormat` = `string`, `value` is a string.\n" + _control_rows() + COLLECTIONS + ROLLBACK


def _control_rows() -> str:
    rows = [f"| `{op}` | {' | '.join(OPS[op])} |" for op in Op if op.is_control]
    return CONTROL_ROWS + "\n".join(rows) + "\n"


def cli_page() -> str:
    """The page on the command line."""
    group = click.Context(cli, info_name="dcpstream", terminal_width=WIDTH)
    sections = [_help("dcpstream", group)]
    for name in cli.list_commands(group):
        command = cli.get_command(group, name)
        assert command is not None
        context = click.Context(command, parent=group, info_name=name, terminal_width=WIDTH)
        sections.append(_help(f"dcpstream {name}", context))
    return "\n".join([CLI_INTRODUCTION, *sections])


def _help(title: str, context: click.Context) -> str:
    return f"## {title}\n\n```text\n{context.get_help()}\n```\n"


def main() -> int:
    """Write the pages, or with `--check` compare them."""
    return publish({DOCS / "spark.md": spark_page(), DOCS / "cli.md": cli_page()})


if __name__ == "__main__":
    sys.exit(main())
