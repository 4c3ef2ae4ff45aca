"""Pages in headless Chromium, by its own protocol over a WebSocket, so that no package is needed."""
import base64
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request


class Page:
    """A tab."""

    def __init__(self, address):
        host, port, path = re.match(r"ws://([^:/]+):(\d+)(/.*)", address).groups()
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += self.socket.recv(1)
        assert b" 101 " in head, head
        self.number = 0
        self.loaded = set()  # documents, as `loaderId`s

    def read(self, count):
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            assert piece, "the browser is gone"
            data += piece
        return data

    def receive(self):
        message = b""
        while True:
            first, second = self.read(2)
            length = second & 127
            if length == 126:
                length = int.from_bytes(self.read(2), "big")
            elif length == 127:
                length = int.from_bytes(self.read(8), "big")
            message += self.read(length)
            if first & 128:
                message = json.loads(message)
                if message.get("method") == "Page.lifecycleEvent" and message["params"]["name"] == "load":
                    self.loaded.add(message["params"]["loaderId"])
                return message

    def call(self, method, **parameters):
        self.number += 1
        data = json.dumps({"id": self.number, "method": method, "params": parameters}).encode()
        mask = os.urandom(4)
        length = bytes([128 | len(data)]) if len(data) < 126 else bytes([128 | 126]) + len(data).to_bytes(2, "big")
        self.socket.sendall(b"\x81" + length + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))
        while True:
            message = self.receive()
            if message.get("id") == self.number:
                assert "error" not in message, message
                return message["result"]

    def navigate(self, url):
        """Opens `url` and waits until it has loaded: before that, scripts may still run in the page before it."""
        document = self.call("Page.navigate", url=url)["loaderId"]
        while document not in self.loaded:
            self.receive()

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression, what):
        end = time.time() + 60
        while not self.value(expression):
            assert time.time() < end, f"{what}: {self.value('document.body.innerText')}"
            time.sleep(0.05)

    def screenshot(self, **parameters):
        return base64.b64decode(self.call("Page.captureScreenshot", **parameters)["data"])


class Browser:
    """One Chromium with one tab, `page`, until its end; None as `found` where there is no Chromium."""

    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

    def __enter__(self):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            [self.found, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=900,700",
             "--remote-debugging-port=0", f"--user-data-dir={self.profile.name}", "about:blank"],
            stderr=subprocess.PIPE, text=True)
        port, said = None, ""
        for line in self.process.stderr:
            said += line
            found = re.search(r"DevTools listening on ws://[^:]+:(\d+)/", line)
            if found:
                port = found.group(1)
                break
        assert port, f"Chromium does not start: {said}"
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        tabs, end = [], time.time() + 30
        while not tabs:  # it answers before its tab is there
            assert time.time() < end, "Chromium opens no tab"
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30) as answer:
                tabs = [tab for tab in json.load(answer) if tab["type"] == "page"]
        self.page = Page(tabs[0]["webSocketDebuggerUrl"])
        self.page.call("Page.enable")
        self.page.call("Page.setLifecycleEventsEnabled", enabled=True)
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.profile.cleanup()
