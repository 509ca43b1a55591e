"""A headless Chromium, driven through a pair of pipes: pages are opened and asked."""

import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time


def path():
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One browser with one tab. `said` has what pages wrote to their console, and their errors."""
    def __init__(self, program):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        requests, self.requests = os.pipe()
        self.replies, replies = os.pipe()

        def connect():  # the browser reads requests at 3 and writes replies at 4
            ends = os.dup(requests), os.dup(replies)
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self.process = subprocess.Popen([
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            "--remote-debugging-pipe", "--no-first-run", "--disable-extensions", "--disable-background-networking",
            f"--user-data-dir={self.profile.name}", "about:blank"
        ], preexec_fn=connect, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        os.close(requests)
        os.close(replies)
        self.numbers, self.unread, self.events, self.said, self.session = itertools.count(1), b"", [], [], None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def message(self, seconds=600):
        end = time.monotonic() + seconds
        while b"\0" not in self.unread:
            ready, _, _ = select.select([self.replies], [], [], max(0, end - time.monotonic()))
            data = os.read(self.replies, 1 << 20) if ready else b""
            if not data:
                raise TimeoutError("the browser does not answer")
            self.unread += data
        text, _, self.unread = self.unread.partition(b"\0")
        return json.loads(text)

    def ask(self, method, **parameters):
        number = next(self.numbers)
        request = {
            "id": number, "method": method, "params": parameters,
            **({"sessionId": self.session} if self.session else {})
        }
        os.write(self.requests, json.dumps(request).encode() + b"\0")
        while True:
            message = self.message()
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.note(message)

    def note(self, message):
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.said.append(" ".join(str(argument.get("value", argument)) for argument in parameters["args"]))
        elif method == "Runtime.exceptionThrown":
            self.said.append(parameters["exceptionDetails"].get("exception", {}).get("description", "an exception"))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.said.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not parameters["request"]["url"].startswith(("file:", "data:")):
            self.said.append(f"asked the network for {parameters['request']['url']}")
        self.events.append(method)

    def open(self, file, width, dark=False):
        """Loads a file at a window's width, in light or dark, and waits until it is there."""
        self.said, self.events = [], []
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        self.ask("Emulation.setEmulatedMedia",
                 features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.ask("Page.navigate", url=file.resolve().as_uri())
        while "Page.loadEventFired" not in self.events:
            self.note(self.message())

    def evaluate(self, expression):
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def close(self):
        self.process.terminate()
        self.process.wait()
        os.close(self.requests)
        os.close(self.replies)
        self.profile.cleanup()
