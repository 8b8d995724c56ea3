# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven over its debugging pipe. It opens pages as a reader does and keeps their requests,
console output and exceptions."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

PROGRAMS = ["chromium", "chromium-browser", "google-chrome-stable", "google-chrome"]


def program():
    """The first Chromium found, or None."""
    return next((path for path in map(shutil.which, PROGRAMS) if path), None)


class Browser:
    """One page. `requests` holds addresses, except data: URLs; `errors` holds output of the console and exceptions."""

    def __init__(self, width=1300, height=900):
        self.folder = tempfile.TemporaryDirectory(prefix="attune_browser_", ignore_cleanup_errors=True)
        (to_read, to_write), (from_read, from_write) = os.pipe(), os.pipe()
        words = [program(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                 "--remote-debugging-pipe", "--hide-scrollbars", "--disable-extensions", "--mute-audio",
                 "--user-data-dir=" + self.folder.name, f"--window-size={width},{height}", "about:blank"]

        def ends():  # the browser reads from 3 and writes to 4
            os.dup2(to_read, 200), os.dup2(from_write, 201)
            os.dup2(200, 3), os.dup2(201, 4)

        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, close_fds=False, preexec_fn=ends)
        os.close(to_read), os.close(from_write)
        self.write, self.read, self.rest, self.count = to_write, from_read, b"", 0
        self.requests, self.errors, self.loaded = [], [], False
        target = next(t for t in self.call("Target.getTargets", session=None)["targetInfos"] if t["type"] == "page")
        self.session = None
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Network", "Log"]:
            self.call(domain + ".enable")

    def close(self):
        os.close(self.write)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.read)
        self.folder.cleanup()

    def message(self, seconds):
        end = time.monotonic() + seconds
        while b"\0" not in self.rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.read], [], [], left)[0]:
                return None
            part = os.read(self.read, 1 << 20)
            if not part:
                raise RuntimeError("the browser ended")
            self.rest += part
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def note(self, event):
        kind, what = event.get("method", ""), event.get("params", {})
        if kind == "Network.requestWillBeSent" and not what["request"]["url"].startswith("data:"):
            self.requests.append(what["request"]["url"])
        elif kind == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(what["exceptionDetails"]))
        elif kind == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(what["args"]))
        elif kind == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.errors.append(what["entry"]["text"])
        elif kind == "Page.loadEventFired":
            self.loaded = True

    def call(self, method, session=True, **params):
        self.count += 1
        number = self.count
        body = {"id": number, "method": method, "params": params}
        if session and getattr(self, "session", None):
            body["sessionId"] = self.session
        os.write(self.write, json.dumps(body).encode() + b"\0")
        end = time.monotonic() + 60
        while time.monotonic() < end:
            answer = self.message(end - time.monotonic())
            if answer is None:
                break
            if answer.get("id") != number:
                self.note(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                return answer["result"]
        raise RuntimeError(method + ": no answer within a minute")

    def open(self, address):
        self.requests, self.errors, self.loaded = [], [], False
        self.call("Page.navigate", url=address)
        end = time.monotonic() + 60
        while not self.loaded and time.monotonic() < end:
            event = self.message(end - time.monotonic())
            if event:
                self.note(event)

    def value(self, code):
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def until(self, code, seconds=20):
        """Whether an expression becomes true in time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.value(code):
                return True
            time.sleep(0.1)
        return False

    def move(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def scheme(self, name):
        """Sets the system's color scheme: light or dark."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def picture(self, path, top=0, height=None, width=1300):
        """A PNG of a part of the page; of the whole page without a height."""
        height = height or self.value("document.documentElement.scrollHeight")
        clip = {"x": 0, "y": top, "width": width, "height": height, "scale": 1}
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))
