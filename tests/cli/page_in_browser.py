"""The page of reynard serve in headless Chromium: page_in_browser.py PROGRAM MODEL [SCREENSHOT]. Exits with 77 where there is
no Chromium."""
import os
import re
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from browser import Browser  # noqa: E402

program, model = sys.argv[1:3]
if Browser.found is None:
    print("there is no chromium")
    sys.exit(77)


def check(page, url, screenshot):
    page.navigate(url)
    page.wait_for("document.getElementById('model').textContent !== ''", "the model's name")
    assert page.value("document.getElementById('model').textContent") == "small"
    # Greedily here and below, so that no end token is drawn.
    page.value("$('prompt').value = 'Once upon a time'.repeat(20); $('tokens').value = 200; $('temperature').value = 0;")
    page.value("$('go').click()")
    page.wait_for("$('text').textContent.length > 0", "text")
    page.wait_for("$('cache').querySelector('table') !== null", "the cache's table")
    page.wait_for("!$('go').disabled", "the end")
    assert page.value("$('error').textContent") == ""
    assert re.fullmatch(r"\d+ tokens, [\d.]+ tokens/s", page.value("$('speed').textContent")), page.value("$('speed').textContent")
    rows = page.value("[...$('cache').querySelectorAll('tr')].map(r => [...r.cells].map(c => c.textContent))")
    assert len(rows) >= 3 and rows[0][1] == "head 1" and rows[1][0] == "layer 1" and len(rows[1]) == 5, rows  # 4 heads
    assert all(cell.isdigit() and int(cell) >= 1 for row in rows[1:] for cell in row[1:]), rows
    picture = page.screenshot()
    if screenshot:
        with open(screenshot, "wb") as file:
            file.write(picture)
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert page.value("$('prompt').labels.length") == 1
    assert page.value("document.querySelector('link[rel=icon]').href") == "data:,"  # or it is asked for and missing
    # What is no number does not become one.
    for name, value in (("tokens", "''"), ("tokens", "0"), ("tokens", "-3"), ("temperature", "''")):
        before = page.value(f"$('{name}').value")
        page.value(f"$('{name}').value = {value}; $('go').click()")
        page.wait_for(f"$('error').textContent.startsWith('{name}: ')", f"what {name} must be")
        assert page.value("[$('go').disabled, $('text').textContent, $('speed').textContent]") == [False, "", ""]
        page.value(f"$('{name}').value = {before}")
    # Light and dark, as the system is.
    for scheme, is_dark in (("light", False), ("dark", True)):
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        colours = page.value("(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))")
        paper, ink = (sum(int(part) for part in re.findall(r"\d+", colour)[:3]) for colour in colours)
        assert (paper < ink) == is_dark, (scheme, colours)
        if screenshot:
            with open(screenshot.replace(".png", f"-{scheme}.png"), "wb") as file:
                file.write(page.screenshot())
    # A wrong request shows the server's words, and Stop ends a long text.
    page.value("$('temperature').value = -1; $('go').click()")
    page.wait_for("$('error').textContent.includes('temperature')", "the error")
    # A text in one piece has no rate.
    page.value("$('temperature').value = 0; $('tokens').value = 1; $('go').click()")
    page.wait_for("!$('go').disabled", "the end of one token")
    assert page.value("$('speed').textContent") == "1 token", page.value("$('speed').textContent")
    page.value("$('tokens').value = 200000; $('go').click()")
    page.wait_for("$('text').textContent.length > 20", "a long text")
    page.value("$('stop').click()")
    page.wait_for("!$('go').disabled && $('error').textContent === ''", "the stop")


server = subprocess.Popen([program, "serve", model, "--port", "0", "--name", "small"], stderr=subprocess.PIPE, text=True)
url = re.search(r"http://[\d.:]+/", server.stderr.readline()).group(0)
threading.Thread(target=server.stderr.read, daemon=True).start()
try:
    with Browser() as browser:
        check(browser.page, url, sys.argv[3] if len(sys.argv) > 3 else "")
    print("ok")
finally:
    server.kill()
