"""A headless browser, spoken to over pipes in the DevTools protocol."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
# The protocol's pipes are the files 3 and 4, whatever they are here.
BECOME = """
import os, sys
commands, answers, program, *arguments = sys.argv[1:]
# Neither is written over before it is copied.
commands, answers = (os.dup(os.dup(os.dup(int(file)))) for file in (commands, answers))
os.dup2(commands, 3)
os.dup2(answers, 4)
os.execv(program, [program, *arguments])
"""


def installed() -> str | None:
    """The program of a browser, if there is one that takes pipes; on Windows none does."""
    if os.name == "nt":
        return None
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """A page of a browser of its own, with a profile in `folder`.

    Attributes:
        heard: Events of the protocol that came so far.
    """

    def __init__(self, program: str, folder: Path) -> None:
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        arguments = [program, *OPTIONS, f"--user-data-dir={folder}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", BECOME, str(commands), str(answers), *arguments],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._messages = self._read()
        self._last = 0
        self.heard: list[dict[str, Any]] = []
        self._session: str | None = None

    def __enter__(self) -> Self:
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        return self

    def _read(self) -> Iterator[dict[str, Any]]:
        rest = b""
        while data := os.read(self._answers, 1 << 16):
            *whole, rest = (rest + data).split(b"\0")
            yield from map(json.loads, whole)
        raise EOFError("the browser went away")

    def call(self, method: str, **params: Any) -> Any:
        """What a command of the protocol gives."""
        self._last += 1
        command = {"id": self._last, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        for message in self._messages:
            if message.get("id") == self._last:
                assert "error" not in message, (method, message["error"])
                return message["result"]
            self.heard.append(message)
        raise AssertionError("unreachable: reading ends with an error")

    def evaluate(self, script: str) -> Any:
        """The value of a script, awaited if it is a promise."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def open(self, url: str) -> None:
        """Goes to a page and waits until it is there."""
        self.call("Page.navigate", url=url)
        self.evaluate(
            "new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', done))"
        )

    def events(self, *methods: str) -> list[dict[str, Any]]:
        """What was heard of some kinds."""
        return [message["params"] for message in self.heard if message.get("method") in methods]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._commands)
        self._process.kill()
        self._process.wait()
        os.close(self._answers)
