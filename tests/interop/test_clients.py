"""Each client that is not ours against a fresh node: the checks of `make interop`, one test each.

What this machine has no tools for is skipped, with the reason. The first run builds the programs: gocbcore takes about
a minute, the archives of the Java clients some seconds; they stay in `.cache/interop`.
"""

from __future__ import annotations

import pytest

from lab.interop.building import BUILD_TIMEOUT_S, FETCH_TIMEOUT_S, Missing
from lab.interop.clients import CHECKS, CLIENTS, Check, judge, prepare
from lab.interop.running import PROGRAM_TIMEOUT_S

pytestmark = [pytest.mark.interop, pytest.mark.timeout(FETCH_TIMEOUT_S + BUILD_TIMEOUT_S + PROGRAM_TIMEOUT_S)]


def marked(check: Check) -> object:
    """A client's checks stay on one worker of a parallel run, so that its program is built in one place."""
    return pytest.param(check, id=check.name, marks=[pytest.mark.xdist_group(check.client), pytest.mark.slow])


@pytest.mark.parametrize("check", [marked(check) for check in CHECKS])
def test_client(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        try:
            outcome = judge(check, prepare(check.client, lambda text: print(f"\n{text} …", flush=True)))
        except Missing as missing:
            pytest.skip(f"{CLIENTS[check.client].name}: {missing}")
    assert outcome.is_fine, f"{outcome.trouble}\n{outcome.failed}\n{outcome.output[-6000:]}"


def test_the_checks_have_names_of_their_own() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert {check.client for check in CHECKS} == set(CLIENTS)
