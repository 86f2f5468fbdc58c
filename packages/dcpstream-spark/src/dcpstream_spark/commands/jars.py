"""`dcpstream jars`: the jars of a table format, for sessions that `build_session` does not make."""

from __future__ import annotations

import json
import shlex

import click

from dcpstream.cli import exits
from dcpstream.cli.output import json_option


@click.command("jars")
@click.argument("table_format", metavar="FORMAT", type=click.Choice(["delta", "iceberg"]), default="delta")
@click.option("--for-spark", metavar="VERSION", help="for this Spark, for example 4.1 (default: the installed one)")
@click.option(
    "--show",
    type=click.Choice(["paths", "conf"]),
    default="paths",
    show_default=True,
    help="print the paths of the jars, or all settings as arguments of spark-submit",
)
@json_option("Print the paths and the settings as JSON.")
def jars_command(table_format: str, for_spark: str | None, show: str, as_json: bool) -> None:
    """Fetch the jars that Spark needs for tables of FORMAT (delta or iceberg) once, and print where they are.

    The environment variable DCPSTREAM_JARS names another directory for them than the user's cache.
    """
    exits.require(["pyspark"], "dcpstream-spark")
    import pyspark

    from dcpstream_spark import jars
    from dcpstream_spark.session import TABLE_SETTINGS

    known: jars.TableFormat = "iceberg" if table_format == "iceberg" else "delta"
    files = jars.resolve(jars.connector(known, for_spark or pyspark.__version__))
    settings = {"spark.jars": ",".join(str(file) for file in files), **TABLE_SETTINGS[known]}
    if as_json:
        click.echo(json.dumps({"jars": [str(file) for file in files], "settings": settings}))
        return
    if show == "paths":
        for file in files:
            click.echo(file)
        return
    click.echo(" ".join(f"--conf {shlex.quote(f'{name}={value}')}" for name, value in settings.items()))
