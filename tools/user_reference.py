"""Writes docs/reference/spark.md and cli.md from the code; `--check` only says whether they are up to date."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from dcpstream.cli.app import cli
from dcpstream.columnar import CHANGE_SCHEMA
from dcpstream.spark.options import option_table

DOCS = Path(__file__).parent.parent / "docs" / "reference"
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
    "op": "`mutation`, `deletion`, `expiration`, or `rollback` for a control row",
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
ROLLBACK = """
## Control rows

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
    return text + "\nWith `valueFormat` = `string`, `value` is a string.\n" + ROLLBACK


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


PAGES = {"spark.md": spark_page, "cli.md": cli_page}


def main() -> int:
    """Write the pages, or with `--check` compare them."""
    stale = 0
    for name, make in PAGES.items():
        path, text = DOCS / name, make()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            print(f"{path}: up to date")
        elif "--check" in sys.argv:
            stale += 1
            print(f"{path}: stale, run python tools/user_reference.py")
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
