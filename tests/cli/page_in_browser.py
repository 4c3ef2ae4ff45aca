"""The page of reynard serve in headless Chromium: page_in_browser.py PROGRAM MODEL [SCREENSHOT]. Speaks the browser's own
protocol, so that no package is needed. Exits with 77 where there is no Chromium."""
import base64
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

program, model = sys.argv[1:3]
browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if browser is None:
    print("there is no chromium")
    sys.exit(77)


class Page:
    """A tab, by the DevTools protocol over a WebSocket."""

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
                return json.loads(message)

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

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression, what):
        end = time.time() + 60
        while not self.value(expression):
            assert time.time() < end, f"{what}: {self.value('document.body.innerText')}"
            time.sleep(0.05)


def check(page, url, screenshot):
    page.call("Page.enable")
    page.call("Page.navigate", url=url)
    page.wait_for("document.readyState === 'complete' && document.getElementById('model').textContent !== ''", "the model's name")
    assert page.value("document.getElementById('model').textContent") == "small"
    page.value("$('prompt').value = 'Once upon a time'.repeat(20); $('tokens').value = 200; $('temperature').value = 1;")
    page.value("$('go').click()")
    page.wait_for("$('text').textContent.length > 0", "text")
    page.wait_for("$('cache').querySelector('table') !== null", "the cache's table")
    page.wait_for("!$('go').disabled", "the end")
    assert page.value("$('error').textContent") == ""
    assert re.fullmatch(r"\d+ tokens, [\d.]+ tokens/s", page.value("$('speed').textContent")), page.value("$('speed').textContent")
    rows = page.value("[...$('cache').querySelectorAll('tr')].map(r => [...r.cells].map(c => c.textContent))")
    assert len(rows) >= 3 and rows[1][0] == "layer 0" and len(rows[1]) == 5, rows  # 4 heads
    assert all(cell.isdigit() and int(cell) >= 1 for row in rows[1:] for cell in row[1:]), rows
    picture = base64.b64decode(page.call("Page.captureScreenshot")["data"])
    if screenshot:
        with open(screenshot, "wb") as file:
            file.write(picture)
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    # A wrong request shows the server's words, and Stop ends a long text.
    page.value("$('temperature').value = -1; $('go').click()")
    page.wait_for("$('error').textContent.includes('temperature')", "the error")
    # Greedily, so that no end token is drawn.
    page.value("$('temperature').value = 0; $('tokens').value = 200000; $('go').click()")
    page.wait_for("$('text').textContent.length > 20", "a long text")
    page.value("$('stop').click()")
    page.wait_for("!$('go').disabled && $('error').textContent === ''", "the stop")


server = subprocess.Popen([program, "serve", model, "--port", "0", "--name", "small"], stderr=subprocess.PIPE, text=True)
url = re.search(r"http://[\d.:]+/", server.stderr.readline()).group(0)
threading.Thread(target=server.stderr.read, daemon=True).start()
profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
chromium = subprocess.Popen(
    [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=900,700",
     "--remote-debugging-port=0", f"--user-data-dir={profile.name}", "about:blank"], stderr=subprocess.PIPE, text=True)
try:
    port = None
    for line in chromium.stderr:
        found = re.search(r"DevTools listening on ws://[^:]+:(\d+)/", line)
        if found:
            port = found.group(1)
            break
    assert port, "Chromium does not start"
    threading.Thread(target=chromium.stderr.read, daemon=True).start()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30) as answer:
        tabs = json.load(answer)
    tab = next(tab for tab in tabs if tab["type"] == "page")
    check(Page(tab["webSocketDebuggerUrl"]), url, sys.argv[3] if len(sys.argv) > 3 else "")
    print("ok")
finally:
    chromium.kill()
    server.kill()
    chromium.wait()
    profile.cleanup()
