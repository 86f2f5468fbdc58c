"""`dcpstream judge`: how a server differs from a real one of its release, from another server, or from the rules."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from dcpstream.cli.connection_options import (
    LOGIN_OPTIONS,
    connect_timeout_option,
    password_of,
    tls_verify_option,
    trust_option,
    with_options,
)
from dcpstream.cli.exits import FAILED, OK, USAGE, require
from dcpstream.cli.new_files import check_directory
from dcpstream.cli.output import json_option

if TYPE_CHECKING:
    from dcpstream.client.settings.secrets import Secret
    from dcpstream_node.judge import Judge, Scenario, Target, Verdict

_F = TypeVar("_F", bound=Callable[..., Any])

_OPTIONS = (
    click.argument("place", metavar="[COUCHBASE://HOST[:PORT]]", required=False),
    click.argument("names", metavar="[SCENARIO]...", nargs=-1),
    *LOGIN_OPTIONS,
    click.option("--bucket", help="A bucket to play in.  [default: the only one that the user sees]"),
    trust_option,
    tls_verify_option,
    connect_timeout_option,
    click.option(
        "--against",
        metavar="COUCHBASE://HOST[:PORT]",
        help="Compare with this server, which has the same user and bucket, instead of the recordings.",
    ),
    click.option("--release", help="Whose recordings count, as 8.0.  [default: what the server says]"),
    click.option("--read-only", is_flag=True, help="Send only requests that change nothing."),
    click.option(
        "--destroy-documents",
        is_flag=True,
        help="Play in a bucket that has documents or collections; they are deleted.",
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(min=1),
        default=240.0,
        show_default=True,
        help="Seconds that one scenario may take.",
    ),
    click.option(
        "--attempts",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="How often a scenario that differs is played; the attempt with the fewest differences counts.",
    ),
)
"""The server, the bucket and what is asked; the test plugin takes them as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeAccess:
    """The server to judge, and how, as the options say."""

    place: str | None
    names: tuple[str, ...]
    username: str
    password: Secret
    bucket: str | None
    trust: str | None
    tls_verify: str
    connect_timeout: float
    against: str | None
    release: str | None
    read_only: bool
    destroy_documents: bool
    timeout: float
    attempts: int

    def judge(self) -> Judge:
        """A judge of the server. Raises: as `Judge`; UsageError: the server is missing."""
        from dcpstream_node.judge import Judge, Wishes

        target = self.target()
        wishes = Wishes(
            release=self.release,
            read_only=self.read_only,
            destroy_documents=self.destroy_documents,
            timeout_s=self.timeout,
            attempts=self.attempts,
        )
        against = None if self.against is None else self._target(self.against)
        return Judge(target, against=against, wishes=wishes)

    def target(self) -> Target:
        """The server to judge. Raises: UsageError: it is missing."""
        if self.place is None:
            raise click.UsageError("which server? Give its data port as couchbase://HOST[:PORT]")
        return self._target(self.place)

    def _target(self, place: str) -> Target:
        from dcpstream.client import TlsOptions
        from dcpstream.client.settings.connection_string import parse
        from dcpstream.client.settings.secrets import current
        from dcpstream.client.settings.tls import tls_options
        from dcpstream.client.transport import make_context
        from dcpstream_node.judge import Endpoint, Target

        parsed = parse(place)
        given = None
        if self.trust is not None or self.tls_verify == "none":
            given = TlsOptions(self.trust, verify=self.tls_verify == "peer")
        tls = tls_options(given, parsed.options, is_secure=parsed.is_secure)
        endpoint = Endpoint(
            host=parsed.seeds[0].host,
            port=parsed.seeds[0].kv_port,
            tls=None if tls is None else make_context(tls),
            connect_timeout_s=self.connect_timeout,
        )
        return Target(endpoint=endpoint, user=self.username, password=current(self.password), bucket=self.bucket or "")


_FIELDS = tuple(JudgeAccess.__dataclass_fields__)


def judge_options(command: _F) -> _F:
    """The options of a judge; the command gets them as `access`, a `JudgeAccess`."""

    @wraps(command)
    def call(**values: Any) -> Any:
        values["password"] = password_of(values)
        access = JudgeAccess(**{name: values.pop(name) for name in _FIELDS})
        return command(access=access, **values)

    return cast("_F", with_options(call, _OPTIONS))


@click.command(add_help_option=False)
@judge_options
def _access_command(access: JudgeAccess) -> JudgeAccess:
    return access


