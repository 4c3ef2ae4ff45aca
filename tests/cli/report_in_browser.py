"""Pages of reynard report, compare and inspect in headless Chromium, at the widths of a desktop and of a phone:
report_in_browser.py PAGE... Every figure must be drawn, with a title and a caption, and nothing may be wider than the page, or
the paper, but tables, which scroll by themselves; text in figures is not cut, axes stand under a panel, cells of single tokens
name them, and the console is silent. Exits with 77 where there is no Chromium."""
import json
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


# The views that Vega makes, by figure; and all marks of one, each with where the group that it is in begins.
KEEP_VIEWS = """window.views = {};
let embed;
Object.defineProperty(window, 'vegaEmbed', {
  get: () => (plot, ...rest) => embed(plot, ...rest).then(result => { views[plot.id] = result.view; return result; }),
  set: (value) => { embed = value; },
});
window.marksOf = (view) => {
  const all = [];
  const walk = (group, x, y) => {
    for (const mark of group.items) {
      for (const item of mark.items) {
        all.push({mark, item, x, y});
        if (mark.marktype === 'group') walk(item, x + (item.x || 0), y + (item.y || 0));
      }
    }
  };
  walk(view.scenegraph().root.items[0], 0, 0);
  return all;
};"""
# Titles of axes across that no panel stands above.
STRAY_AXES = """Object.entries(views).flatMap(([id, view]) => {
  const marks = marksOf(view);
  const panels = marks.filter(({mark}) => mark.name === 'cell').map(({item, x, y}) => (
    {left: x + item.x, right: x + item.x + item.width, bottom: y + item.y + item.height}));
  if (panels.length === 0) return [];
  return marks.filter(({mark, item, x, y}) => mark.role === 'axis-title' && item.angle === 0 && !panels.some(panel =>
    panel.left < x + item.x && x + item.x < panel.right && Math.abs(y + item.y - panel.bottom) < 60)).map(() => id);
})"""
TOOLTIPS = "marksOf(views.%s).map(({item}) => item.tooltip).filter(tooltip => tooltip && 'query from' in tooltip)"

# Figures that are wider than what they stand in.
WIDE_FIGURES = """[...document.querySelectorAll('.plot')].filter(plot => plot.scrollWidth > plot.clientWidth + 1 ||
  [...plot.querySelectorAll('.marks')].some(marks =>
    marks.getBoundingClientRect().right > plot.getBoundingClientRect().right + 1)).map(plot => plot.id)"""

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
    assert page.value(WIDE_FIGURES) == [], (path, width, page.value(WIDE_FIGURES))
    assert page.value(STRAY_AXES) == [], (path, width, page.value(STRAY_AXES))
    assert page.value(UNEXPLAINED + ".length") == 0, f"a figure of {path} without title or caption"


def check_tokens(page, path):
    """What one points at in the maps of `inspect` that show single tokens says which they are."""
    if not page.value("'forget_matrix_window' in views"):
        return
    with open(os.path.splitext(path)[0] + ".json", encoding="utf-8") as file:
        inspection = json.load(file)
    begin = inspection["settings"]["window"][0]
    text = inspection["window_text"]
    for figure in ("forget_matrix_window", "decay_bias_window", "attention_matrix_window"):
        tooltips = page.value(TOOLTIPS % figure)
        assert len(tooltips) >= len(text) > 0, (figure, len(tooltips))
        for tooltip in tooltips:
            for what in ("query", "key"):
                assert tooltip[what] == text[int(tooltip[what + " from"]) - begin], (figure, tooltip)


def check_print(page, path):
    """The page as a desktop has drawn it, on a sheet of paper."""
    page.call("Emulation.setEmulatedMedia", media="print")
    page.call("Emulation.setDeviceMetricsOverride", width=720, height=1000, deviceScaleFactor=1, mobile=False)
    assert page.value(CUT_IN_PRINT) == [], (path, page.value(CUT_IN_PRINT))
    assert page.value(WIDE_FIGURES) == [], (path, "on paper", page.value(WIDE_FIGURES))
    page.call("Emulation.setEmulatedMedia", media="")


with Browser() as browser:
    said = watch(browser.page)
    browser.page.call("Page.addScriptToEvaluateOnNewDocument", source=KEEP_VIEWS)
    for path in sys.argv[1:]:
        for width in (375, 1280):
            check(browser.page, path, width)
        check_tokens(browser.page, path)
        check_print(browser.page, path)
    assert not said, said[:2]
print("ok")
