"""Headless Chromium: a page after its scripts have run, and one that is clicked and typed in."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu"]
SECONDS = 120  # what nothing takes, on however busy a machine


def shown(program: str, file: Path, *, milliseconds: int) -> str:
    """The HTML of a page after so much of its own time; its console must have been told nothing."""
    flags = [*FLAGS, "--enable-logging=stderr", f"--virtual-time-budget={milliseconds}"]
    done = subprocess.run(
        [program, *flags, f"--user-data-dir={file.parent / 'profile'}", "--dump-dom", file.as_uri()],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout


class Browser:
    """A headless Chromium, driven over its debugging pipe: JSON messages that end with a zero byte."""

    def __init__(self, program: str, folder: Path, width: int) -> None:
        to_read, self.output = os.pipe()
        self.input, to_write = os.pipe()
        shell = ["sh", "-c", f'exec "$@" 3</dev/fd/{to_read} 4>/dev/fd/{to_write}', "sh"]
        self.process = subprocess.Popen(
            [*shell, program, *FLAGS, f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank"],
            pass_fds=(to_read, to_write),
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self.number, self.received, self.events = 0, b"", list[dict[str, Any]]()
        self.session: dict[str, str] = {}
        page = next(one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self.session = {"sessionId": attached["sessionId"]}
        for domain in ("Runtime", "Log", "Page"):
            self.call(f"{domain}.enable")
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Do something, and wait until it is done."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters, **self.session}
        os.write(self.output, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.received:
                self.received += os.read(self.input, 1 << 16) or pytest.fail("the browser has ended")
            one, _, self.received = self.received.partition(b"\0")
            answer = json.loads(one)
            if answer.get("id") == self.number:
                assert "result" in answer, answer
                return answer["result"]
            self.events.append(answer)

    def value(self, expression: str) -> Any:
        """Of an expression of JavaScript."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def until(self, expression: str) -> Any:
        """The value of an expression, once it has one."""
        limit = time.monotonic() + SECONDS
        while not (found := self.value(expression)):
            assert time.monotonic() < limit, f"never: {expression}"
            time.sleep(0.05)
        return found

    def type(self, text: str) -> None:
        """Type a line, and Enter."""
        self.call("Input.insertText", text=text)
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key="Enter", windowsVirtualKeyCode=13, text="\r")

    def complaints(self) -> list[dict[str, Any]]:
        """What the page's console was told."""
        kinds = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        return [event for event in self.events if event["method"] in kinds]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.input)
        os.close(self.output)