def access_of(words: Sequence[str]) -> JudgeAccess:
    """The server, the scenarios and the options that these words of a command line say. Raises: ClickException."""
    access = _access_command.main(list(words), "dcpstream judge", standalone_mode=False)
    assert isinstance(access, JudgeAccess)
    return access


_OF_SCENARIOS = (
    "against", "release", "read_only", "timeout", "attempts", "recording", "has_bytes", "transcripts",
)  # fmt: skip
"""Options that say nothing about the rules' tests."""


@click.command("judge")
@judge_options
@click.option(
    "--rules", "is_rules", is_flag=True, help="Run the tests of the rules; SCENARIO is the beginning of an id."
)
@click.option("--frames", "has_frames", is_flag=True, help="Print the last frames before a rule differs as well.")
@click.option(
    "--bucket-config",
    metavar="NAME=VALUE;...",
    help="Settings with which --rules makes buckets; NUMBER in them is another one each time.",
)
@click.option(
    "--from-disk-config",
    metavar="NAME=VALUE;...",
    help="Settings with which a bucket of --rules streams from disk, for a server without CREATE_CHECKPOINT.",
)
@click.option(
    "--rbac-file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True, writable=True),
    help="The file with the privileges of the server's users, on this machine: --rules writes those of tests into it.",
)
@click.option(
    "--list", "is_list", is_flag=True, help="Print the scenarios, or with --rules the rules, instead of playing them."
)
@click.option("--recording", is_flag=True, help="Print the recordings of the scenarios instead of playing them.")
@click.option(
    "--differences",
    type=click.IntRange(min=0),
    default=8,
    show_default=True,
    help="Differences to print of each scenario.",
)
@click.option("--bytes", "has_bytes", is_flag=True, help="Print the bytes of the frames as well.")
@json_option("Print all differences with their frames as JSON.")
@click.option(
    "--junit",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the results as JUnit XML, a test case for each scenario.",
)
@click.option(
    "--transcripts",
    metavar="DIRECTORY",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write what passed, a file for each scenario, in the form of the recordings.",
)
def judge_command(
    access: JudgeAccess,
    is_rules: bool,
    has_frames: bool,
    bucket_config: str | None,
    from_disk_config: str | None,
    rbac_file: Path | None,
    is_list: bool,
    recording: bool,
    differences: int,
    has_bytes: bool,
    as_json: bool,
    junit: Path | None,
    transcripts: Path | None,
) -> int:
    """Play scenarios against a server, and compare its answers with those of a real one of its release.

    The recordings are of Couchbase 7.2 and 8.0. SCENARIO is the beginning of a name; without any, all are played,
    which takes ten minutes. They delete vbuckets and documents, so they need a bucket of their own.

    With --rules, the tests of the rules of the protocol run instead, each in a bucket that is made for it.

    Exit status: 0 if all that was compared is equal, 1 if something differs, 2 if nothing could be compared.
    """
    from dcpstream_node.judge import report

    if junit is not None:
        check_directory("--junit", junit)
    if is_rules:
        _check_options(_OF_SCENARIOS, "does not go with --rules")
        if is_list:
            return _print_rules(access, as_json=as_json)
        settings = {"config": bucket_config or "", "from_disk": from_disk_config or "", "rbac_file": rbac_file}
        return _judge_rules(access, settings, differences, has_frames=has_frames, as_json=as_json, junit=junit)
    _check_options(("has_frames", "bucket_config", "from_disk_config", "rbac_file"), "needs --rules")
    if is_list or recording:
        return _print_known(access, is_recording=recording, as_json=as_json)
    if transcripts is not None:
        check_directory("--transcripts", transcripts)
        transcripts.mkdir(exist_ok=True)
    judge = access.judge()
    chosen = judge.choose(*access.names)
    with_whom = f"the recordings of {judge.release}" if judge.other is None else str(judge.other.target.endpoint)
    suite = f"{judge.server.target.endpoint} ({judge.server.version or 'no version'}) by {with_whom}"
    click.echo(suite, err=True)
    verdicts: list[Verdict] = []
    for number, scenario in enumerate(chosen, 1):
        _progress(f"{number} of {len(chosen)}: {scenario.name}")
        verdict = judge.judge(scenario)
        verdicts.append(verdict)
        _progress("")
        if not as_json:
            click.echo("\n".join(report.lines_of(verdict, differences, has_bytes=has_bytes)))
        if transcripts is not None:
            _keep(verdict, transcripts)
    if junit is not None:
        junit.write_bytes(report.junit(suite, verdicts))
    if as_json:
        facts = {"server": str(judge.server.target.endpoint), "version": judge.server.version, "by": with_whom}
        scenarios = [report.as_dict(verdict) for verdict in verdicts]
        click.echo(json.dumps({**facts, **report.summary(verdicts), "verdicts": scenarios}))
    else:
        click.echo(report.total_of(verdicts))
    return status_of(verdicts)


