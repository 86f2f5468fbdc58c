"""Run the rules' tests on a server by pytest, and count the rules.

Every simulated node of a test becomes a bucket of the server. A rule differs if one of its tests fails; else it is held
if a test of it passes that has sent requests to the server; else it cannot be decided from outside. A test that fails
is tried again with more time, for a busy machine answers late.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from dcpstream.errors import AuthenticationFailed, ConfigError
from dcpstream.runtime import SystemClock
from dcpstream.wire.by_message import ByMessage
from dcpstream.wire.messages import dcp
from dcpstream.wire.release import DEFAULT_RELEASE, release_of
from dcpstream_node.judge.scenarios.kit import Target
from dcpstream_node.judge.server import look
from dcpstream_node.rulebook import book
from dcpstream_node.rulebook.server_node import CHECKPOINT, NOT_ON_SERVER, ServerNode, ServerUnderTest
from dcpstream_node.rulebook.server_users import PrivilegesFile
from dcpstream_node.testing.simulation import SimulatedNode

QUIET_S = (0.05, 0.25)
"""Seconds of silence after which a connection counts as at rest, at the first attempt and at the second."""
ENDS_SERVER: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "test_nmeta_must_be_zero": ("7.2", "8.0"),
        "test_nmeta_is_zero_and_must_be": ("7.2", "8.0"),
        "test_del_vbucket_beyond_the_last_closes_the_connection_in_7_2": ("7.2",),
        "test_settings_with_which_no_bucket_can_be_made": ("7.2",),
        "test_commands_for_who_runs_a_server_are_checked_first": ("7.2",),
        "test_a_flushed_collection_starts_over": ("8.0",),
    }
)
"""Tests whose requests end a server of these releases, as SHUTDOWN does, or spoil its memory, so that it ends some time
later."""
TIMED: ByMessage[str] = ByMessage("what comes in time")
"""The area of the rules about a request that a server sends when some time has passed. At the second attempt tests that
are not about it do not see it."""
TIMED.of(dcp.BufferAck)("FLC")
OWN_CHOICE = "our choice"
"""The beginning of the source of a rule that is this project's own: see docs/reference/differences.md."""
CLOSING_WAITS_MAX = 20
"""Connections of a test that stay open for which a second attempt waits; each wait takes more than a second."""
HELD, DIFFERS, UNDECIDED = "held", "differs", "not decidable"


@dataclass(frozen=True, slots=True)
class TestResult:
    """The result of one test.

    Attributes:
        name: as `test_stream_req.py::test_unknown_flags_are_refused`.
        rules: the rules that it shows.
        result: `HELD`, `DIFFERS` or `UNDECIDED`.
        detail: what was expected and what came, or what the test needs that no server offers.
        frames: the last frames before a difference.
    """

    __test__ = False  # for pytest, which would collect a class of this name

    name: str
    rules: tuple[str, ...]
    result: str
    detail: str = ""
    frames: tuple[str, ...] = ()


@dataclass(slots=True)
class RulesVerdict:
    """The results of all tests that ran.

    Attributes:
        chosen: the rules that were asked for.
        tests: their tests, in the order in which they ran.
        is_whole: False if the run was interrupted, or the server ended.
        ended_in: the test in which the server ended, whose result does not count; empty if it did not.
    """

    chosen: tuple[str, ...]
    tests: list[TestResult] = field(default_factory=list)
    is_whole: bool = True
    ended_in: str = ""

    def of_rule(self, rule_id: str) -> list[TestResult]:
        """The results of a rule's tests."""
        return [test for test in self.tests if rule_id in test.rules]

    def results(self) -> dict[str, str]:
        """Rule id → `HELD`, `DIFFERS` or `UNDECIDED`, for each chosen rule; without tests it is undecided."""
        found = dict.fromkeys(self.chosen, UNDECIDED)
        for test in self.tests:
            for rule_id in test.rules:
                if rule_id in found and (test.result == DIFFERS or found[rule_id] == UNDECIDED):
                    found[rule_id] = test.result
        return found


Progress = Callable[[int, int, str], None]
"""Called before each test: its number from 1, the number of all, its name."""


