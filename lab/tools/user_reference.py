"""Write docs/reference/spark.md and cli.md from the code; `--check` only compares."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import click  # noqa: E402

from dcpstream.arrow import FULL_SCHEMA  # noqa: E402
from dcpstream.cli.app import cli  # noqa: E402
from dcpstream.model import Op  # noqa: E402
from dcpstream_spark import where  # noqa: E402
from dcpstream_spark.options import OPTIONS  # noqa: E402
from dcpstream_spark.sink.write_options import CONNECTION_OPTIONS, WRITE_OPTIONS  # noqa: E402
from lab.tools.pages import publish  # noqa: E402

DOCS = ROOT / "docs" / "reference"
WIDTH = 100
SPARK_INTRODUCTION = """# Spark source

The format `dcp`, for `spark.read` and `spark.readStream`. It needs no registration: Spark finds it once dcpstream is
installed with the extra `spark`. This page is generated from the code.

<!-- fragment -->
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

All columns are nullable. The option `columns` selects some of them, in the given order. So does a schema of the
user, which may also name [fields of the documents](#fields-of-documents). Only the chosen columns are built.

| column | type | holds |
| --- | --- | --- |
"""
COLUMNS = {
    "key": "the document's key",
    "value": "the body, inflated and without xattrs; null for a deletion without a body",
    "value_text": "the body as text, null if it is not UTF-8; only if it is named in `columns` or in the schema",
    "_change_type": "`insert`, `update_postimage` or `delete`; null for a control row",
    "_commit_version": "the seqno",
    "_commit_timestamp": "time of the change, from the CAS; of a control row, the time at which it was read",
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
VALUES = """
### Exact values

`value` is BINARY and holds the document byte by byte. `value_text` is the same document as STRING where its bytes are
UTF-8, and null where they are not, so the two columns distinguish binary documents and texts.

With `valueFormat` = `string`, `value` is a STRING in which bytes that are not UTF-8 are escaped (`\\xff`). A text
document that holds the four characters `\\xff` looks the same, so such a column is not exact.

`key` has the key with the same escapes if it is not UTF-8. A key that is text stays as it is, also one that looks like
escapes: the key of the byte `ff`, and the key of the four characters `\\xff`, are the same text. A table with a row for
each key, such as `current` of a pipeline, has one row for both. SDKs write keys in UTF-8 only.

With `valueFormat` = `variant`, `value` is a VARIANT, null for a document that is no JSON. Of two
fields of the same name in one object the last one counts.
"""
FIELDS = """
## Fields of documents

In a schema of the user's, a column with the name of a column of the source is that column and must have its type. Every
other column is a field of the JSON documents, with the value that `from_json` of Spark gives it:

<!-- fragment -->
```python
people = spark.read.format("dcp").options(**access).schema("key STRING, seqno BIGINT, name STRING, age INT").load()
```

If documents have fields with names of the source's columns, `metaPrefix` = `_dcp_` calls those `_dcp_key`, `_dcp_seqno`
and so on; `key` is then the field. Deletions and control rows have null in all fields.

Types are BOOLEAN, the whole numbers, FLOAT, DOUBLE, DECIMAL, STRING, BINARY (base64), DATE, TIMESTAMP, TIMESTAMP_NTZ,
STRUCT, ARRAY, and MAP with STRING keys. A field of another type than its column is null, and the document is malformed;
so is a document that is no JSON object. `mode` says what happens to malformed documents:

| `mode` | malformed documents |
| --- | --- |
| `PERMISSIVE` | stay; the column `columnNameOfCorruptRecord`, if the schema has it, holds them |
| `DROPMALFORMED` | are left out; deletions and control rows stay |
| `FAILFAST` | end the query with an error that names the first one |

Differences from `from_json` with its default options:

- A document that is an array is malformed. `from_json` takes its first element.
- Names and texts stand in double quotes only. `from_json` also accepts single quotes.
- `_corrupt_record` as STRING has U+FFFD in place of bytes that are not UTF-8; as BINARY it has the exact bytes.
- A STRING column that gets an object or an array holds it as compact JSON. `from_json` keeps its white space.
- A timestamp without a zone is UTC, and zones have no names but `Z`, `UTC` and `GMT`. `from_json` takes the zone of the
  session.
- A document may be nested 500 levels deep.

With `inferSchema` = `true` the source reads `sampleSize` changes when the DataFrame is made and adds the fields that it
finds to the columns of `columns`, as Spark's JSON source does. A streaming query should name its schema, because a
later sample may find other fields.
"""


def _filters() -> str:
    """The section about filters, with the table of the module that reads them."""
    assert where.__doc__ is not None
    rows = [line for line in where.__doc__.splitlines() if line.startswith("|")]
    return FILTERS.replace("{table}", "\n".join(rows))


FILTERS = """
## Filters

The option `where` selects rows before their values are built, in batches and streams. It is a condition in SQL, without
functions and subqueries:

{table}

`and`, `or`, `not` and brackets join them. All columns of the source can be compared, except `value`, `value_text` and
`xattrs`, with their names without `metaPrefix`. Texts stand in single quotes, and a quote in a text is written twice.
Timestamps are texts in ISO 8601. A comparison with null is not true, and neither is its opposite.

- A comparison of `vbucket` leaves out whole vbuckets: they are not read, and a stream does not move them. A later query
  on the same checkpoint without the comparison reads them from there.
- `scope = 's' and collection = 'c'`, or `collection in ('c', 'd')`, is the same as `collections` = `s.c`, or `s.c,s.d`:
  the node sends nothing else.
- [Control rows](#control-rows) stay, whichever key or seqno is asked for, because a table needs them. Only comparisons
  of `vbucket` and `op` leave them out, and those of `scope` and `collection` where the row has a value. What stands
  in an `or` never leaves them out.

With the setting `spark.sql.python.filterPushdown.enabled` = `true`, Spark 4.1 and newer pass the comparisons in the
`WHERE` of a batch query on to the source, which applies them in the same way, to control rows like to all others. The
physical plan that `explain()` shows has no `Filter` for them. Spark pushes no filters of a stream: use `where` there.

A batch also asks the nodes for less, as far as its rows, control rows included, are those of a whole read:

| filter | what the nodes are asked for |
| --- | --- |
| `vbucket` | these vbuckets |
| `collection = 'c'`, `in` or `startswith`, pushed by Spark | the collections with these names |
| any comparison of `scope` or `collection` | the collections that fit, if no control row can pass |
| `seqno <= 9`, `<`, `=` or `in`, pushed by Spark | an end at that seqno; a node may send one flow-control window more |
| the same in the option `where` | the same, if no control row can pass |

No control row can pass with `op = 'mutation'`, with an `op in (…)` that names none, or with a comparison of `key` or
`_change_type` that Spark pushes. `seqno >= 9` does not make a read begin later: use `startingOffsets`. In a
stream only `vbucket`, and `scope` with `collection` as above, change what the nodes are asked for.
"""
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
    Op.HISTORY_GAP: (
        "with `history`: versions from `from_seqno` to `to_seqno` may be missing; the newest ones follow",
        "nothing",
    ),
    Op.SNAPSHOT: (
        "a batch has read the vbucket up to `seqno`; only with `snapshotMarks` in `include`",
        "nothing",
    ),
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

A collection without a known name, because it was dropped before the query began, is named by its id (`0x9`). If the
name becomes known later, its end is reported under both names.

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
start such a vbucket over, and therefore needs `zero`, too.
"""
CHECKPOINT = """
## The checkpoint

Spark does not pass a source the checkpoint of its query. Give it to the source, too:

<!-- fragment -->
```python
checkpoint = "/lake/query/checkpoint"
changes = spark.readStream.format("dcp").options(**access, checkpointLocation=checkpoint).load()
query = changes.writeStream.format("parquet").option("checkpointLocation", checkpoint).start("/lake/query/rows")
```

A `Pipeline` does it by itself. The driver and all executors must reach the directory by the same path or URL. With
`onRollback` = `rewindAndMark`, a task leaves a note there (directory `dcp-notes`) when it must start a vbucket over
because deletions were purged. Without notes, a failover soon after may then leave rows out. On Spark 4.0 and 4.1, runs
with `availableNow` read there where the query stands, and keep `maxOffsetsPerTrigger` and `maxBytesPerTrigger`.
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


def _without_links(text: str) -> str:
    """Two pairs of brackets in a row would be a link."""
    return text.replace("][", "]\\[")


def spark_page() -> str:
    """The page on the Spark source."""
    options = [
        f"| `{option.name}` | {_without_links(option.meaning)} "
        f"| {'required' if option.is_required else option.default} |"
        for option in OPTIONS
    ]
    columns = [f"| `{field.name}` | {field.type} | {COLUMNS[field.name]} |" for field in FULL_SCHEMA]
    text = SPARK_INTRODUCTION + "\n".join(options) + "\n" + COLUMNS_INTRODUCTION + "\n".join(columns) + "\n"
    text += VALUES + FIELDS + _filters() + _control_rows() + COLLECTIONS + ROLLBACK + CHECKPOINT
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
        if isinstance(command, click.Group):
            for below in command.list_commands(context):
                found = command.get_command(context, below)
                assert found is not None
                inner = click.Context(found, parent=context, info_name=below, terminal_width=WIDTH)
                sections.append("#" + _help(f"dcpstream {name} {below}", inner))
    return "\n".join([CLI_INTRODUCTION, *sections])


def _help(title: str, context: click.Context) -> str:
    return f"## {title}\n\n```text\n{context.get_help()}\n```\n"


def main() -> int:
    """Write the pages, or with `--check` compare them."""
    return publish({DOCS / "spark.md": spark_page(), DOCS / "cli.md": cli_page()})


if __name__ == "__main__":
    sys.exit(main())
