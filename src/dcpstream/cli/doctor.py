"""`dcpstream doctor`: what this machine has for dcpstream, and whether a cluster lets a user in.

Each check is a function that returns findings. A finding that is not well names the command that mends it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Literal

import click

import dcpstream
from dcpstream.cli.connection_options import BucketAccess, access_options
from dcpstream.cli.exits import FAILED, OK
from dcpstream.cli.output import json_option
from dcpstream.errors import AccessDenied, ConfigError, DcpstreamError

WORKER_TIMEOUT_S = 60.0
"""Limit for a Python process that imports what Spark's workers need; on a busy machine it takes seconds."""
NODE_PORTS = {11210: "--port", 8091: "--mgmt-port"}
"""The ports that `dcpstream node` opens by default, with the options that choose others."""
PROBE_KEY = "dcpstream-doctor"
"""A document that is asked for, to see whether the user may read; it need not exist."""

Verdict = Literal["ok", "note", "problem"]
_MARKS: Mapping[Verdict, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "note": ("note", "yellow"),
    "problem": ("PROBLEM", "red"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: what was looked at.
        verdict: "note" is something that only some users need.
        text: what was found, as a sentence.
        fix: the command that mends it; empty if nothing is to be done.
    """

    check: str
    verdict: Verdict
    text: str
    fix: str = ""


@click.command("doctor")
@access_options(is_argument=False)
@json_option()
@click.pass_context
def doctor_command(ctx: click.Context, access: BucketAccess, as_json: bool) -> int:
    """Check this machine, and with --cluster also a bucket: can it be reached, and may the user read it?

    Each finding that is not well is followed by the command that mends it. Status 1 if there is a problem; a note is
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
    return f"{line}\n        mend it: {finding.fix}" if finding.fix else line


def machine_findings(environ: Mapping[str, str]) -> Iterator[Finding]:
    """What this machine has."""
    yield _python()
    yield _arrow()
    yield _spark()
    if importlib.util.find_spec("pyspark") is not None:
        yield _java(environ)
        yield workers(environ)
        yield _tables()
    for port, option in NODE_PORTS.items():
        yield port_finding(port, option)


def _python() -> Finding:
    text = f"{platform.python_version()} at {sys.executable}, dcpstream {dcpstream.__version__}"
    return Finding("Python", "ok", text)


def _arrow() -> Finding:
    missing = [name for name in ("numpy", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        text = f"{' and '.join(missing)} is missing, so changes come one by one, not as Arrow batches"
        return Finding("Arrow", "note", text, "pip install 'dcpstream[arrow]'")
    from dcpstream.runtime import kernel

    return Finding("Arrow", "ok", f"pyarrow {importlib.metadata.version('pyarrow')}, decoder: {kernel.description}")


def _spark() -> Finding:
    if importlib.util.find_spec("pyspark") is None:
        return Finding("Spark", "note", "pyspark is not installed", "pip install 'dcpstream[spark]'")
    version = importlib.metadata.version("pyspark")
    if int(version.partition(".")[0]) < 4:
        text = f"pyspark {version} is too old: the source needs Spark 4.0 or newer"
        return Finding("Spark", "problem", text, "pip install --upgrade 'dcpstream[spark]'")
    return Finding("Spark", "ok", f"pyspark {version}")


def _java(environ: Mapping[str, str]) -> Finding:
    from dcpstream.spark.java import ensure_java, java_program, java_version

    own = dict(environ)
    try:
        source = ensure_java(own)
    except ConfigError as error:
        return Finding(
            "Java", "problem", f"Spark finds no Java that it can use: {error}", "pip install 'dcpstream[java]'"
        )
    program = java_program(own)
    return Finding("Java", "ok", f"{java_version(program)} at {program}, from {source.value}")


def workers(environ: Mapping[str, str]) -> Finding:
    """The interpreter that Spark starts for its Python workers, and whether it has what they need.

    `session_settings` and `build_session` choose this interpreter if PYSPARK_PYTHON is not set. A session of the user's
    own takes the python3 of PATH then, so another python3 there is a problem for some users only.
    """
    bad: Verdict = "problem" if environ.get("PYSPARK_PYTHON") else "note"
    given = environ.get("PYSPARK_PYTHON", "")
    program = given or shutil.which("python3", path=environ.get("PATH")) or "python3"
    why = "from PYSPARK_PYTHON" if given else "the python3 of PATH, because PYSPARK_PYTHON is not set"
    fix = f"export PYSPARK_PYTHON={sys.executable}"
    code = "import sys, pyspark_dcpstream as p; print('%d.%d' % sys.version_info[:2], hasattr(p, 'DefaultSource'))"
    try:
        done = subprocess.run(  # noqa: S603 - the interpreter that Spark would start
            [program, "-c", code],
            capture_output=True,
            text=True,
            timeout=WORKER_TIMEOUT_S,
            check=False,
            env=dict(environ),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("Workers", bad, f"{program} ({why}) cannot be started: {error}", fix)
    version, _, has_source = done.stdout.strip().partition(" ")
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if done.returncode or has_source != "True":
        return Finding("Workers", bad, f"{program} ({why}) has no dcpstream with the Spark source", fix)
    if version != own:
        text = f"{program} ({why}) is Python {version}, and this one is {own}: Spark wants the same in both"
        return Finding("Workers", bad, text, fix)
    return Finding("Workers", "ok", f"{program}, {why}")


def _tables() -> Finding:
    from dcpstream.spark import jars

    version = importlib.metadata.version("pyspark")
    try:
        names = [jar.file_name for jar in jars.connector("delta", version)]
    except ConfigError as error:
        return Finding("Tables", "note", str(error))
    directory = jars.jars_directory()
    missing = [name for name in names if not (directory / name).exists()]
    if missing:
        text = f"Delta's connector is not fetched yet: {directory} lacks {', '.join(missing)}"
        return Finding("Tables", "note", text, "dcpstream jars delta")
    return Finding("Tables", "ok", f"Delta's connector for Spark {version} is in {directory}")


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


def bucket_findings(access: BucketAccess) -> Iterator[Finding]:
    """Whether a bucket can be reached, and what the user may do with it."""
    with access.documents() as documents:
        try:
            found = documents.map
        except DcpstreamError as error:
            yield Finding("Cluster", "problem", str(error), _mend_access(access))
            return
        count, name = found.vbucket_count, access.bucket
        yield Finding("Cluster", "ok", f"bucket {name} at {', '.join(map(str, found.nodes))}, {count} vbuckets")
        unserved = sum(found.active_node(vbid) is None for vbid in range(count))
        if unserved:
            text = f"{unserved} of {count} vbuckets have no active node: a node is down or was failed over"
            yield Finding("Cluster", "problem", text, "dcpstream cluster status")
        yield _allowed("Read documents", "data_reader", access, lambda: documents.get(PROBE_KEY))
    with access.client() as client:
        yield _allowed("Read changes", "data_dcp_reader", access, client.cluster.failover_logs)


def _allowed(what: str, role: str, access: BucketAccess, act: Callable[[], object]) -> Finding:
    try:
        act()
    except AccessDenied:
        text = f"user {access.username} may not, in bucket {access.bucket}"
        return Finding(
            what, "problem", text, f"dcpstream user create {access.username} --role '{role}[{access.bucket}]'"
        )
    except DcpstreamError as error:
        return Finding(what, "problem", str(error), _mend_access(access))
    return Finding(what, "ok", f"user {access.username or 'of the certificate'} may, in bucket {access.bucket}")


def _mend_access(access: BucketAccess) -> str:
    """The command that shows what is wrong with a cluster that does not let us in."""
    return f"dcpstream bucket list --cluster http://HOST:8091 --user {access.username or 'NAME'}"
