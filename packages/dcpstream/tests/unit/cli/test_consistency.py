"""Rules of all commands: JSON for programs, one name for one meaning, help that loads little."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import click

import dcpstream.cli
import dcpstream_node.commands
import dcpstream_spark.commands
from dcpstream.cli.app import cli
from lab.tools.patience import patient

WITHOUT_JSON = {
    "completion install": "writes files",
    "completion show": "prints a script",
    "demo": "plays, and draws a picture",
    "node": "serves until it is stopped; --ready-file has its ports in JSON",
    "offsets export": "prints the format of another reader",
    "stream": "prints nothing but JSON",
}
"""Command → why it has no --json."""

SEVERAL_MEANINGS = {
    "--bucket": {"bucket", "buckets"},  # `node` makes several
    "--release": {"release", "releases"},  # a cluster of `node` may have several
    "--limit": {"limit", "limits"},  # lines that are printed; of a node's clients
    "--type": {"kind", "recovery"},  # of a bucket; of a recovery
}
"""Option → the parameters that it stands for, where that is more than one."""


HEAVY = {
    "asyncio",
    "dcpstream.client.blocking",
    "dcpstream.client.machine",
    "dcpstream_node.cluster",
    "dcpstream_node.embedded",
    "dcpstream_node.engine",
    "dcpstream_node.judge",
    "dcpstream_node.recording",
    "dcpstream_node.store",
    "dcpstream_spark.data_source",
    "dcpstream_spark.source",
    "dcpstream_spark.tables",
    "http.server",
    "numpy",
    "pyarrow",
    "pyspark",
    "rich",
    "sqlite3",
}
"""Modules that no help needs."""


def leaves(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, with the words that call it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        words = f"{path}{name}"
        if isinstance(command, click.Group):
            yield from leaves(command, f"{words} ")
        else:
            yield words, command


COMMANDS = dict(leaves(cli))


def options(command: click.Command) -> list[click.Option]:
    """Those that the help shows; a name that an option had before is hidden."""
    return [one for one in command.params if isinstance(one, click.Option) and not one.hidden]


def test_every_command_prints_json_or_says_why_not() -> None:
    without = {name for name, command in COMMANDS.items() if not any("--json" in one.opts for one in options(command))}
    assert without == set(WITHOUT_JSON)


def test_an_option_has_one_meaning() -> None:
    meanings: dict[str, set[str]] = defaultdict(set)
    for command in COMMANDS.values():
        for one in options(command):
            for name in one.opts:
                meanings[name].add(str(one.name))
    allowed = {name: found for name, found in meanings.items() if len(found) > 1}
    assert allowed == SEVERAL_MEANINGS


def test_a_meaning_has_one_option() -> None:
    names: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for command in COMMANDS.values():
        for one in options(command):
            names[str(one.name)].add(tuple(sorted(one.opts)))
    assert {name: found for name, found in names.items() if len(found) > 1} == {}


def test_an_option_is_written_once() -> None:
    written = Counter(
        ast.unparse(node)
        for package in (dcpstream.cli, dcpstream_node.commands, dcpstream_spark.commands)
        for path in Path(package.__file__ or "").parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "click.option"
    )
    assert [text for text, count in written.items() if count > 1] == []


def test_where_a_cluster_is_has_one_name() -> None:
    for name, command in COMMANDS.items():
        spelled = [one.opts for one in options(command) if "cluster" in str(one.name) or "connection" in str(one.name)]
        assert all(opts == ["-c", "--cluster"] for opts in spelled), name


def test_no_help_loads_what_it_does_not_need() -> None:
    """All commands in one process: what none of them loads, no help does."""
    program = f"""
import sys
import click
from dcpstream.cli.app import cli
context = click.Context(cli)
for name in cli.list_commands(context):
    if name != "demo":  # the flights are a distribution of their own
        cli.get_command(context, name).get_help(click.Context(cli))
print(*sorted(set(sys.modules) & {HEAVY!r}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=patient(60), check=True
    )
    assert done.stdout.split() == []