def prepare(
    target: Target, *, config: str = "", from_disk: str = "", rbac_file: Path | None = None, destroy_documents: bool
) -> ServerUnderTest:
    """Look at the server, and whether its bucket may be deleted.

    Args:
        config, from_disk: as of `ServerUnderTest`.
        rbac_file: the file with the privileges of the server's users, if tests may write it.

    Raises:
        ConnectionLost, AuthenticationFailed: as `look`.
        ConfigError: the bucket has documents, or the server says no release or does not let the user make buckets.
    """
    clock = SystemClock()
    try:
        server = look(target, clock)
    except AuthenticationFailed:
        # An earlier run that was stopped leaves none. One that only this user may not use must stay.
        if not target.bucket or _refusal(target, config, may_delete=False):
            raise
        server = look(target, clock)
    server.check_scratch(destroy_documents=destroy_documents, vbuckets=0)
    if not server.release:
        message = f"{target.endpoint} does not say its release, so it is not known which rules it has"
        raise ConfigError("--rules", None, "a server that answers VERSION", message=message)
    if refusal := _refusal(server.target, config):
        message = (
            f"{target.endpoint} does not let the user {target.user} make the bucket {server.target.bucket} "
            f"({refusal}), and each test needs one. Behind the manager of a cluster that is so: play scenarios there"
        )
        raise ConfigError("--rules", None, "a server that takes CREATE_BUCKET", message=message)
    found = _under_test(server.target, config, release_of(server.release).name, from_disk)
    if rbac_file is not None:
        found.privileges = PrivilegesFile(rbac_file, found.release)
    return found


def _under_test(target: Target, config: str, release: str, from_disk: str) -> ServerUnderTest:
    return ServerUnderTest(
        endpoint=target.endpoint,
        user=target.user,
        password=target.password,
        bucket=target.bucket,
        config=config,
        release=release,
        quiet_s=QUIET_S[0],
        from_disk=from_disk,
    )


def _refusal(target: Target, config: str, *, may_delete: bool = True) -> str:
    """Make the bucket, as each test does; the reason if the server does not let us, else nothing."""
    ServerNode.target = _under_test(target, config, "", "")
    ServerNode.may_delete = may_delete
    try:
        ServerNode()
    except (AssertionError, OSError) as error:
        return str(error).partition("\n")[0] or type(error).__name__
    finally:
        ServerNode.may_delete = True
    ServerNode.leave_current()
    return ""


def run(server: ServerUnderTest, chosen: Sequence[str], progress: Progress = lambda *_: None) -> RulesVerdict:
    """Run the tests of these rules on a server, one after the other.

    Raises:
        ConfigError: this installation has no tests of the rules, or they cannot be collected.
    """
    folder = book.folder()
    verdict = RulesVerdict(tuple(chosen))
    ServerNode.target = server
    words = ["-c", os.devnull, "--rootdir", folder, "--confcutdir", folder / book.TESTS, "--import-mode", "importlib"]
    words += ["-o", "consider_namespace_packages=true", "-m", "rule"]
    words += ["-p", "no:cacheprovider", "-p", "no:terminal", *book.files(chosen)]
    runner = _Runner(server, verdict, progress)
    with _alone(str(folder)), interrupted_by_sigterm():
        status = pytest.main([str(word) for word in words], plugins=[runner])
    verdict.is_whole = status != pytest.ExitCode.INTERRUPTED and not verdict.ended_in
    if runner.problems or status not in (pytest.ExitCode.OK, pytest.ExitCode.INTERRUPTED):
        why = runner.problems[0] if runner.problems else f"pytest ends with {status!r}"
        message = f"the rules' tests of {folder} cannot be run: {why}"
        raise ConfigError("--rules", None, "an installation whose parts fit", message=message)
    return verdict


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM is as SIGINT: what was found is printed. Outside of the main thread it is left as it is."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _alone(folder: str) -> Iterator[None]:
    """Run pytest with the book's modules, and without the plugins and options of whoever runs it."""
    before, path = dict(os.environ), list(sys.path)
    os.environ.pop("PYTEST_ADDOPTS", None)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    sys.path.insert(0, folder)
    SimulatedNode.__new__ = _choose_class  # type: ignore[assignment]
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        sys.path[:] = path
        del SimulatedNode.__new__


def _choose_class(cls: type[SimulatedNode], **_options: Any) -> SimulatedNode:
    """`SimulatedNode()` is a bucket of the server while a test runs on it."""
    return object.__new__(ServerNode if cls is SimulatedNode and ServerNode.is_on else cls)


