"""A headless Chromium, spoken to over its DevTools pipe: what a page does, without a further package.

The protocol is JSON messages ended by NUL, on the browser's file descriptors 3 (in) and 4 (out).
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

EXECUTABLE = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome", "chrome")
        if (found := shutil.which(name))
    ),
    None,
)
TIMEOUT_SECONDS = 60.0

_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # the browser itself shall not call home either
    "--remote-debugging-pipe",
    "--window-size=1200,500",
)


class Chromium:
    """A running browser; a context manager."""

    def __init__(self, profile: Path) -> None:
        assert EXECUTABLE is not None
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # High numbers, so that neither is overwritten when they become 3 and 4.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 50) for end in (to_browser, from_browser)]
        redirected = f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}'
        command = ["bash", "-c", redirected, "bash", EXECUTABLE, *_OPTIONS]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}"],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (to_browser, from_browser, *ends):
            os.close(end)
        self._received = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.call("Browser.close")
            self._process.wait(10)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._out)
            os.close(self._in)

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and wait for its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while (answer := self._next(deadline)).get("id") != self._number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, page: Path) -> Page:
        """Open a file in a new tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        opened = Page(self, session, target)
        for domain in ("Network", "Runtime", "Log", "Page"):
            self.call(f"{domain}.enable", session)
        self.call("Page.navigate", session, url=page.as_uri())
        opened.wait("document.readyState === 'complete'")
        return opened

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("Chromium did not answer")
            received = os.read(self._in, 1 << 20)
            if not received:
                raise ConnectionError("Chromium has ended")
            self._received += received
        message, _, self._received = self._received.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


class Page:
    """A tab of the browser."""

    def __init__(self, browser: Chromium, session: str, target: str) -> None:
        self._browser = browser
        self._session = session
        self._target = target

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self._browser.call(
            "Runtime.evaluate",
            self._session,
            expression=script,
            returnByValue=True,
            awaitPromise=True,
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not self.run(f"!!({condition})"):
            if time.monotonic() > deadline:
                raise TimeoutError(condition)
            time.sleep(0.02)

    def close(self) -> None:
        """Close the tab."""
        self._browser.call("Target.closeTarget", targetId=self._target)

    def resize(self, width: int, height: int) -> None:
        """Make the window this large, in CSS pixels."""
        self._browser.call(
            "Emulation.setDeviceMetricsOverride",
            self._session,
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def emulate(self, *, media: str = "", dark: bool = False) -> None:
        """Show the page as on paper (media "print"), or as the system's dark theme has it."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._browser.call(
            "Emulation.setEmulatedMedia", self._session, media=media, features=[scheme]
        )

    def press(self, key: str) -> None:
        """Press and release a key, such as Tab or Enter."""
        code = {"Tab": 9, "Enter": 13}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self._browser.call(
                "Input.dispatchKeyEvent",
                self._session,
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **(text if kind == "keyDown" else {}),
            )

    @property
    def errors(self) -> list[str]:
        """What the console holds of errors and warnings, exceptions included."""
        logged = [event["entry"]["text"] for event in self._events("Log.entryAdded")]
        printed = [str(event["args"]) for event in self._events("Runtime.consoleAPICalled")]
        thrown = [
            str(event["exceptionDetails"]) for event in self._events("Runtime.exceptionThrown")
        ]
        return logged + printed + thrown

    @property
    def requests(self) -> list[str]:
        """What the page asked for beyond itself, whether it came or not."""
        urls = [str(event["request"]["url"]) for event in self._events("Network.requestWillBeSent")]
        return [url for url in urls if not url.startswith(("file:", "data:", "blob:"))]

    def _events(self, method: str) -> list[dict[str, Any]]:
        return [
            event["params"]
            for event in self._browser.events
            if event.get("sessionId") == self._session and event["method"] == method
        ]
