"""The options of commands that read a bucket."""

from __future__ import annotations

import click
from click.testing import CliRunner

from dcpstream.cli.connection_options import connection_options


@click.command
@connection_options
@click.option("--last", is_flag=True)
def command(connection_string: str, username: str, password: str, bucket: str, last: bool) -> None:
    click.echo(f"{connection_string} {username} {password} {bucket} {last}")


def test_a_cluster_is_given_once() -> None:
    result = CliRunner().invoke(command, ["couchbase://a", "-c", "couchbase://b"])
    assert result.exit_code == 2
    assert "the cluster is given twice: as couchbase://a and with --cluster couchbase://b" in result.output


def test_the_environment_hides_the_password() -> None:
    result = CliRunner().invoke(command, [], env={"DCPSTREAM_PASSWORD": "secret"})
    assert " secret " in result.output
    text = CliRunner().invoke(command, ["--help"]).output
    assert text.index("--user") < text.index("--password") < text.index("--bucket") < text.index("--last")