class _Runner:
    """The plugin that runs each test on the server, as often as there are reasons to.

    Attributes:
        problems: files that could not be read, each with the reason.
    """

    def __init__(self, server: ServerUnderTest, verdict: RulesVerdict, progress: Progress) -> None:
        self._server = server
        self._verdict = verdict
        self._progress = progress
        self._all = self._done = 0
        self.problems: list[str] = []

    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", "rule(id, ...): proves these rules")
        config.addinivalue_line("markers", "timeout(seconds): of a test in process; here each answer has a limit")
        setattr(config, book.RELEASE, self._server.release)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.problems.append(f"{report.nodeid}: {report.longreprtext}")

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        chosen = set(self._verdict.chosen)
        kept = [item for item in items if chosen.intersection(_rules_of(item))]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
        self._all = len(kept)

    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        self._done += 1
        name = item.nodeid.rpartition("/")[2]
        self._progress(self._done, self._all, name)
        result, detail, frames = self._run(item, nextitem)
        if result == DIFFERS and not self._server.is_there():
            self._verdict.ended_in, result, detail = name, UNDECIDED, "a server that goes on: it ended in this test"
            item.session.shouldstop = detail
        self._verdict.tests.append(TestResult(name, tuple(_rules_of(item)), result, detail, frames))
        return True

    def _run(self, item: pytest.Item, nextitem: pytest.Item | None) -> tuple[str, str, tuple[str, ...]]:
        if all(book.rules()[rule_id].source.startswith(OWN_CHOICE) for rule_id in _rules_of(item)):
            return UNDECIDED, "a node of this project: servers do otherwise", ()
        release = _parameter(item, "release")
        if release is not None and release != self._server.release:
            return UNDECIDED, f"a server of release {release}", ()
        if self._server.release in ENDS_SERVER.get(getattr(item, "originalname", item.name), ()):
            return UNDECIDED, "another server: it ends the server", ()
        found = self._attempt(item, nextitem)
        if self._server.from_disk and CHECKPOINT in found[1]:
            # Such a bucket has nothing in memory, so it cannot show what a test says of memory as well.
            from_disk = self._attempt(item, nextitem, wants_disk=True)
            return found if from_disk[0] == DIFFERS else from_disk
        for quiet_s in QUIET_S[1:]:
            if found[0] != DIFFERS:
                return found
            about = {rule_id.rpartition("-")[0] for rule_id in _rules_of(item)}
            ServerNode.hidden = frozenset(opcode for opcode, area in TIMED.items() if area not in about)
            ServerNode.closing_waits = CLOSING_WAITS_MAX
            found = self._attempt(item, nextitem, quiet_s=quiet_s)
            ServerNode.hidden, ServerNode.closing_waits = frozenset(), 0
        if found[0] == DIFFERS and release is None and self._server.release != DEFAULT_RELEASE.name:
            simulated = self._attempt(item, nextitem, is_on=False)
            if simulated[0] == DIFFERS:
                return UNDECIDED, f"a server of release {DEFAULT_RELEASE.name}", ()
        return found

    def _attempt(
        self,
        item: pytest.Item,
        nextitem: pytest.Item | None,
        *,
        quiet_s: float = QUIET_S[0],
        wants_disk: bool = False,
        is_on: bool = True,
    ) -> tuple[str, str, tuple[str, ...]]:
        """Run the test once: result, detail and frames, as of `TestResult`."""
        ServerNode.trace.clear()
        ServerNode.is_on, ServerNode.wants_disk, self._server.quiet_s = is_on, wants_disk, quiet_s
        before = ServerNode.requests
        item._initrequest()  # type: ignore[attr-defined]  # as plugins do that run a test again
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        failed = [report for report in reports if report.failed]
        if failed:
            return DIFFERS, _message(failed[0]), tuple(ServerNode.trace)
        skipped = [_reason(report) for report in reports if report.skipped]
        if not skipped and is_on and ServerNode.requests == before:
            skipped = ["a request: it is about this project's own code"]
        return (UNDECIDED, skipped[0], ()) if skipped else (HELD, "", ())

    def pytest_sessionfinish(self) -> None:
        """Leave an empty bucket."""
        ServerNode.is_on = True
        with suppress(OSError, AssertionError):  # the server is gone: the tests have said so
            SimulatedNode()
            ServerNode.leave_current()


def _rules_of(item: pytest.Item) -> list[str]:
    return [rule_id for marker in item.iter_markers("rule") for rule_id in marker.args]


def _parameter(item: pytest.Item, name: str) -> Any:
    callspec = getattr(item, "callspec", None)
    return None if callspec is None else callspec.params.get(name)


def _message(report: pytest.TestReport) -> str:
    """The assertion's message, which has what was expected and what came, and the line of the test."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(report.longrepr) if crash is None else str(crash.message)
    entries = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", ())
    places = [entry.reprfileloc for entry in entries if getattr(entry, "reprfileloc", None) is not None]
    place = next((place for place in places if "test_" in str(place.path)), None)
    where = f"line {place.lineno}: " if place is not None else ""
    return where + text.removeprefix("AssertionError: ")


def _reason(report: pytest.TestReport) -> str:
    """The need of a test that no server meets."""
    detail = report.longrepr
    text = str(detail[2] if isinstance(detail, tuple) else detail)
    return (text.partition(NOT_ON_SERVER)[2] or text).partition("\n")[0]
