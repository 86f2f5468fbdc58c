"""A headless Chromium, driven over its DevTools protocol, for tests of pages.

The browser of the system is used. It runs without a network beyond loopback, with a profile that is thrown away.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import aiohttp

from tests.kit.waiting import TIMEOUT_S, wait_until

NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome-headless-shell",
    "chromium-headless-shell",
)
WHY_SKIPPED = (
    f"no browser: none of {', '.join(NAMES)} is on the PATH (`make browser` puts one into .venv without changing the "
    "system; Debian: apt-get install chromium)"
)
MESSAGE_BYTES_MAX = 64 << 20
"""Largest message of the browser: a picture of a long page."""
WIDEST, WIDE, NARROW = (1920, 1080), (1200, 900), (360, 780)
_FLAGS = (
    "--headless=new",
    "--remote-debugging-port=0",
    "--no-first-run",
    "--no-sandbox",
    "--no-proxy-server",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--mute-audio",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)


def browser_path() -> str | None:
    """The browser of the system, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class PageError(AssertionError):
    """A script failed in the page."""


class Browser:
    """A browser with one tab.

    Attributes:
        problems: errors that scripts threw or wrote to the console, and what the page's policy refused.
        dialogs: texts of the questions that the page asked; each was answered with yes.
    """

    def __init__(self, socket: str) -> None:
        self._runner = asyncio.Runner()
        self._number = 0
        self.problems: list[str] = []
        self.dialogs: list[str] = []
        self._runner.run(self._connect(socket))
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    async def _connect(self, socket: str) -> None:
        self._session = aiohttp.ClientSession()
        self._socket = await self._session.ws_connect(socket, max_msg_size=MESSAGE_BYTES_MAX)

    def close(self) -> None:
        """Leave the browser."""

        async def close() -> None:
            await self._socket.close()
            await self._session.close()

        self._runner.run(close())
        self._runner.close()

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Have the browser do something."""
        return self._runner.run(self._call(method, arguments))

    async def _call(self, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        number = self._number
        await self._socket.send_json({"id": number, "method": method, "params": arguments})
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                message = json.loads((await self._socket.receive()).data)
                if message.get("id") == number:
                    if "error" in message:
                        raise PageError(f"{method}: {message['error']['message']}")
                    return dict(message["result"])
                if "method" in message:
                    await self._note(message["method"], message["params"])

    async def _note(self, event: str, said: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            details = said["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif event == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.problems.append(f"{said['entry']['text']} {said['entry'].get('url', '')}")
        elif event == "Page.javascriptDialogOpening":
            self.dialogs.append(said["message"])
            self._number += 1
            await self._socket.send_json(
                {"id": self._number, "method": "Page.handleJavaScriptDialog", "params": {"accept": True}}
            )

    # ------------------------------------------------------------------------------------------------- what people do

    def log_in(self, user: str, password: str) -> Self:
        """Send a name and a password with each request from now on."""
        login = base64.b64encode(f"{user}:{password}".encode()).decode()
        self.call("Network.setExtraHTTPHeaders", headers={"Authorization": f"Basic {login}"})
        return self

    def open(self, url: str) -> None:
        """Open a page; returns when its scripts have run."""
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise PageError(details.get("exception", {}).get("description", details["text"]))
        return result["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Wait until an expression is true; also while the page changes."""

        def is_true() -> bool:
            try:
                return bool(self.evaluate(f"!!({script})"))
            except PageError:
                return False

        wait_until(is_true, f"never true in the page: {script}")

    def text(self, selector: str) -> str:
        """The text that is shown in an element."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press and release a key, such as Tab or Enter."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}
        event = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key], "modifiers": 8 if shift else 0}
        text = {"Enter": "\r", " ": " "}.get(key)
        self.call("Input.dispatchKeyEvent", type="keyDown", **event, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def look(self, size: tuple[int, int] = WIDE, *, is_dark: bool = False) -> None:
        """Choose the size of the window and the user's colour scheme."""
        width, height = size
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path) -> None:
        """Save a picture of the whole page."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def browsing() -> Iterator[Browser]:
    """A browser until the end of the block."""
    path = browser_path()
    assert path is not None, WHY_SKIPPED
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        log = Path(profile) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [path, *_FLAGS, f"--user-data-dir={profile}/data", "about:blank"],
                stdout=subprocess.DEVNULL,
                stderr=output,
                env={**os.environ, "HOME": profile},
            )
        try:
            browser = Browser(_page_socket(process, log))
            try:
                yield browser
            finally:
                browser.close()
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)


def _page_socket(process: subprocess.Popen[bytes], log: Path) -> str:
    """The address of the tab of a browser that starts."""
    found: list[str] = []

    def has_begun() -> bool:
        assert process.poll() is None, f"the browser ended: {log.read_text(errors='replace')[-2000:]}"
        match = re.search(r"DevTools listening on ws://(\S+?)/", log.read_text(errors="replace"))
        found[:] = [match[1]] if match else []
        return bool(found)

    wait_until(has_begun, "the browser did not start")

    async def first_page() -> str:
        async with aiohttp.ClientSession() as session, session.get(f"http://{found[0]}/json/list") as answer:
            pages = await answer.json()
        return str(next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page"))

    return asyncio.run(first_page())
