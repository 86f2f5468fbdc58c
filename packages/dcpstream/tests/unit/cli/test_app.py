from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from dcpstream import __version__
from dcpstream.cli import app, exits
from dcpstream.errors import AuthenticationFailed, ConnectTimeout
from lab.tools.patience import patient


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    @click.command("stream")
    def command() -> None:
        raise error

    monkeypatch.setattr(app.LazyGroup, "get_command", lambda self, ctx, name: command)


def test_help_lists_the_commands_without_importing_them() -> None:
    code = (
        "import sys, dcpstream.cli.app as app\n"
        "status = app.run(['--help'])\n"
        "heavy = {'numpy', 'pyarrow', 'pyspark', 'aiohttp', 'rich', 'asyncio', 'dcpstream.wire', 'dcpstream_node'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))\n"
        "raise SystemExit(status)"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=patient(60), check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    for name in ("decode", "demo", "node", "stream"):
        assert f"\n  {name} " in outcome.stdout
    assert "HEAVY []" in outcome.stdout


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    kernel = pytest.importorskip("dcpstream.runtime.kernel", reason="without pyarrow the next test counts")
    assert app.run(["--version"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"dcpstream, version {__version__}"
    assert second == f"decoder: {kernel.description}"


def test_version_without_pyarrow(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dcpstream.runtime.kernel", None)
    assert app.run(["--version"]) == 0
    assert "need pyarrow" in capsys.readouterr().out


def test_the_package_runs_as_a_module() -> None:
    outcome = subprocess.run(
        [sys.executable, "-m", "dcpstream", "node", "--nodes", "x"], capture_output=True, text=True, check=False
    )
    assert outcome.returncode == exits.USAGE
    assert "Usage: dcpstream node" in outcome.stderr


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (ConnectTimeout("nobody listens at 127.0.0.1:1"), exits.UNREACHABLE, "nobody listens"),
        (AuthenticationFailed("user 'x' was refused"), exits.REFUSED, "refused"),
        (ModuleNotFoundError("No module named 'pyspark'", name="pyspark"), exits.NOT_INSTALLED, "dcpstream-spark"),
        (FileNotFoundError(2, "No such file or directory", "x.bin"), exits.FAILED, "x.bin does not exist\n"),
        (IsADirectoryError(21, "Is a directory", "x"), exits.FAILED, "x cannot be used: Is a directory\n"),
        (OSError(28, "No space left on device"), exits.FAILED, "dcpstream: No space left on device\n"),
        (KeyboardInterrupt(), exits.INTERRUPTED, "interrupted"),
    ],
)
def test_errors_become_a_line_and_a_status(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    status: int,
    text: str,
) -> None:
    failing(monkeypatch, error)
    assert app.run(["stream"]) == status
    output = capsys.readouterr().err
    assert text in output
    assert "Traceback" not in output


def test_debug_lets_the_error_through(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, ConnectTimeout("nobody"))
    with pytest.raises(ConnectTimeout):
        app.run(["--debug", "stream"])


def test_errors_that_nobody_foresaw_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        app.run(["stream"])


def test_python_m_runs_it(tmp_path: Path) -> None:
    file = tmp_path / "garbage.bin"
    file.write_bytes(b"\xff" * 40)
    outcome = subprocess.run(
        [sys.executable, "-m", "dcpstream.cli", "decode", str(file)],
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
    )
    assert outcome.returncode == exits.BAD_DATA
    assert "at byte 0" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_missing_package_is_reported_with_the_extra_that_brings_it() -> None:
    exits.require(["json"], "dcpstream[arrow]")
    with pytest.raises(exits.NotInstalled, match=r"pip install 'dcpstream\[arrow\]'") as caught:
        exits.require(["json", "no_such_package"], "dcpstream[arrow]")
    ending = exits.exit_for(caught.value)
    assert ending is not None
    assert ending.status == exits.NOT_INSTALLED


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "frames.hex"
    file.write_text(
        "80 0a 00 00 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00\n" * 20_000, encoding="ascii"
    )
    child = subprocess.Popen(
        [sys.executable, "-m", "dcpstream.cli", "decode", str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stderr is not None
    with child.stdout, child.stderr:
        assert b"NOOP" in child.stdout.readline()
        child.stdout.close()
        assert child.wait(patient(60)) == 0
        assert child.stderr.read() == b""


def test_a_command_of_a_package_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed = app._entry_points()
    monkeypatch.setattr(app, "_entry_points", lambda: {name: installed[name] for name in ("kv", "stream")})
    assert app.run(["node", "--port", "0"]) == exits.NOT_INSTALLED
    message = "the command node belongs to dcpstream-node, which is not installed: pip install dcpstream-node"
    assert capsys.readouterr().err == f"dcpstream: {message}\n"
    assert app.run(["--help"]) == exits.OK
    assert "(pip install dcpstream-node)" in " ".join(capsys.readouterr().out.split())
