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
from dcpstream.spark.options import OPTIONS  # noqa: E402
from dcpstream.spark.write_options import CONNECTION_OPTIONS, WRITE_OPTIONS  # noqa: E402
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

Names are not case-sensitive. An unknown option or an invalid value is refused before a connection is opened.

| option | means | default |
| --- | --- | --- |
"""
COLUMNS_INTRODUCTION = """
## Columns

All columns are nullable. The option `columns` selects some of them, in the given order.

| column | type | holds |
| --- | --- | --- |
"""
COLUMNS = {
    "key": "the document's key",
    "value": "the body, inflated and without xattrs; null for a deletion without a body",
    "_change_type": "`insert`, `update_postimage` or `delete`; null for a control row",
    "_commit_version": "the seqno",
    "_commit_timestamp": "time of the change, from the CAS",
    "op": "`mutation`, `deletion`, `expiration`, or the kind of a control row",
    "scope": "name of the scope",
    "collection": "name of the collection",
    "vbucket": "the shard",
    "vbuuid": "the branch of the vbucket's history, as text because it is an unsigned 64-bit number",
    "seqno": "the change's number within the vbucket",
    "rev": "the node's count of changes of the document",
    "cas": "the document's version (the 64 bits of an unsigned number)",
    "flags": "the flags of the writer",
    "datatype": "bits: 1 JSON, 2 snappy, 4 xattrs, as stored",
    "expiry": "expiration time; for a deletion, the time of deletion; null for none",
    "xattrs": "extended attributes, name to JSON text",
}
CONTROL_ROWS = """
## Control rows

A row that is not a change of a document has neither `key` nor `_change_type`, and its `value` is JSON. It is in order
among the rows of its vbucket.

| `op` | meaning | action of a table of documents |
| --- | --- | --- |
"""
OPS = {
    Op.ROLLBACK: ("the vbucket's history was rolled back, see below", "removes the vbucket's rows above `to_seqno`"),
    Op.COLLECTION_CREATED: (
        "the collection begins; earlier rows of that name belong to another one",
        "removes the collection's rows of that vbucket at or below `seqno`",
    ),
    Op.COLLECTION_DROPPED: (
        "the collection and its documents are deleted",
        "removes the collection's rows of that vbucket at or below `seqno`",
    ),
    Op.COLLECTION_FLUSHED: (
        "the documents of the collection are deleted",
        "removes the collection's rows of that vbucket at or below `seqno`",
    ),
    Op.COLLECTION_EXCLUDED: (
        "the option `collections` no longer names the collection",
        "removes the collection's rows of that vbucket that it has so far",
    ),
    Op.COLLECTION_MODIFIED: ("a setting of the collection changed", "nothing"),
    Op.SCOPE_CREATED: ("the scope begins", "nothing"),
    Op.SCOPE_DROPPED: ("the scope is deleted, after a row for each of its collections", "nothing"),
}
COLLECTIONS = """
### Scopes and collections

`scope` and `collection` are the names of the changed scope or collection (`collection` is null for a scope). `value`
holds `{"scope_id": 8, "collection_id": 9, "max_ttl": 0, "manifest_uid": "5"}`, without the fields that do not apply. A
change of the bucket's collections is an event of every vbucket, so **each vbucket has its own control row**.

A node does not send the events of a dropped collection to a stream that selects it. If a collection of the option
`collections` was dropped since the last batch, the source finds that in the bucket's manifest. The `seqno` of its
control row is then above all rows of the collection and below those of a later collection of that name. The query
continues with the remaining collections, and reads a collection that is created again under the same name from its
beginning.

A collection without a known name, because it was dropped before the query began, is named by its id (`0x9`).

The option `collections` accepts `scope.collection`; `scope.*` or the name of a scope for all of its collections,
including later ones; and the name of a collection of the scope `_default`. A name that fits a scope and a collection is
refused, except `_default`, the default collection.

The option may change on a checkpoint. A collection that it no longer names gets a control row `collection_excluded` in
each vbucket that may have rows of it. A collection that is new in it is read from its beginning up to the position of
each vbucket; its rows of that batch then have lower seqnos than earlier rows of other collections. A control row ends
only rows of its own and of earlier batches, so a collection that left the option and came back is whole again.
"""
ROLLBACK = """
### Rollbacks

With `onRollback` set to `rewindAndMark`, a row with `op` = `rollback` precedes the rows of a new branch. It has the
`vbucket`, the new branch as `vbuuid`, and the seqno of the rollback as `seqno`; `value` holds
`{"from_seqno": "…", "to_seqno": "…", "old_vbuuid": "…", "new_vbuuid": "…"}`. All rows of that vbucket with a higher
seqno that were delivered before are void, including those of a failed attempt of the same batch. The valid rows follow.

`from_seqno` equals `to_seqno` if the start of the batch is still valid, but the batch was planned on another branch
than the one that is read. Spark may have run the batch before, and a sink without transactions may have rows of that
attempt. Their last seqno is unknown, so rows above `from_seqno` may be void, too. A sink that writes each batch in one
transaction has no such rows. With `onRollback` set to `fail` this case is an error, like any rollback.

With `rewindTo` set to `zero`, `to_seqno` is always 0; tables with one version of each document, and no history
to restore others from, need this. A sink without transactions that carried out a rollback in a failed attempt must
begin such a vbucket anew, and therefore needs `zero`, too.
"""
WRITER_INTRODUCTION = """
## Options of the writer

`df.write.format("dcp")` and `writeStream.format("dcp")` take these options and those of the connection: {connection}.
See [Write rows into a bucket](../how-to/write-from-spark.md).

| option | means | default |
| --- | --- | --- |
"""
CLI_INTRODUCTION = """# Command line

Generated from the help of the commands.
"""


def spark_page() -> str:
    """The page on the Spark source."""
    options = [
        f"| `{option.name}` | {option.meaning} | {'required' if option.is_required else option.default} |"
        for option in OPTIONS
    ]
    columns = [f"| `{field.name}` | {field.type} | {COLUMNS[field.name]} |" for field in CHANGE_SCHEMA]
    text = SPARK_INTRODUCTION + "\n".join(options) + "\n" + COLUMNS_INTRODUCTION + "\n".join(columns) + "\n"
    text += "\nWith `valueFormat` = `string`, `value` is a string.\n" + _control_rows() + COLLECTIONS + ROLLBACK
    connection = ", ".join(f"`{option.name}`" for option in OPTIONS if option.name in CONNECTION_OPTIONS)
    writer = [f"| `{option.name}` | {option.meaning} | {option.default} |" for option in WRITE_OPTIONS]
    return text + WRITER_INTRODUCTION.format(connection=connection) + "\n".join(writer) + "\n"


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
