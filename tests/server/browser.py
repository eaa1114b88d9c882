"""Headless Chromium over its debug protocol: load a page, run JavaScript in it, press keys, take pictures."""

import base64
import itertools
import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import websocket

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def find_browser() -> str | None:
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Page:
    """The one tab of a browser."""

    def __init__(self, program: str, profile: Path) -> None:
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        self.process = subprocess.Popen(
            [program, *arguments, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if match := re.search(r"DevTools listening on (ws://\S+)", line):
                break
        else:
            raise RuntimeError("the browser ended")
        self.socket = websocket.create_connection(match[1], timeout=60, suppress_origin=True)
        self.numbers = itertools.count(1)
        self.session: str | None = None
        self.errors: list[str] = []
        (target,) = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def call(self, method: str, **params: object) -> dict:
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.socket.send(json.dumps(message))
        while True:
            reply = json.loads(self.socket.recv())
            self.note(reply)
            if reply.get("id") == number:
                assert "error" not in reply, reply
                return reply["result"]

    def note(self, event: dict) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(event["params"]["exceptionDetails"]))
        if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.errors.append(event["params"]["entry"]["text"])

    def size(self, width: int, height: int, dark: bool = False) -> None:
        mobile = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def load(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> object:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 30) -> None:
        """Until it is truthy."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.evaluate(f"!!({expression})"):
                return
            time.sleep(0.05)
        raise TimeoutError(expression)

    def text(self, selector: str) -> str:
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: str | None = None, text: str = "", modifiers: int = 0) -> None:
        fields = {"key": key, "code": code or key, "modifiers": modifiers}
        if key == "Enter":
            fields |= {"windowsVirtualKeyCode": 13, "text": "\r"}
        elif text:
            fields["text"] = text
        self.call("Input.dispatchKeyEvent", type="keyDown", **fields)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=code or key, modifiers=modifiers)

    def picture(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        self.socket.close()
        self.process.terminate()
        self.process.wait(timeout=30)