def _check_options(names: Sequence[str], complaint: str) -> None:
    """Refuse options that were given and say nothing here. Raises: UsageError."""
    context = click.get_current_context()
    for option in context.command.params:
        given = context.get_parameter_source(option.name or "")
        if option.name in names and given is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option.opts[0]} {complaint}")


def _print_rules(access: JudgeAccess, *, as_json: bool) -> int:
    """The rules; no server is needed, so its place may be the beginning of an id."""
    from dcpstream_node.rulebook import book

    place = (access.place,) if access.place is not None and "://" not in access.place else ()
    chosen = [book.rules()[rule_id] for rule_id in book.choose((*place, *access.names))]
    if as_json:
        click.echo(json.dumps([{"rule": each.rule_id, "text": each.text, "source": each.source} for each in chosen]))
        return OK
    for each in chosen:
        click.echo(f"{each.rule_id:12} {each.text}")
    return OK


def _judge_rules(
    access: JudgeAccess,
    settings: dict[str, Any],
    shown: int,
    *,
    has_frames: bool,
    as_json: bool,
    junit: Path | None,
) -> int:
    """Run the tests of the rules, print what differs; the exit status."""
    require(["pytest"], "dcpstream-node[testing]")
    from dcpstream.errors import ConnectionLost
    from dcpstream_node.rulebook import book, report, runner

    chosen = book.choose(access.names)
    server = runner.prepare(access.target(), **settings, destroy_documents=access.destroy_documents)
    suite = f"{server.endpoint} (release {server.release}) by {len(chosen)} rules"
    click.echo(suite, err=True)
    verdict = runner.run(server, chosen, lambda number, count, name: _progress(f"{number} of {count}: {name}"))
    _progress("")
    if junit is not None:
        junit.write_bytes(report.junit(suite, verdict))
    if as_json:
        facts = {"server": str(server.endpoint), "release": server.release, "is_whole": verdict.is_whole}
        facts |= {"ended_in": verdict.ended_in}
        click.echo(json.dumps({**facts, **report.summary(verdict), "verdicts": report.as_dicts(verdict)}))
    else:
        click.echo("\n".join([*report.lines_of(verdict, shown, has_frames=has_frames), report.total_of(verdict)]))
    counts = report.summary(verdict)
    if verdict.ended_in:
        message = (
            f"{server.endpoint} takes no connections since {verdict.ended_in}: the server has ended. Start it again, "
            "and leave out the rules of this test"
        )
        raise ConnectionLost(message)
    if not verdict.is_whole:
        raise KeyboardInterrupt
    return FAILED if counts["differ"] else OK if counts["held"] else USAGE


def status_of(verdicts: Sequence[Verdict]) -> int:
    """The exit status for these verdicts."""
    results = {verdict.result for verdict in verdicts}
    if "differs" in results:
        return FAILED
    return OK if results - {"left out"} else USAGE


def _progress(text: str) -> None:
    """Show what is being done on a terminal, or in the log; an empty text clears the terminal's line."""
    if sys.stderr.isatty():
        click.echo(f"\r\033[K{text}", err=True, nl=False)
    elif text:
        click.echo(text, err=True)


def _keep(verdict: Verdict, directory: Path) -> None:
    from dcpstream_node.judge.transcript import to_text

    (directory / f"{verdict.scenario.name}.jsonl").write_text(to_text(verdict.play.lines), "utf-8")


def _print_known(access: JudgeAccess, *, is_recording: bool, as_json: bool) -> int:
    """The scenarios of a release, or their recordings; no server is needed, so its place may be a scenario's name."""
    from dcpstream.errors import ConfigError
    from dcpstream_node.judge import playing, recordings

    known = recordings.releases()
    release = access.release or known[-1]
    if release not in known:
        raise ConfigError("--release", release, " or ".join(known))
    place = (access.place,) if access.place is not None and "://" not in access.place else ()
    chosen = playing.choose(playing.of_release(release), (*place, *access.names))
    if is_recording:
        for scenario in chosen:
            click.echo(recordings.text(release, scenario.name), nl=False)
    elif as_json:
        click.echo(json.dumps([{"scenario": each.name, "about": each.title} for each in chosen]))
    else:
        _print_list(chosen)
    return OK


def _print_list(chosen: Sequence[Scenario]) -> None:
    for scenario in chosen:
        click.echo(f"{scenario.name:28} {scenario.title}")
