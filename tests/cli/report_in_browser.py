"""Pages of reynard report, compare and inspect in headless Chromium, at the widths of a desktop and of a phone:
report_in_browser.py PAGE... Every figure must be drawn, with a title and a caption, and nothing may be wider than the page but
what scrolls by itself; text in figures is not cut, and the console is silent. Exits with 77 where there is no Chromium."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from browser import Browser  # noqa: E402

if Browser.found is None:
    print("there is no chromium")
    sys.exit(77)

DRAWN = "document.querySelectorAll('canvas.marks, svg.marks').length"
# Beyond the right edge, outside of everything that scrolls or cuts what it holds.
TOO_WIDE = """[...document.querySelectorAll('body *')].filter(e => {
  if (e.getBoundingClientRect().right <= innerWidth + 1) return false;
  for (let p = e; p !== document.body; p = p.parentElement) {
    if (getComputedStyle(p).overflowX !== 'visible') return false;
  }
  return true;
}).map(e => e.tagName + '.' + e.className + ': ' + e.textContent.slice(0, 40))"""

UNEXPLAINED = """[...document.querySelectorAll('figure')].filter(f =>
  !f.querySelector('h3')?.textContent || !f.querySelector('figcaption')?.textContent.includes('.'))"""

# Text that is cut: by its figure's edge, or to an ellipsis.
CUT = """[...document.querySelectorAll('svg.marks')].flatMap(svg => {
  const edge = svg.getBoundingClientRect();
  return [...svg.querySelectorAll('text')].filter(text => {
    const box = text.getBoundingClientRect();
    return box.left < edge.left - 1 || box.right > edge.right + 1 || text.textContent.includes('…');
  }).map(text => svg.closest('.plot').id + ': ' + text.textContent);
})"""


# What paper would cut: text samples and tables that scroll on a screen; and samples that scroll sideways there.
CUT_IN_PRINT = """[...document.querySelectorAll('pre, .scroll')].filter(e =>
  e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1).map(e => e.tagName + ': ' + e.textContent.slice(0, 40))"""
SIDEWAYS = """[...document.querySelectorAll('pre')].filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent.slice(0, 40))"""


def watch(page):
    """What the console says from now on, as a list that grows."""
    said = []
    receive = page.receive

    def receive_and_note():
        message = receive()
        if message.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            said.append(message["params"])
        return message

    page.receive = receive_and_note
    page.call("Runtime.enable")
    page.call("Log.enable")
    return said


def check(page, path, width):
    with open(path, encoding="utf-8") as file:
        figures = file.read().count('<script type="application/json"')
    assert figures > 0, path
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
    page.navigate("file://" + os.path.abspath(path))
    page.wait_for(f"{DRAWN} >= {figures}", f"{figures} figures of {path}")
    assert page.value("document.documentElement.scrollWidth") <= width, (path, width)
    assert page.value(TOO_WIDE) == [], (path, width, page.value(TOO_WIDE))
    assert page.value(CUT) == [], (path, width, page.value(CUT))
    assert page.value(SIDEWAYS) == [], (path, width, page.value(SIDEWAYS))
    assert page.value(UNEXPLAINED + ".length") == 0, f"a figure of {path} without title or caption"


def check_print(page, path):
    page.call("Emulation.setEmulatedMedia", media="print")
    page.call("Emulation.setDeviceMetricsOverride", width=720, height=1000, deviceScaleFactor=1, mobile=False)
    page.navigate("file://" + os.path.abspath(path))
    assert page.value(CUT_IN_PRINT) == [], (path, page.value(CUT_IN_PRINT))
    page.call("Emulation.setEmulatedMedia", media="")


with Browser() as browser:
    said = watch(browser.page)
    for path in sys.argv[1:]:
        for width in (1280, 375):
            check(browser.page, path, width)
        check_print(browser.page, path)
    assert not said, said[:2]
print("ok")
