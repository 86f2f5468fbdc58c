"""`dcpstream compare`: a table against a bucket, in parallel on Spark."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, cast

import click

from dcpstream.cli import exits
from dcpstream.cli.connection_options import connection_options
from dcpstream.cli.output import json_option
from dcpstream.errors import ConfigError

if TYPE_CHECKING:
    from dcpstream.client.settings.secrets import Secret
    from dcpstream_spark.tables.comparison import ComparisonReport

_MEANINGS = {
    "equal": "the same in both",
    "different": "in both, and different",
    "missing": "in the bucket, not in the table",
    "extra": "in the table, not in the bucket",
    "duplicate": "more than once in the table",
}


@click.command("compare")
@click.argument("table")
@connection_options
@click.option(
    "--table-kind",
    type=click.Choice(["auto", "delta", "parquet", "catalog", "current", "live"]),
    default="auto",
    show_default=True,
    help="What TABLE is; current and live: the directory of a pipeline, whose documents of the last fold or of now are "
    "compared. auto takes live for such a directory.",
)
@click.option(
    "--table",
    "part",
    metavar="NAME",
    help="With current or live: this table of a pipeline that has several.  [default: all of them together]",
)
@click.option("--collections", help="Only these, separated by commas: scope.collection or scope.*.")
@click.option("--system-documents", is_flag=True, help="Also documents of the system: scope _system, keys _txn:…")
@click.option("--collection", help="scope.collection of a table that has no columns scope and collection.")
@click.option("--key-column", default="key", show_default=True)
@click.option("--value-column", default="value", show_default=True)
@click.option(
    "--values",
    type=click.Choice(["hash", "bytes", "none"]),
    default="hash",
    show_default=True,
    help="Compare the values' SHA-256, the values themselves, or only the keys.",
)
@click.option("--also", type=click.Choice(["cas", "seqno"]), multiple=True, help="Compare this column, too.")
@click.option("--examples", type=click.IntRange(0, 1000), default=10, show_default=True, help="Of each difference.")
@json_option("Print the report as JSON.")
@click.option("--option", "-o", "more", multiple=True, metavar="NAME=VALUE", help="Further option of the source dcp.")
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="Setting of the Spark session.")
@click.option("--master", help="Spark's master.  [default: this machine]")
@click.option("--driver-memory", default="2g", show_default=True)
@click.option(
    "--progress/--no-progress", default=None, help="A progress bar on standard error.  [default: on a terminal]"
)
def compare_command(
    table: str,
    connection_string: str,
    username: str,
    password: Secret,
    bucket: str,
    table_kind: str,
    part: str | None,
    collections: str | None,
    system_documents: bool,
    collection: str | None,
    key_column: str,
    value_column: str,
    values: str,
    also: tuple[str, ...],
    examples: int,
    as_json: bool,
    more: tuple[str, ...],
    conf: tuple[str, ...],
    master: str | None,
    driver_memory: str,
    progress: bool | None,
) -> int:
    """Compare TABLE with a bucket, in parallel on Spark.

    TABLE is a path or URL of a Delta or Parquet table, the name of a table in a catalog, or a pipeline's directory.
    Compare while the bucket rests: documents that change in between differ.

    Exit status: 0 equal, 1 different, 2 and above as for every command.
    """
    exits.require(["pyspark", "pyarrow"], "dcpstream-spark")
    from dcpstream.client.settings.secrets import current
    from dcpstream_spark.session import build_session
    from dcpstream_spark.tables.comparison import TableColumns, TableForm, compare
    from dcpstream_spark.tables.failures import spark_explained
    from dcpstream_spark.tables.pipeline import documents_of, holds_pipeline

    options = {
        "connectionString": connection_string,
        "username": username,
        "password": current(password),
        "bucket": bucket,
    }
    options.update(_pairs("--option", more))
    if collections is not None:
        options["collections"] = collections
    if system_documents:
        options["systemDocuments"] = "true"
    spark = build_session(
        "dcpstream compare", master=master, settings=_pairs("--conf", conf), driver_memory=driver_memory
    )
    with spark_explained(), ExitStack() as ending:
        ending.callback(spark.stop)
        source: Any = table
        if table_kind == "auto" and holds_pipeline(spark, table):
            table_kind = "live"
        if table_kind in {"live", "current"}:
            source, own = documents_of(spark, table, options, kind=cast("Any", table_kind), table=part)
            if own is not None:
                options.setdefault("collections", ",".join(own))
        elif part is not None:
            raise ConfigError("--table", part, "given with the directory of a pipeline")
        kind = "auto" if table_kind in {"live", "current"} else table_kind
        is_shown = sys.stderr.isatty() if progress is None else progress
        with _bar(is_shown) as on_progress:
            report = compare(
                spark,
                source,
                options,
                form=TableForm(
                    kind=cast("Any", kind),
                    columns=TableColumns(key=key_column, value=value_column),
                    collection=collection,
                ),
                values=cast("Any", values),
                also=cast("Any", also),
                examples=examples,
                on_progress=on_progress,
            )
    click.echo(report.to_json() if as_json else as_text(report))
    return exits.OK if report.is_equal else exits.FAILED


def as_text(report: ComparisonReport) -> str:
    """The report for people."""
    lines = [f"{getattr(report, name):>12,} {name:<9} {meaning}" for name, meaning in _MEANINGS.items()]
    lines += [f"{one.kind}: {one.scope}.{one.collection} {one.key!r}: {one.detail}" for one in report.examples]
    lines.append("equal" if report.is_equal else "different")
    return "\n".join(lines)


def _pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(option, text, "NAME=VALUE")
        pairs[name] = value
    return pairs


@contextmanager
def _bar(is_shown: bool) -> Iterator[Callable[[int, int], None] | None]:
    if not is_shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    parts = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} tasks"))
    with Progress(*parts, TimeElapsedColumn(), console=Console(stderr=True)) as shown:
        task = shown.add_task("comparing", total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total or None)
