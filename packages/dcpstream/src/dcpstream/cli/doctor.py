"""`dcpstream doctor`: what this machine has for dcpstream, and what a reader of a bucket will meet.

Each check is a function that returns findings. A finding that is not well names the command that fixes it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import entry_points
from itertools import chain

import click

import dcpstream
from dcpstream.cli.bucket_findings import bucket_findings
from dcpstream.cli.connection_options import BucketAccess, access_options
from dcpstream.cli.exits import FAILED, OK
from dcpstream.cli.findings import Finding, Verdict
from dcpstream.cli.output import json_option

GROUP = "dcpstream.findings"
"""The group of entry points by which the distributions add findings: functions of the environment."""
NODE_PORTS = {11210: "--port", 8091: "--mgmt-port"}
"""The ports that `dcpstream node` opens by default, with the options that choose others."""

_MARKS: Mapping[Verdict, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "note": ("note", "yellow"),
    "problem": ("PROBLEM", "red"),
}


@click.command("doctor")
@access_options(is_argument=False)
@json_option()
@click.pass_context
def doctor_command(ctx: click.Context, access: BucketAccess, as_json: bool) -> int:
    """Check this machine, and with --cluster also a bucket, as a reader of its changes will meet it.

    Of the bucket: whether it can be reached, its nodes and their release, the copies of vbuckets, encryption, the
    user's rights, collections, purged deletions, and how many changes a first load reads and how long it takes. Nothing
    is written, and a sample of changes is read for at most three seconds.

    Each finding that is not well is followed by the command that fixes it. Status 1 if there is a problem; a note is
    something that only some users need.
    """
    has_cluster = ctx.get_parameter_source("cluster") is not click.core.ParameterSource.DEFAULT
    found = chain(machine_findings(os.environ), bucket_findings(access) if has_cluster else ())
    findings = []
    for finding in found:
        findings.append(finding)
        if not as_json:
            # At once, because some checks take seconds.
            click.echo(shown(finding), color=False if os.environ.get("NO_COLOR") else None)
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    elif not has_cluster:
        click.echo("No cluster was checked; name one with --cluster couchbase://HOST:PORT.")
    return FAILED if any(finding.verdict == "problem" for finding in findings) else OK


def shown(finding: Finding) -> str:
    """A finding as lines of text, with colours."""
    mark, colour = _MARKS[finding.verdict]
    line = f"{click.style(f'{mark:<8}', fg=colour)}{finding.check}: {finding.text}"
    return f"{line}\n        fix: {finding.fix}" if finding.fix else line


def machine_findings(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about this machine: Python, the distributions, and the ports."""
    yield _python()
    yield _arrow()
    if importlib.util.find_spec("dcpstream_spark") is None:
        yield Finding("Spark", "note", "dcpstream-spark is not installed", "pip install dcpstream-spark")
    for found in entry_points(group=GROUP):
        yield from found.load()(environ)
    for port, option in NODE_PORTS.items():
        yield port_finding(port, option)


def _python() -> Finding:
    text = f"{platform.python_version()} at {sys.executable}, dcpstream {dcpstream.__version__}"
    return Finding("Python", "ok", text)


def _arrow() -> Finding:
    missing = [name for name in ("numpy", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        verb = "are" if missing[1:] else "is"
        text = f"{' and '.join(missing)} {verb} missing, so changes come one by one, not as Arrow batches"
        return Finding("Arrow", "note", text, "pip install 'dcpstream[arrow]'")
    from dcpstream.runtime import kernel

    return Finding("Arrow", "ok", f"pyarrow {importlib.metadata.version('pyarrow')}, decoder: {kernel.description}")


def port_finding(port: int, option: str) -> Finding:
    """Whether `dcpstream node` can open a port."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            text = f"port {port} cannot be opened ({error.strerror}), so another node needs other ports"
            return Finding("Ports", "note", text, f"dcpstream node {option} 0")
    return Finding("Ports", "ok", f"port {port} is free for `dcpstream node`")
